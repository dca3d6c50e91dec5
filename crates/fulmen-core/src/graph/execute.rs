//! The checked program of a graph, and running it.

use std::ops::Range;

use super::{ComputeGraph, KernelDispatch, OpCall, resolve::resolve};
use crate::{BackendError, ExecError, GraphError, clock::Instant};

/// The result of a timed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphExecResult {
    /// Kernels launched.
    pub n_launches: usize,
    /// From the first call until the device was done, in microseconds.
    pub elapsed_us: u64,
}

/// A checked graph: one typed call per op. Build it once and run it as long as its addresses stay valid.
#[derive(Clone, Debug)]
pub struct Program {
    calls: Vec<ProgramCall>,
}

/// A checked call and the node that it was lowered from.
#[derive(Clone, Debug)]
pub struct ProgramCall {
    /// Index of the node.
    pub node: usize,
    /// Its name, if it has one.
    pub name: Option<Box<str>>,
    /// The call.
    pub call: OpCall,
}

impl Program {
    pub(super) fn new(graph: &ComputeGraph) -> Result<Program, GraphError> {
        let mut calls = Vec::with_capacity(graph.nodes.len());
        for (index, node) in graph.nodes.iter().enumerate() {
            let call = resolve(graph, index).map_err(|problem| GraphError {
                node: index,
                op: node.op,
                name: node.name.clone(),
                problem,
            })?;
            calls.extend(call.map(|call| ProgramCall { node: index, name: node.name.clone(), call }));
        }
        Ok(Program { calls })
    }

    /// Of calls that were checked.
    pub(crate) fn from_calls(calls: Vec<ProgramCall>) -> Program {
        Program { calls }
    }

    /// The calls, in order.
    pub fn calls(&self) -> &[ProgramCall] {
        &self.calls
    }

    /// Runs all calls and returns the number of kernels launched. Does not wait for the device.
    pub fn run<D: KernelDispatch + ?Sized>(&self, dispatcher: &mut D) -> Result<usize, ExecError> {
        Ok(self.run_while(dispatcher, || true)?.unwrap_or(0))
    }

    /// Runs all calls unless `go_on`, which is called before each of them, returns false. Returns the number
    /// of kernels launched, or `None` if it was stopped: the outputs are then incomplete.
    pub fn run_while<D: KernelDispatch + ?Sized>(
        &self,
        dispatcher: &mut D,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<usize>, ExecError> {
        self.run_observed(dispatcher, |_, _, _| Ok(go_on()))
    }

    /// Runs all calls. Before each, and once at the end, `observe` gets the range of the calls that ran last
    /// (empty the first time; two calls if the device fused a pair) and the number of kernels that they
    /// launched, and returns whether to go on. Returns the number of kernels launched, or `None` if it was
    /// stopped.
    pub fn run_observed<D: KernelDispatch + ?Sized>(
        &self,
        dispatcher: &mut D,
        mut observe: impl FnMut(&mut D, Range<usize>, usize) -> Result<bool, BackendError>,
    ) -> Result<Option<usize>, ExecError> {
        let (mut launches, mut last, mut ran) = (0, 0, 0..0);
        loop {
            let error_at = |index: usize| {
                let call = self.calls.get(index);
                move |source| match call {
                    Some(ProgramCall { node, name, call }) => {
                        ExecError::Node { node: *node, op: call.op(), name: name.clone(), source }
                    }
                    None => ExecError::Backend(source),
                }
            };
            if !observe(dispatcher, ran.clone(), last).map_err(error_at(ran.start))?
                && ran.end < self.calls.len()
            {
                return Ok(None);
            }
            let Some(first) = self.calls.get(ran.end) else { return Ok(Some(launches)) };
            dispatcher.look_ahead(&self.calls[ran.end..]);
            let pair = match self.calls.get(ran.end + 1) {
                Some(next) => dispatcher.dispatch_pair(&first.call, &next.call).map_err(error_at(ran.end))?,
                None => None,
            };
            (ran, last) = match pair {
                Some(launched) => (ran.end..ran.end + 2, launched),
                None => (ran.end..ran.end + 1, dispatcher.dispatch(&first.call).map_err(error_at(ran.end))?),
            };
            launches += last;
        }
    }
}

/// Checks the graph, runs it, and returns the number of kernels launched. Nothing runs if any node is
/// invalid.
///
/// Does not wait for the device: reading a result does, and so does
/// [`synchronize`](KernelDispatch::synchronize).
pub fn execute_graph<D: KernelDispatch + ?Sized>(
    graph: &ComputeGraph,
    dispatcher: &mut D,
) -> Result<usize, ExecError> {
    graph.check()?.run(dispatcher)
}

/// [`execute_graph`] with the time from the first call until the device is done, not counting the check.
pub fn execute_graph_timed<D: KernelDispatch + ?Sized>(
    graph: &ComputeGraph,
    dispatcher: &mut D,
) -> Result<GraphExecResult, ExecError> {
    let program = graph.check()?;
    dispatcher.synchronize()?;
    let start = Instant::now();
    let n_launches = program.run(dispatcher)?;
    dispatcher.synchronize()?;
    let elapsed_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(GraphExecResult { n_launches, elapsed_us })
}
