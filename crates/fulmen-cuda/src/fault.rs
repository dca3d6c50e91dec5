//! What kernels report: a token, position or parameter in device memory that is out of range.
//!
//! The report lies in host memory that the device can write. A kernel touches it only when something is wrong, so that
//! looking at it after waiting for the device costs nothing. Mirrors `Fault` in `kernels/common.cuh`.

use std::sync::Arc;

use fulmen_core::BackendError;

use crate::error::CudaError;
use crate::handles::{Context, PinnedBlock};

/// A record as [`fulmen_core::fault`] reads it: code, row, value, limit.
type Record = [u32; 4];

/// The place that kernels report to.
pub(crate) struct FaultCell(PinnedBlock);

impl FaultCell {
    pub(crate) fn new(context: &Arc<Context>) -> Result<FaultCell, CudaError> {
        PinnedBlock::new(context, size_of::<Record>()).map(FaultCell)
    }

    /// Its address, for kernels.
    pub(crate) fn ptr(&self) -> u64 {
        self.0.ptr() as u64
    }

    /// Takes what was reported since the last time; the device is idle.
    pub(crate) fn take(&mut self) -> Result<(), BackendError> {
        let at = self.0.ptr().cast::<Record>();
        // SAFETY: the block holds a record, and no kernel runs that could write it.
        let record = unsafe { at.read_volatile() };
        let Some(error) = fulmen_core::fault(record) else { return Ok(()) };
        // SAFETY: as above.
        unsafe { at.write_volatile(Record::default()) };
        Err(error)
    }
}
