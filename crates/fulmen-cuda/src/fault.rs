//! Faults that kernels report: a token, position or parameter in device memory that is out of range.
//!
//! The record is in pinned host memory. Kernels write to it only when something is wrong, so reading it after
//! a synchronization costs nothing. Mirrors `Fault` in `kernels/common.cuh`.

use std::sync::Arc;

use fulmen_core::BackendError;

use crate::error::CudaError;
use crate::handles::{Context, PinnedBlock};

/// A record as [`fulmen_core::fault`] reads it: code, row, value, limit.
type Record = [u32; 4];

/// The fault record that kernels write to. Clones are the same record.
#[derive(Clone)]
pub(crate) struct FaultCell(Arc<PinnedBlock>);

impl FaultCell {
    pub(crate) fn new(context: &Arc<Context>) -> Result<FaultCell, CudaError> {
        PinnedBlock::new(context, size_of::<Record>()).map(|block| FaultCell(Arc::new(block)))
    }

    /// Its device address.
    pub(crate) fn ptr(&self) -> u64 {
        self.0.ptr() as u64
    }

    /// Returns the fault that was reported, and leaves it for [`take`](FaultCell::take). Work after the one
    /// in question may be running.
    pub(crate) fn peek(&self) -> Result<(), BackendError> {
        // SAFETY: the block holds a record. A kernel that runs now may be writing it; then the words of the
        // error are those of one fault or another, and either is an error.
        let record = unsafe { self.0.ptr().cast::<Record>().read_volatile() };
        fulmen_core::fault(record).map_or(Ok(()), Err)
    }

    /// Returns and clears the fault that was reported since the last call. The device must be idle.
    pub(crate) fn take(&mut self) -> Result<(), BackendError> {
        let at = self.0.ptr().cast::<Record>();
        // SAFETY: the block holds a record, and no kernel is running that could write it.
        let record = unsafe { at.read_volatile() };
        let Some(error) = fulmen_core::fault(record) else { return Ok(()) };
        // SAFETY: as above.
        unsafe { at.write_volatile(Record::default()) };
        Err(error)
    }
}
