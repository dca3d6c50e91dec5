//! The primary context of a device.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{
    result::{self, DriverError},
    sys::{CUcontext, CUdevice, CUresult},
};

use crate::error::CudaError;

/// The primary context of a device, which is shared within the process.
pub(crate) struct Context {
    device: CUdevice,
    raw: CUcontext,
    /// The first error that made the context unusable; every later call fails with it.
    lost: OnceLock<CudaError>,
}

// SAFETY: contexts may be used from any thread; a thread makes them current before each use.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the context of a device.
    pub(crate) fn retain(device: CUdevice) -> Result<Arc<Context>, CudaError> {
        // SAFETY: `device` comes from cuDeviceGet; `Drop` releases what is retained here.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let raw = raw.map_err(|error| CudaError::new("cuDevicePrimaryCtxRetain", error))?;
        Ok(Arc::new(Context { device, raw, lost: OnceLock::new() }))
    }

    /// Makes it current on this thread, as every driver call requires. An error if the context was lost.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        if let Some(lost) = self.lost.get() {
            return Err(lost.clone());
        }
        self.make_current()
    }

    fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is alive as long as `self`.
        let bound = unsafe { result::ctx::set_current(self.raw) };
        bound.map_err(|error| self.error("cuCtxSetCurrent", error))
    }

    /// Converts an error of the driver, and keeps it if it made the context unusable.
    pub(crate) fn error(&self, call: &'static str, error: DriverError) -> CudaError {
        let error = CudaError::new(call, error);
        if matches!(error, CudaError::ContextLost { .. }) {
            return self.lost.get_or_init(|| error).clone();
        }
        error
    }

    /// The same for allocations.
    pub(crate) fn allocation_error(&self, call: &'static str, needed: u64, error: DriverError) -> CudaError {
        if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return CudaError::OutOfMemory { needed, free: self.free_bytes() };
        }
        self.error(call, error)
    }

    /// Free bytes on the device.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.bind().ok()?;
        result::mem_get_info().ok().map(|(free, _)| free as u64)
    }

    /// Runs `destroy` in this context, for the `Drop` of a handle. Errors are ignored: they cannot be
    /// reported, and a lost context has already destroyed the handle.
    pub(crate) fn destroy(&self, destroy: impl FnOnce() -> Result<(), DriverError>) {
        if self.make_current().is_ok() {
            let _ = destroy();
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `retain`, and no handle is left: each keeps an `Arc` of this.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
