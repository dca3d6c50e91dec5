//! Device memory and pinned host memory.

use std::sync::Arc;

use cudarc::driver::result;

use super::Context;
use crate::error::CudaError;

/// Uninitialized device memory.
pub(crate) struct DeviceBlock {
    context: Arc<Context>,
    ptr: u64,
    bytes: usize,
}

impl DeviceBlock {
    /// `needed` is the size in error messages: `bytes` without padding.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize, needed: u64) -> Result<DeviceBlock, CudaError> {
        context.bind()?;
        // SAFETY: the context is current; `Drop` frees what is allocated here.
        let ptr = unsafe { result::malloc_sync(bytes) };
        let ptr = ptr.map_err(|error| context.allocation_error("cuMemAlloc", needed, error))?;
        Ok(DeviceBlock { context: Arc::clone(context), ptr, bytes })
    }

    pub(crate) fn ptr(&self) -> u64 {
        self.ptr
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        self.context.destroy(|| {
            // SAFETY: allocated in `new` and freed only here; the owner has waited for kernels that use it.
            unsafe { result::free_sync(self.ptr) }
        });
    }
}

/// Pinned host memory: copies run at full speed, and kernels can access it by its address. Zeroed.
pub(crate) struct PinnedBlock {
    context: Arc<Context>,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: nothing else owns the memory.
unsafe impl Send for PinnedBlock {}
// SAFETY: shared access only reads the address.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<PinnedBlock, CudaError> {
        context.bind()?;
        // SAFETY: the context is current; `Drop` frees what is allocated here.
        let ptr = unsafe { result::malloc_host(bytes, 0) };
        let ptr = ptr.map_err(|error| context.allocation_error("cuMemHostAlloc", bytes as u64, error))?;
        let ptr = ptr.cast::<u8>();
        // SAFETY: `bytes` bytes were just allocated there.
        unsafe { ptr.write_bytes(0, bytes) };
        Ok(PinnedBlock { context: Arc::clone(context), ptr, bytes })
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.context.destroy(|| {
            // SAFETY: allocated in `new` and freed only here; the owner has waited for copies that use it.
            unsafe { result::free_host(self.ptr.cast()) }
        });
    }
}
