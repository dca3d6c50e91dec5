//! What kernels report: a token, position or parameter in device memory that is out of range.
//!
//! The report lies in host memory that the device can write. A kernel touches it only when something is wrong, so that
//! looking at it after waiting for the device costs nothing. Mirrors `Fault` in `kernels/common.cuh`.

use std::sync::Arc;

use fulmen_core::BackendError;
use fulmen_core::sampling::SamplingError;

use crate::error::CudaError;
use crate::handles::{Context, PinnedBlock};

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    code: u32,
    row: u32,
    value: u32,
    limit: u32,
}

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
        if record.code == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { at.write_volatile(Record::default()) };
        Err(record.error())
    }
}

impl Record {
    fn error(self) -> BackendError {
        let Record { code, row, value, limit } = self;
        let (row, number) = (row as usize, f32::from_bits(value));
        let index = |what| BackendError::Index { what, row, value, limit };
        let parameter = |what, error: SamplingError| {
            let detail = error.to_string();
            BackendError::Parameter { what, row, detail }
        };
        let state = |error| parameter("the sampling state", error);
        let penalty = |name| parameter("the penalties", SamplingError::Penalty { name, value: number });
        match code {
            1 => index("the token"),
            2 => index("the position"),
            3 => index("the sequence"),
            4 => state(SamplingError::Temperature(number)),
            5 => state(SamplingError::TopP(number)),
            6 => state(SamplingError::MinP(number)),
            7 => parameter("the penalties", SamplingError::Repeat(number)),
            8 => penalty("frequency"),
            9 => penalty("presence"),
            _ => index("a number of an unknown kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_become_errors_that_name_the_row_and_the_number() {
        let index = Record { code: 2, row: 3, value: 64, limit: 64 }.error();
        assert_eq!(index.to_string(), "the position of row 3 is 64, but there are only 64");
        let state = Record { code: 4, row: 1, value: (-1f32).to_bits(), limit: 0 }.error();
        assert!(state.to_string().starts_with("the sampling state of row 1: the temperature"), "{state}");
    }
}
