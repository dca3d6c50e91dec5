//! Checking a graph into a program, and running it.

use std::time::Instant;

use super::{ComputeGraph, KernelDispatch, OpCall, resolve::resolve};
use crate::{ExecError, GraphError};

/// What a timed run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphExecResult {
    /// Kernels launched.
    pub n_launches: usize,
    /// From the first call until the device was done, in microseconds.
    pub elapsed_us: u64,
}

/// A checked graph: one typed call per op. Build it once, run it as often as its addresses hold.
#[derive(Clone, Debug)]
pub struct Program {
    calls: Vec<Step>,
}

/// One call and the node it came from.
#[derive(Clone, Debug)]
pub struct Step {
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
            calls.extend(call.map(|call| Step { node: index, name: node.name.clone(), call }));
        }
        Ok(Program { calls })
    }

    /// The calls, in order.
    pub fn steps(&self) -> &[Step] {
        &self.calls
    }

    /// Runs all calls and gives the number of kernels launched. Does not wait for the device.
    pub fn run<D: KernelDispatch + ?Sized>(&self, dispatcher: &mut D) -> Result<usize, ExecError> {
        Ok(self.run_while(dispatcher, || true)?.unwrap_or(0))
    }

    /// Runs calls as long as `go_on`, which is asked before each, says so. Gives the number of kernels launched, or `None`
    /// if it was stopped: what the program writes is then half written.
    pub fn run_while<D: KernelDispatch + ?Sized>(
        &self,
        dispatcher: &mut D,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<usize>, ExecError> {
        let mut launches = 0;
        let mut steps = self.calls.as_slice();
        while let Some((step, rest)) = steps.split_first() {
            if !go_on() {
                return Ok(None);
            }
            let at = |source| ExecError::Node {
                node: step.node,
                op: step.call.op(),
                name: step.name.clone(),
                source,
            };
            if let Some((next, after)) = rest.split_first()
                && let Some(launched) = dispatcher.dispatch_pair(&step.call, &next.call).map_err(at)?
            {
                launches += launched;
                steps = after;
                continue;
            }
            launches += dispatcher.dispatch(&step.call).map_err(at)?;
            steps = rest;
        }
        Ok(Some(launches))
    }
}

/// Checks the graph, runs it, and gives the number of kernels launched. Nothing runs if any node is wrong.
///
/// Does not wait for the device: reading a result does, and so does
/// [`synchronize`](KernelDispatch::synchronize).
pub fn execute_graph<D: KernelDispatch + ?Sized>(
    graph: &ComputeGraph,
    dispatcher: &mut D,
) -> Result<usize, ExecError> {
    graph.check()?.run(dispatcher)
}

/// [`execute_graph`] with the time from the first call until the device is done; the check is not in it.
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
