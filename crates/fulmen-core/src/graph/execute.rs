//! The checked program of a graph, and running it.

use std::ops::Range;

use super::forward::{BLOCKS, ForwardPlan};
use super::{ComputeGraph, KernelDispatch, OpCall, PlannedCall, resolve::resolve};
use crate::{Backend, BackendError, DeviceMemory, ExecError, GraphError, clock::Instant};

/// The result of a timed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphExecResult {
    /// Kernels launched.
    pub n_launches: usize,
    /// From the first call until the device was done, in microseconds.
    pub elapsed_us: u64,
}

/// A checked graph: one typed call per op. Build it once and run it as long as its addresses stay valid.
///
/// Unless it is [planned](Program::plan) for a backend, the calls run one by one and exchange f32 values.
/// Every run of a program gives the same bits, eager or replayed, whatever happens between its calls; a plan
/// may change how values are rounded on their way from one call to the next.
#[derive(Clone, Debug)]
pub struct Program {
    calls: Vec<ProgramCall>,
    planned: Vec<PlannedCall>,
    /// The memory of forwarded activations: addresses and bytes; empty blocks are not allocated.
    blocks: [(u64, usize); BLOCKS],
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
        Ok(Program::from_calls(calls))
    }

    /// Plans the program for a backend: which calls run as one, and which results are forwarded to a later
    /// call in another form than f32. Allocates the memory of what is forwarded, which
    /// [`release_plan`](Program::release_plan) frees. The program must run on this backend from then on.
    pub fn plan<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<(), BackendError> {
        let mut calls = self.calls.iter().map(|step| &step.call);
        if let Some(call) = calls.find(|call| call.batch_invariant() && !backend.batch_invariant(call)) {
            let what = format!("{} with the same bits in any batch (batch_invariant)", call.op());
            return Err(BackendError::Unsupported { backend: backend.backend(), what });
        }
        let plan = ForwardPlan::new(backend, &self.calls);
        let mut blocks = [(0, 0); BLOCKS];
        for (number, bytes) in plan.block_bytes().into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            match backend.alloc(bytes) {
                Ok(ptr) => blocks[number] = (ptr, bytes),
                Err(error) => {
                    // The first error is the one to report.
                    let _ = free(blocks, backend);
                    return Err(error);
                }
            }
        }
        let old = std::mem::replace(&mut self.blocks, blocks);
        self.planned = plan.placed(blocks.map(|(ptr, _)| ptr));
        free(old, backend)
    }

    /// Frees the memory of a plan; the calls run one by one again.
    pub fn release_plan<M: DeviceMemory + ?Sized>(&mut self, memory: &mut M) -> Result<(), BackendError> {
        self.planned = (0..self.calls.len()).map(PlannedCall::alone).collect();
        free(std::mem::take(&mut self.blocks), memory)
    }

    /// The memory of forwarded activations: addresses and bytes.
    pub fn forward_memory(&self) -> impl Iterator<Item = (u64, usize)> {
        self.blocks.into_iter().filter(|(_, bytes)| *bytes > 0)
    }

    /// The calls as they run, in order.
    pub fn planned_calls(&self) -> &[PlannedCall] {
        &self.planned
    }

    /// Of calls that were checked.
    pub(crate) fn from_calls(calls: Vec<ProgramCall>) -> Program {
        let planned = (0..calls.len()).map(PlannedCall::alone).collect();
        Program { calls, planned, blocks: [(0, 0); BLOCKS] }
    }

    /// A program of some of its calls, planned like this, with the same forwarded activations.
    pub(super) fn with_planned(&self, calls: Vec<ProgramCall>, planned: Vec<PlannedCall>) -> Program {
        Program { calls, planned, blocks: self.blocks }
    }

    /// A program of these calls, without those that write nothing. An error names a call by its number.
    pub fn check_calls(calls: impl IntoIterator<Item = OpCall>) -> Result<Program, GraphError> {
        let mut checked = Vec::new();
        for (node, call) in calls.into_iter().enumerate() {
            let op = call.op();
            call.check().map_err(|problem| GraphError { node, op, name: None, problem })?;
            if !call.is_empty() {
                checked.push(ProgramCall { node, name: None, call });
            }
        }
        Ok(Program::from_calls(checked))
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
    /// (empty the first time; several if they are planned to run as one) and the number of kernels that they
    /// launched, and returns whether to go on. Returns the number of kernels launched, or `None` if it was
    /// stopped.
    pub fn run_observed<D: KernelDispatch + ?Sized>(
        &self,
        dispatcher: &mut D,
        mut observe: impl FnMut(&mut D, Range<usize>, usize) -> Result<bool, BackendError>,
    ) -> Result<Option<usize>, ExecError> {
        let (mut launches, mut last, mut ran) = (0, 0, 0..0);
        for planned in &self.planned {
            if !observe(dispatcher, ran.clone(), last).map_err(self.error_at(ran.start))? {
                return Ok(None);
            }
            last = dispatcher.dispatch_planned(self, planned).map_err(self.error_at(planned.calls.start))?;
            launches += last;
            ran = planned.calls.clone();
        }
        observe(dispatcher, ran.clone(), last).map_err(self.error_at(ran.start))?;
        Ok(Some(launches))
    }

    /// Turns an error of a call into one that names its node.
    fn error_at(&self, call: usize) -> impl FnOnce(BackendError) -> ExecError {
        let call = self.calls.get(call);
        move |source| match call {
            Some(ProgramCall { node, name, call }) => {
                ExecError::Node { node: *node, op: call.op(), name: name.clone(), source }
            }
            None => ExecError::Backend(source),
        }
    }
}

/// Frees all blocks, and returns the first error.
fn free<M: DeviceMemory + ?Sized>(
    blocks: [(u64, usize); BLOCKS],
    memory: &mut M,
) -> Result<(), BackendError> {
    let mut result = Ok(());
    for (ptr, _) in blocks.into_iter().filter(|(_, bytes)| *bytes > 0) {
        result = result.and(memory.free(ptr));
    }
    result
}

/// Checks the graph, runs it, and returns the number of kernels launched. Nothing runs if any node is
/// invalid.
///
/// The graph is not [planned](Program::plan) for the device: its calls run one by one and exchange f32
/// values, which may round differently than a planned program does.
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
