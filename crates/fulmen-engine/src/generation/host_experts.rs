//! Experts on the host: what runs between two segments of a program whose mixtures are on another device.
//!
//! ```text
//!  device:  attention, router ─► rows, expert ids, weights ┐            ┌► + residual, next layer …
//!  host:                                                   └► experts ──┘ rows
//! ```
//!
//! The router has chosen on the device, so both sides agree. Weights are read where they were imported from,
//! such as a mapped file. The experts of a layer are a program of their own for each number of rows; all of
//! them share one arena, because one runs at a time.

use std::collections::HashMap;

use fulmen_core::{
    Backend, BackendError, BoundGraph, HostSegmentCall, LogicalGraph, OpCall, Plan, PlanOptions, TensorDef,
    timeline,
};
use fulmen_model::ModelError;
use fulmen_model::arch::{HostSegment, names};
use fulmen_model::source::ModelSource;

use super::model::Device;
use super::weights::{self, Progress, Weights};
use crate::segmented::{HostCalls, of_backend};

/// Numbers of rows whose programs are kept; the least recently used is dropped first.
const MAX_ROWS: usize = 64;

/// What the host is to run, before its weights are loaded.
pub(super) struct HostPlan {
    device: Device,
    segments: HashMap<u32, LogicalGraph>,
    weights: Vec<TensorDef>,
}

impl HostPlan {
    /// Fails if the device has no kernels for a weight's type.
    pub(super) fn new(
        device: Device,
        segments: Vec<HostSegment>,
        source: &dyn ModelSource,
    ) -> Result<HostPlan, ModelError> {
        let weights: Vec<TensorDef> =
            segments.iter().flat_map(|segment| weights::of(&segment.graph)).cloned().collect();
        weights::check_types(&weights, source, device.as_ref())?;
        let fusions = device.fusions();
        let fused = |segment: HostSegment| (segment.number, segment.graph.fuse(&fusions));
        let segments = segments.into_iter().map(fused).collect();
        Ok(HostPlan { device, segments, weights })
    }

    /// Bytes of the weights.
    pub(super) fn weight_bytes(&self) -> u64 {
        weights::weight_bytes(&self.weights)
    }

    /// The bytes of the arena of steps of so many rows.
    fn arena_bytes(&self, rows: u32) -> Result<usize, ModelError> {
        let bytes = |graph| Ok(plan(graph, rows, false)?.arena_bytes);
        self.segments.values().map(bytes).try_fold(1, |most, bytes| bytes.map(|bytes| most.max(bytes)))
    }

    /// Fails if the device reports less memory than weights and steps of so many rows need.
    pub(super) fn check_memory(&self, rows: u32) -> Result<(), ModelError> {
        let Some(available) = self.device.available_bytes() else { return Ok(()) };
        let stored = weights::stored_bytes(&self.weights, self.device.as_ref());
        let activations = self.arena_bytes(rows)? as u64;
        match stored.saturating_add(activations) <= available {
            true => Ok(()),
            false => {
                let (device, weights) = (self.device.backend(), stored);
                Err(ModelError::Memory { device, weights, cache: 0, activations, available })
            }
        }
    }

    /// Imports the weights, and allocates what steps of so many rows need.
    pub(super) fn load(
        self,
        source: &dyn ModelSource,
        rows: u32,
        checked: bool,
        progress: &mut Progress<'_>,
    ) -> Result<HostExperts, ModelError> {
        let arena_bytes = self.arena_bytes(rows)?;
        let HostPlan { mut device, segments, weights } = self;
        let bytes = weights::weight_bytes(&weights);
        let weights = timeline::span_of_bytes("load the experts of the CPU", bytes, || {
            Weights::load(device.as_mut(), &weights, source, &[], checked, progress)
        })?;
        let (programs, arena) = (HashMap::new(), None);
        // What was loaded before a failure is freed when it is dropped.
        let mut experts = HostExperts { device, weights, segments, programs, arena, clock: 0 };
        experts.reserve(arena_bytes)?;
        Ok(experts)
    }
}

/// The memory plan of a segment for a number of rows.
fn plan(graph: &LogicalGraph, rows: u32, batch_invariant: bool) -> Result<Plan, ModelError> {
    let rows = |name: &str| name.starts_with(names::HOST_INPUTS).then_some(rows);
    // The graph is fused already.
    let fusions = fulmen_core::Fusions::none();
    Ok(graph.with_rows(rows)?.plan(&PlanOptions { fusions, batch_invariant, ..PlanOptions::default() })?)
}

/// The experts of some layers on the host.
pub(super) struct HostExperts {
    device: Device,
    weights: Weights,
    /// Fused graphs, by number.
    segments: HashMap<u32, LogicalGraph>,
    programs: HashMap<RowsKey, RowsPrograms>,
    /// The memory of all programs, and its bytes.
    arena: Option<(u64, usize)>,
    clock: u64,
}

/// What programs differ in beside their segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowsKey {
    rows: u32,
    batch_invariant: bool,
}

/// The programs of a number of rows, by segment.
#[derive(Default)]
struct RowsPrograms {
    bound: HashMap<u32, BoundGraph>,
    last_use: u64,
}

impl HostExperts {
    /// Bytes of the weights.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.weights.bytes
    }

    /// Makes room for programs with so large an arena. Those that are bound to a smaller one are dropped.
    fn reserve(&mut self, bytes: usize) -> Result<u64, BackendError> {
        if let Some((ptr, size)) = self.arena
            && bytes <= size
        {
            return Ok(ptr);
        }
        let ptr = self.device.alloc(bytes)?;
        self.release_programs();
        if let Some((smaller, _)) = self.arena.replace((ptr, bytes)) {
            self.device.free(smaller)?;
        }
        Ok(ptr)
    }

    /// Binds the program of a call, unless it is kept.
    fn bind(&mut self, call: &HostSegmentCall) -> Result<(), ModelError> {
        self.clock += 1;
        let key = RowsKey { rows: call.m, batch_invariant: call.batch_invariant };
        if let Some(programs) = self.programs.get_mut(&key)
            && programs.bound.contains_key(&call.segment)
        {
            programs.last_use = self.clock;
            return Ok(());
        }
        let graph = self.segments.get(&call.segment);
        let graph = graph.ok_or(ModelError::Without { what: "layer of this number on the host" })?;
        let plan = plan(graph, key.rows, key.batch_invariant)?;
        let arena = self.reserve(plan.arena_bytes.max(1))?;
        if !self.programs.contains_key(&key) && self.programs.len() >= MAX_ROWS {
            let oldest = self.programs.iter().min_by_key(|(_, programs)| programs.last_use);
            if let Some(oldest) = oldest.map(|(&key, _)| key) {
                self.release_rows(oldest);
            }
        }
        let mut bound = plan.bind_at(arena, &self.weights.bindings)?;
        bound.plan_calls(self.device.as_mut())?;
        let programs = self.programs.entry(key).or_default();
        programs.last_use = self.clock;
        programs.bound.insert(call.segment, bound);
        Ok(())
    }

    /// Reads the rows from the device, computes the experts and writes the results to the device.
    fn compute(&mut self, device: &mut dyn Backend, call: &HostSegmentCall) -> Result<(), ModelError> {
        let read = |input: &fulmen_core::HostInput| device.start_read(input.ptr, input.bytes(call.m));
        let inputs = call.inputs.iter().map(read).collect::<Result<Vec<_>, BackendError>>()?;
        // While the device computes what is read.
        self.bind(call)?;
        let key = RowsKey { rows: call.m, batch_invariant: call.batch_invariant };
        let programs = self.programs.get(&key).and_then(|programs| programs.bound.get(&call.segment));
        let bound = programs.ok_or(ModelError::Without { what: "program for the experts" })?;
        for (number, input) in inputs.into_iter().enumerate() {
            bound.write(self.device.as_mut(), &names::host_input(number), &input.wait()?)?;
        }
        bound.run(self.device.as_mut())?;
        let rows = bound.read(self.device.as_mut(), names::HOST_OUTPUT)?;
        Ok(device.write(call.output, &rows)?)
    }

    fn release_rows(&mut self, key: RowsKey) {
        for (_, bound) in self.programs.remove(&key).unwrap_or_default().bound {
            // There is no caller to report an error to.
            let _ = bound.release_calls(self.device.as_mut());
        }
    }

    fn release_programs(&mut self) {
        let keys: Vec<RowsKey> = self.programs.keys().copied().collect();
        keys.into_iter().for_each(|key| self.release_rows(key));
    }
}

impl HostCalls for HostExperts {
    fn runs(&self, call: &OpCall) -> bool {
        matches!(call, OpCall::HostSegment(_))
    }

    fn run(&mut self, device: &mut Device, call: &OpCall) -> Result<usize, BackendError> {
        let OpCall::HostSegment(call) = call else { return device.dispatch(call) };
        let computed = self.compute(device.as_mut(), call);
        computed.map(|()| 1).map_err(|error| backend_error(self.device.backend(), error))
    }

    fn reads_imports_in_place(&self) -> bool {
        self.device.reads_imports_in_place()
    }
}

/// The error of a step. Out of memory is not reported as such: an earlier part of the step has run already,
/// so that it cannot simply be run again later.
fn backend_error(backend: &'static str, error: ModelError) -> BackendError {
    let call = "computing experts on the host";
    let error = match error {
        ModelError::Backend(error) => error,
        ModelError::Exec(error) => of_backend(backend, error),
        other => return BackendError::Device { backend, call, source: Box::new(other) },
    };
    match error {
        BackendError::OutOfMemory { .. } => BackendError::Device { backend, call, source: Box::new(error) },
        error => error,
    }
}

impl Drop for HostExperts {
    fn drop(&mut self) {
        self.release_programs();
        if let Some((ptr, _)) = self.arena.take() {
            // There is no caller to report an error to.
            let _ = self.device.free(ptr);
        }
        self.weights.free(self.device.as_mut());
    }
}
