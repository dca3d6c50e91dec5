//! The device of a rank: a device, and its end of a communicator.

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::{
    ActivationForm, AllGatherCall, AllReduceCall, AttentionCall, BackendError, BinaryCall, BulkImport,
    Communicator, CopyCall, DType, DeviceMemory, ExecError, Extent, Fusions, KernelDispatch, MulMatCall,
    OpCall, PlannedCall, Program, ProgramCall, ReadTicket, ReplayId, RmsNormCall, RopeCall, Segment,
    SharedBytes, UnaryCall, WeightReader, WeightSpec,
};

use crate::Device;

/// A device that runs collectives by reading their operands, exchanging them through a communicator of the
/// host and writing the results. Everything else is done by the device itself. A program that is captured
/// becomes a list of captured segments between collectives.
///
/// Without a communicator it is a rank alone, which is captured as a whole: see [`Program::of_rank_alone`].
pub(crate) struct RankDevice {
    device: Device,
    communicator: Option<Arc<dyn Communicator>>,
    captured: HashMap<u64, Vec<Captured>>,
    next: u64,
}

/// A segment of a captured program.
enum Captured {
    /// The device replays it.
    Replay(ReplayId),
    /// The device cannot capture it.
    Program(Program),
    Collective(OpCall),
}

impl RankDevice {
    pub(crate) fn new(device: Device, communicator: Arc<dyn Communicator>) -> RankDevice {
        RankDevice { device, communicator: Some(communicator), captured: HashMap::new(), next: 0 }
    }

    /// A rank without the others.
    pub(crate) fn alone(device: Device) -> RankDevice {
        RankDevice { device, communicator: None, captured: HashMap::new(), next: 0 }
    }

    /// The communicator for a collective of this many ranks; `None` for a rank alone.
    fn communicator(&self, ranks: u32) -> Result<Option<Arc<dyn Communicator>>, BackendError> {
        match &self.communicator {
            Some(communicator) if communicator.size() != ranks => {
                let what = format!("a collective of {ranks} ranks in a group of {}", communicator.size());
                Err(BackendError::Unsupported { backend: self.backend(), what })
            }
            communicator => Ok(communicator.clone()),
        }
    }

    fn read_f32(&mut self, ptr: u64, count: usize) -> Result<Vec<f32>, BackendError> {
        let mut values = vec![0f32; count];
        self.device.read(ptr, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Whether a call is not the device's to run as it is.
    fn changes(&self, call: &OpCall) -> bool {
        call.is_collective() || (self.communicator.is_none() && matches!(call, OpCall::Sample(_)))
    }

    /// The call that planned calls are, if it is one that the device cannot run as it is.
    fn changed<'p>(&self, program: &'p Program, planned: &PlannedCall) -> Option<&'p OpCall> {
        match program.calls().get(planned.calls.clone())? {
            [step] if self.changes(&step.call) => Some(&step.call),
            _ => None,
        }
    }

    /// Captures the segments of a program. Those before a failure are in `segments`.
    fn capture(&mut self, program: &Program, segments: &mut Vec<Captured>) -> Result<(), BackendError> {
        if self.communicator.is_none() {
            let alone = program.of_rank_alone();
            let captured = self.device.prepare(&alone)?;
            segments.push(captured.map_or(Captured::Program(alone), Captured::Replay));
            return Ok(());
        }
        for segment in program.segments() {
            segments.push(match segment {
                Segment::Collective(step) => Captured::Collective(step.call),
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
                    program.run_while(self.device.as_mut(), &mut *go_on).map_err(of_backend)?
                }
                Captured::Collective(call) => Some(self.dispatch(call)?),
            };
            let Some(launched) = launched else { return Ok(None) };
            launches += launched;
        }
        Ok(Some(launches))
    }
}

/// The error of the backend in that of a program.
fn of_backend(error: ExecError) -> BackendError {
    match error {
        ExecError::Node { source, .. } | ExecError::Backend(source) => source,
        other => BackendError::Device { backend: "rank", call: "run", source: Box::new(other) },
    }
}

/// Rows of all ranks beside each other, from the rows of one rank behind those of another.
fn beside_each_other(gathered: &[f32], ranks: usize, m: usize, width: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(gathered.len());
    for row in 0..m {
        for rank in 0..ranks {
            let first = (rank * m + row) * width;
            rows.extend_from_slice(&gathered[first..first + width]);
        }
    }
    rows
}

macro_rules! forward {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.device.$method(call)
        })*
    };
}

impl KernelDispatch for RankDevice {
    fn backend(&self) -> &'static str {
        self.device.backend()
    }

    fn batch_invariant(&self, call: &OpCall) -> bool {
        self.device.batch_invariant(call)
    }

    // All other calls go through `dispatch` and `dispatch_planned`.
    forward! {
        dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall), dispatch_add(BinaryCall),
        dispatch_rope(RopeCall), dispatch_attention(AttentionCall), dispatch_copy(CopyCall),
        dispatch_mul(BinaryCall), dispatch_silu(UnaryCall),
    }

    fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
        match call {
            OpCall::AllReduce(call) => self.dispatch_all_reduce(call),
            OpCall::AllGather(call) => self.dispatch_all_gather(call),
            call if self.changes(call) => self.device.dispatch(&call.of_rank_alone()),
            call => self.device.dispatch(call),
        }
    }

    fn dispatch_all_reduce(&mut self, call: &AllReduceCall) -> Result<usize, BackendError> {
        let Some(communicator) = self.communicator(call.ranks)? else {
            return self.device.dispatch(&OpCall::AllReduce(call.clone()).of_rank_alone());
        };
        let mut values = self.read_f32(call.input, call.n_elements)?;
        communicator.all_reduce(&mut values)?;
        self.device.write(call.output, bytemuck::cast_slice(&values))?;
        Ok(1)
    }

    fn dispatch_all_gather(&mut self, call: &AllGatherCall) -> Result<usize, BackendError> {
        let Some(communicator) = self.communicator(call.ranks)? else {
            return self.device.dispatch(&OpCall::AllGather(call.clone()).of_rank_alone());
        };
        let (m, width, ranks) = (call.m as usize, call.width as usize, call.ranks as usize);
        let values = self.read_f32(call.input, m * width)?;
        let gathered = communicator.all_gather(&values)?;
        let rows = beside_each_other(&gathered, ranks, m, width);
        self.device.write(call.output, bytemuck::cast_slice(&rows))?;
        Ok(1)
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
            Captured::Collective(_) => Some(1),
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

    fn fusions(&self) -> Fusions {
        self.device.fusions()
    }

    fn fused_calls(&self, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
        // Nothing runs as one with a collective.
        match next.iter().position(|step| step.call.is_collective()) {
            Some(0) => 1,
            Some(end) => self.device.fused_calls(&next[..end], unfinished),
            None => self.device.fused_calls(next, unfinished),
        }
    }

    fn drains(&self, call: &OpCall) -> bool {
        call.is_collective() || self.device.drains(call)
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        match calls {
            [step, ..] if step.call.is_collective() => Vec::new(),
            calls => self.device.accepted_forms(calls),
        }
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        !calls.iter().any(|step| step.call.is_collective()) && self.device.forwards(calls, activation)
    }

    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        let collective = calls.iter().any(|step| step.call.is_collective()) || next.is_collective();
        !collective && self.device.prefetches(calls, next)
    }

    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Result<usize, BackendError> {
        match self.changed(program, planned) {
            Some(call) => self.dispatch(call),
            None => self.device.dispatch_planned(program, planned),
        }
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.device.synchronize()
    }
}

impl DeviceMemory for RankDevice {
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
        self.device.reads_imports_in_place()
    }

    fn available_bytes(&self) -> Option<u64> {
        self.device.available_bytes()
    }

    fn largest_state(&self) -> Option<u64> {
        self.device.largest_state()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_ranks_are_beside_each_other() {
        let gathered = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
        let rows = beside_each_other(&gathered, 2, 3, 2);
        assert_eq!(rows, [1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0, 5.0, 6.0, 50.0, 60.0]);
        assert_eq!(beside_each_other(&gathered, 1, 6, 2), gathered);
    }
}
