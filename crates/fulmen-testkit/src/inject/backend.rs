//! A backend that fails.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use fulmen_core::{
    ActivationForm, AttentionCall, Backend, BackendError, BinaryCall, Communicator, CopyCall, DType,
    DeviceGroup, DeviceMemory, Extent, Fusions, GroupSpec, KernelDispatch, KernelTime, MulMatCall, OpCall,
    PlannedCall, Program, ProgramCall, ReadTicket, ReplayId, RmsNormCall, RopeCall, SharedBytes, UnaryCall,
};

use super::{Injected, Injector, Site};

/// A backend whose calls may fail. Clones share the backend, so that it can be given to a model and looked at
/// afterwards. Freeing never fails: nobody could be told.
#[derive(Debug)]
pub struct Failing<B> {
    shared: Arc<Mutex<Inner<B>>>,
    injector: Injector,
    name: &'static str,
}

#[derive(Debug)]
struct Inner<B> {
    backend: B,
    live: HashSet<u64>,
}

impl<B> Clone for Failing<B> {
    fn clone(&self) -> Failing<B> {
        Failing { shared: Arc::clone(&self.shared), injector: self.injector.clone(), name: self.name }
    }
}

impl<B: Backend> Failing<B> {
    /// Wraps a backend.
    pub fn new(backend: B, injector: &Injector) -> Failing<B> {
        let name = backend.backend();
        let shared = Arc::new(Mutex::new(Inner { backend, live: HashSet::new() }));
        Failing { shared, injector: injector.clone(), name }
    }

    /// Number of allocations and imports that were not freed.
    pub fn live(&self) -> usize {
        self.inner().live.len()
    }

    fn inner(&self) -> MutexGuard<'_, Inner<B>> {
        self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Calls the backend unless the call is to fail.
    fn call<T>(
        &self,
        site: Site,
        call: &'static str,
        f: impl FnOnce(&mut B) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        self.injector.ask(site).map_err(|fault| self.error(call, fault))?;
        f(&mut self.inner().backend)
    }

    fn error(&self, call: &'static str, fault: Injected) -> BackendError {
        BackendError::Device { backend: self.name, call, source: Box::new(fault) }
    }

    /// Allocates by `f` unless that is to fail.
    fn allocate(
        &self,
        bytes: usize,
        f: impl FnOnce(&mut B) -> Result<u64, BackendError>,
    ) -> Result<u64, BackendError> {
        let full = |_| BackendError::OutOfMemory { needed: bytes as u64, available: None };
        self.injector.ask(Site::Alloc).map_err(full)?;
        let mut inner = self.inner();
        let ptr = f(&mut inner.backend)?;
        inner.live.insert(ptr);
        Ok(ptr)
    }
}

macro_rules! forward {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.call(Site::Launch, stringify!($method), |backend| backend.$method(call))
        })*
    };
}

impl<B: Backend> KernelDispatch for Failing<B> {
    fn backend(&self) -> &'static str {
        self.name
    }

    fn batch_invariant(&self, call: &OpCall) -> bool {
        self.inner().backend.batch_invariant(call)
    }

    forward! {
        dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall), dispatch_add(BinaryCall),
        dispatch_rope(RopeCall), dispatch_attention(AttentionCall), dispatch_copy(CopyCall),
        dispatch_mul(BinaryCall), dispatch_silu(UnaryCall), dispatch(OpCall),
    }

    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        self.call(Site::Launch, "prepare", |backend| backend.prepare(program))
    }

    fn captures_for_free(&self) -> bool {
        self.inner().backend.captures_for_free()
    }

    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        self.call(Site::Launch, "replay", |backend| backend.replay(id))
    }

    fn replay_while(
        &mut self,
        id: ReplayId,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<usize>, BackendError> {
        self.call(Site::Launch, "replay_while", |backend| backend.replay_while(id, go_on))
    }

    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        self.inner().backend.captured_kernels(id)
    }

    fn replay_timed(&mut self, id: ReplayId) -> Result<Option<Vec<KernelTime>>, BackendError> {
        self.call(Site::Launch, "replay_timed", |backend| backend.replay_timed(id))
    }

    fn release(&mut self, id: ReplayId) {
        self.inner().backend.release(id);
    }

    fn prefill_chunk(&self) -> u32 {
        self.inner().backend.prefill_chunk()
    }

    fn fusions(&self) -> Fusions {
        self.inner().backend.fusions()
    }

    fn fused_calls(&self, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
        self.inner().backend.fused_calls(next, unfinished)
    }

    fn drains(&self, call: &OpCall) -> bool {
        self.inner().backend.drains(call)
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        self.inner().backend.accepted_forms(calls)
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        self.inner().backend.forwards(calls, activation)
    }

    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        self.inner().backend.prefetches(calls, next)
    }

    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Result<usize, BackendError> {
        self.call(Site::Launch, "dispatch_planned", |backend| backend.dispatch_planned(program, planned))
    }

    fn group_device(&self) -> Option<u64> {
        self.inner().backend.group_device()
    }

    fn device_group(&self, spec: &GroupSpec<'_>) -> Result<Arc<dyn DeviceGroup>, BackendError> {
        self.inner().backend.device_group(spec)
    }

    fn join_group(
        &mut self,
        group: &Arc<dyn DeviceGroup>,
        rank: u32,
    ) -> Result<Arc<dyn Communicator>, BackendError> {
        self.inner().backend.join_group(group, rank)
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.call(Site::Launch, "synchronize", |backend| backend.synchronize())
    }
}

impl<B: Backend> DeviceMemory for Failing<B> {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.allocate(bytes, |backend| backend.alloc(bytes))
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        let mut inner = self.inner();
        inner.live.remove(&ptr);
        inner.backend.free(ptr)
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.call(Site::Write, "write", |backend| backend.write(ptr, data))
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.call(Site::Read, "read", |backend| backend.start_read(ptr, bytes))
    }

    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.call(Site::Read, "read", |backend| backend.read(ptr, out))
    }

    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        self.allocate((*bytes).as_ref().len(), |backend| backend.import(bytes))
    }

    fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        let len = (*bytes).as_ref().len();
        self.allocate(len, |backend| backend.import_weight(bytes, dtype, rows, width))
    }

    fn supports_weight(&self, dtype: DType) -> bool {
        self.inner().backend.supports_weight(dtype)
    }

    fn weight_bytes(&self, dtype: DType, rows: u32, width: u32) -> u64 {
        self.inner().backend.weight_bytes(dtype, rows, width)
    }

    fn reads_imports_in_place(&self) -> bool {
        self.inner().backend.reads_imports_in_place()
    }

    fn available_bytes(&self) -> Option<u64> {
        self.inner().backend.available_bytes()
    }

    fn largest_state(&self) -> Option<u64> {
        self.inner().backend.largest_state()
    }
}
