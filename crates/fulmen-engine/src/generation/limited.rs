//! A device with less memory than it has.

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::{
    ActivationForm, AttentionCall, BackendError, BinaryCall, BulkImport, Communicator, CopyCall, DType,
    DeviceGroup, DeviceMemory, Extent, Fusions, GroupSpec, KernelDispatch, KernelTime, MulMatCall, OpCall,
    PlannedCall, Program, ProgramCall, ReadTicket, ReplayId, RmsNormCall, RopeCall, SharedBytes, UnaryCall,
    WeightReader, WeightSpec,
};

use super::model::Device;

/// Limits the memory that can be allocated on a device, imports included: more is
/// [`BackendError::OutOfMemory`]. What the driver needs for itself does not count.
pub fn limit_memory(device: Device, bytes: u64) -> Device {
    Box::new(Limited { device, limit: bytes, used: 0, sizes: HashMap::new() })
}

struct Limited {
    device: Device,
    limit: u64,
    used: u64,
    /// Bytes of each allocation, by address.
    sizes: HashMap<u64, u64>,
}

impl Limited {
    fn check(&self, needed: u64) -> Result<(), BackendError> {
        let left = self.limit.saturating_sub(self.used);
        match needed <= left {
            true => Ok(()),
            false => Err(BackendError::OutOfMemory { needed, available: Some(left) }),
        }
    }

    fn add(&mut self, ptr: u64, bytes: u64) {
        self.used += bytes;
        self.sizes.insert(ptr, bytes);
    }

    /// Allocates by `f` if there is room.
    fn allocate(
        &mut self,
        bytes: usize,
        f: impl FnOnce(&mut Device) -> Result<u64, BackendError>,
    ) -> Result<u64, BackendError> {
        self.check(bytes as u64)?;
        let ptr = f(&mut self.device)?;
        self.add(ptr, bytes as u64);
        Ok(ptr)
    }
}

macro_rules! forward {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.device.$method(call)
        })*
    };
}

impl KernelDispatch for Limited {
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
        dispatch_mul(BinaryCall), dispatch_silu(UnaryCall), dispatch(OpCall),
    }

    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        self.device.prepare(program)
    }

    fn captures_for_free(&self) -> bool {
        self.device.captures_for_free()
    }

    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        self.device.replay(id)
    }

    fn replay_while(
        &mut self,
        id: ReplayId,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<usize>, BackendError> {
        self.device.replay_while(id, go_on)
    }

    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        self.device.captured_kernels(id)
    }

    fn replay_timed(&mut self, id: ReplayId) -> Result<Option<Vec<KernelTime>>, BackendError> {
        self.device.replay_timed(id)
    }

    fn release(&mut self, id: ReplayId) {
        self.device.release(id);
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
        self.device.fused_calls(next, unfinished)
    }

    fn drains(&self, call: &OpCall) -> bool {
        self.device.drains(call)
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        self.device.accepted_forms(calls)
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        self.device.forwards(calls, activation)
    }

    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        self.device.prefetches(calls, next)
    }

    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Result<usize, BackendError> {
        self.device.dispatch_planned(program, planned)
    }

    fn group_device(&self) -> Option<u64> {
        self.device.group_device()
    }

    fn device_group(&self, spec: &GroupSpec<'_>) -> Result<Arc<dyn DeviceGroup>, BackendError> {
        self.device.device_group(spec)
    }

    fn join_group(
        &mut self,
        group: &Arc<dyn DeviceGroup>,
        rank: u32,
    ) -> Result<Arc<dyn Communicator>, BackendError> {
        self.device.join_group(group, rank)
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.device.synchronize()
    }
}

impl DeviceMemory for Limited {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.allocate(bytes, |device| device.alloc(bytes))
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.device.free(ptr)?;
        self.used -= self.sizes.remove(&ptr).unwrap_or(0);
        Ok(())
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
        self.allocate((*bytes).as_ref().len(), |device| device.import(bytes))
    }

    fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        let stored = usize::try_from(self.device.weight_bytes(dtype, rows, width)).unwrap_or(usize::MAX);
        self.allocate(stored, |device| device.import_weight(bytes, dtype, rows, width))
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
        let stored = |weight: &WeightSpec| self.device.weight_bytes(weight.dtype, weight.rows, weight.width);
        let stored: Vec<u64> = weights.iter().map(stored).collect();
        self.check(stored.iter().sum())?;
        let imported = self.device.import_weights(weights, reader, progress)?;
        if let BulkImport::Imported(addresses) = &imported {
            for (&bytes, &ptr) in stored.iter().zip(addresses) {
                self.add(ptr, bytes);
            }
        }
        Ok(imported)
    }

    fn reads_imports_in_place(&self) -> bool {
        self.device.reads_imports_in_place()
    }

    fn available_bytes(&self) -> Option<u64> {
        let left = self.limit.saturating_sub(self.used);
        Some(self.device.available_bytes().map_or(left, |bytes| bytes.min(left)))
    }

    fn largest_state(&self) -> Option<u64> {
        self.device.largest_state()
    }
}
