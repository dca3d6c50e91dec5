//! A device whose programs are cut at calls that the host runs.
//!
//! ```text
//!  program:  calls ─ host call ─ calls ─ host call ─ calls
//!            └ captured ┘        └ captured ┘        └ captured ┘   replayed one after the other
//! ```
//!
//! The host runs collectives of ranks whose devices have none ([`ranks`](crate::ranks)), and experts that are
//! on another device than their layer (`generation::host_experts`). Everything else is done by the device
//! itself.

use std::collections::HashMap;

use fulmen_core::{
    ActivationForm, AttentionCall, BackendError, BinaryCall, BulkImport, CopyCall, DType, DeviceMemory,
    ExecError, Extent, Fusions, KernelDispatch, MulMatCall, OpCall, PlannedCall, Program, ProgramCall,
    ReadTicket, ReplayId, RmsNormCall, RopeCall, Segment, SharedBytes, UnaryCall, WeightReader, WeightSpec,
};

use crate::Device;

/// What the host does between two segments of a program.
pub(crate) trait HostCalls: Send {
    /// Whether the host runs this call.
    fn runs(&self, call: &OpCall) -> bool;

    /// Runs it: reads its operands from the device, and writes the results there.
    fn run(&mut self, device: &mut Device, call: &OpCall) -> Result<usize, BackendError>;

    /// What the device captures in place of a program that is not to be cut.
    fn uncut(&self, program: &Program) -> Option<Program> {
        let _ = program;
        None
    }

    /// Whether the host reads weights where they were imported from.
    fn reads_imports_in_place(&self) -> bool {
        false
    }
}

/// A device, and what the host runs for it. A program that is captured becomes a list of captured segments
/// between calls of the host.
pub(crate) struct SegmentedDevice<H> {
    device: Device,
    host: H,
    captured: HashMap<u64, Vec<Captured>>,
    next: u64,
}

/// A segment of a captured program.
enum Captured {
    /// The device replays it.
    Replay(ReplayId),
    /// The device cannot capture it.
    Program(Program),
    /// The host runs it.
    Host(OpCall),
}

impl<H: HostCalls> SegmentedDevice<H> {
    pub(crate) fn new(device: Device, host: H) -> SegmentedDevice<H> {
        SegmentedDevice { device, host, captured: HashMap::new(), next: 0 }
    }

    /// The call of the host that planned calls are, if they are one.
    fn host_call<'p>(&self, program: &'p Program, planned: &PlannedCall) -> Option<&'p OpCall> {
        match program.calls().get(planned.calls.clone())? {
            [step] if self.host.runs(&step.call) => Some(&step.call),
            _ => None,
        }
    }

    fn has_host_call(&self, calls: &[ProgramCall]) -> bool {
        calls.iter().any(|step| self.host.runs(&step.call))
    }

    /// Captures the segments of a program. Those before a failure are in `segments`.
    fn capture(&mut self, program: &Program, segments: &mut Vec<Captured>) -> Result<(), BackendError> {
        let whole = self.host.uncut(program).map(|program| vec![Segment::Calls(program)]);
        for segment in whole.unwrap_or_else(|| program.segments(|call| self.host.runs(call))) {
            segments.push(match segment {
                Segment::Host(step) => Captured::Host(step.call),
                Segment::Calls(program) => match self.device.prepare(&program)? {
                    Some(id) => Captured::Replay(id),
                    None => Captured::Program(program),
                },
            });
        }
        Ok(())
    }

    fn release_segments(&mut self, segments: Vec<Captured>) {
        for segment in segments {
            if let Captured::Replay(id) = segment {
                self.device.release(id);
            }
        }
    }

    /// Runs the segments of a captured program while `go_on` says so.
    fn run_segments(
        &mut self,
        segments: &[Captured],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<usize>, BackendError> {
        let mut launches = 0;
        for segment in segments {
            let launched = match segment {
                Captured::Replay(id) => self.device.replay_while(*id, go_on)?,
                Captured::Program(program) => {
                    let backend = self.device.backend();
                    let run = program.run_while(self.device.as_mut(), &mut *go_on);
                    run.map_err(|error| of_backend(backend, error))?
                }
                Captured::Host(call) => Some(self.host.run(&mut self.device, call)?),
            };
            let Some(launched) = launched else { return Ok(None) };
            launches += launched;
        }
        Ok(Some(launches))
    }
}

/// The error of a backend in that of a program.
pub(crate) fn of_backend(backend: &'static str, error: ExecError) -> BackendError {
    match error {
        ExecError::Node { source, .. } | ExecError::Backend(source) => source,
        other => BackendError::Device { backend, call: "run", source: Box::new(other) },
    }
}

macro_rules! forward {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.device.$method(call)
        })*
    };
}

impl<H: HostCalls> KernelDispatch for SegmentedDevice<H> {
    fn backend(&self) -> &'static str {
        self.device.backend()
    }

    /// The host answers for itself when it plans what it runs.
    fn batch_invariant(&self, call: &OpCall) -> bool {
        self.host.runs(call) || self.device.batch_invariant(call)
    }

    // All other calls go through `dispatch` and `dispatch_planned`.
    forward! {
        dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall), dispatch_add(BinaryCall),
        dispatch_rope(RopeCall), dispatch_attention(AttentionCall), dispatch_copy(CopyCall),
        dispatch_mul(BinaryCall), dispatch_silu(UnaryCall),
    }

    fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
        match self.host.runs(call) {
            true => self.host.run(&mut self.device, call),
            false => self.device.dispatch(call),
        }
    }

    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        let mut segments = Vec::new();
        let captured = self.capture(program, &mut segments);
        if captured.is_err() || !segments.iter().any(|segment| matches!(segment, Captured::Replay(_))) {
            self.release_segments(segments);
            return captured.map(|()| None);
        }
        self.next += 1;
        self.captured.insert(self.next, segments);
        Ok(Some(ReplayId(self.next)))
    }

    fn captures_for_free(&self) -> bool {
        self.device.captures_for_free()
    }

    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        Ok(self.replay_while(id, &mut || true)?.unwrap_or(0))
    }

    fn replay_while(
        &mut self,
        id: ReplayId,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<usize>, BackendError> {
        let Some(segments) = self.captured.remove(&id.0) else {
            let reason = "it was not captured, or was released".to_owned();
            return Err(BackendError::Replay { program: id.0, reason });
        };
        let run = self.run_segments(&segments, go_on);
        self.captured.insert(id.0, segments);
        run
    }

    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        let kernels = |segment: &Captured| match segment {
            Captured::Replay(id) => self.device.captured_kernels(*id),
            Captured::Program(program) => Some(program.calls().len()),
            Captured::Host(_) => Some(1),
        };
        self.captured.get(&id.0)?.iter().map(kernels).sum()
    }

    fn release(&mut self, id: ReplayId) {
        if let Some(segments) = self.captured.remove(&id.0) {
            self.release_segments(segments);
        }
    }

    fn prefill_chunk(&self) -> u32 {
        self.device.prefill_chunk()
    }

    fn rows_at_once(&self) -> Option<u32> {
        self.device.rows_at_once()
    }

    fn fusions(&self) -> Fusions {
        self.device.fusions()
    }

    fn fused_calls(&self, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
        // Nothing runs as one with a call of the host.
        match next.iter().position(|step| self.host.runs(&step.call)) {
            Some(0) => 1,
            Some(end) => self.device.fused_calls(&next[..end], unfinished),
            None => self.device.fused_calls(next, unfinished),
        }
    }

    fn drains(&self, call: &OpCall) -> bool {
        self.host.runs(call) || self.device.drains(call)
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        match self.has_host_call(calls) {
            true => Vec::new(),
            false => self.device.accepted_forms(calls),
        }
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        !self.has_host_call(calls) && self.device.forwards(calls, activation)
    }

    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        let of_host = self.has_host_call(calls) || self.host.runs(next);
        !of_host && self.device.prefetches(calls, next)
    }

    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Result<usize, BackendError> {
        match self.host_call(program, planned) {
            Some(call) => self.host.run(&mut self.device, call),
            None => self.device.dispatch_planned(program, planned),
        }
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.device.synchronize()
    }
}

impl<H: HostCalls> DeviceMemory for SegmentedDevice<H> {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.device.alloc(bytes)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.device.free(ptr)
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.device.write(ptr, data)
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.device.start_read(ptr, bytes)
    }

    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.device.read(ptr, out)
    }

    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        self.device.import(bytes)
    }

    fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        self.device.import_weight(bytes, dtype, rows, width)
    }

    fn supports_weight(&self, dtype: DType) -> bool {
        self.device.supports_weight(dtype)
    }

    fn weight_bytes(&self, dtype: DType, rows: u32, width: u32) -> u64 {
        self.device.weight_bytes(dtype, rows, width)
    }

    fn import_weights(
        &mut self,
        weights: &[WeightSpec],
        reader: &dyn WeightReader,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BulkImport, BackendError> {
        self.device.import_weights(weights, reader, progress)
    }

    fn reads_imports_in_place(&self) -> bool {
        self.device.reads_imports_in_place() || self.host.reads_imports_in_place()
    }

    fn available_bytes(&self) -> Option<u64> {
        self.device.available_bytes()
    }

    fn largest_state(&self) -> Option<u64> {
        self.device.largest_state()
    }
}
