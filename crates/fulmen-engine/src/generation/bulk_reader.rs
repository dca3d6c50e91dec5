//! Reads the weights of a bulk import, and checks them while they are in the processor's cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fulmen_core::{DType, SharedBytes, WeightReader, WeightSpec, quant};
use fulmen_model::ModelError;
use fulmen_model::source::ModelSource;

use super::weights::{Needed, as_type};

/// Reads weights from a source, from any thread.
pub(super) struct BulkReader<'a> {
    source: &'a dyn ModelSource,
    weights: Vec<Weight<'a>>,
    /// Whether values are checked for NaN and infinity.
    checked: bool,
    /// The first failure, by weight and offset, whichever thread found it.
    failure: Mutex<Option<((usize, usize), ModelError)>>,
    stopped: AtomicBool,
}

struct Weight<'a> {
    name: &'a str,
    dtype: DType,
    /// Whether the source has it in this type.
    as_stored: bool,
    whole: Mutex<Whole>,
}

/// A weight that the source has only as a whole.
struct Whole {
    /// Kept from its first part to its last.
    data: Option<SharedBytes>,
    /// Bytes that are not read yet.
    left: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> BulkReader<'a> {
    pub(super) fn new(
        source: &'a dyn ModelSource,
        needed: &[Needed<'a>],
        specs: &[WeightSpec],
        checked: bool,
    ) -> BulkReader<'a> {
        let weight = |(&Needed { name, dtype, .. }, spec): (&Needed<'a>, &WeightSpec)| Weight {
            name,
            dtype,
            as_stored: source.tensor(name).is_none_or(|info| info.dtype() == dtype),
            whole: Mutex::new(Whole { data: None, left: spec.bytes }),
        };
        let weights = needed.iter().zip(specs).map(weight).collect();
        BulkReader { source, weights, checked, failure: Mutex::new(None), stopped: AtomicBool::new(false) }
    }

    /// Ends the import: nothing more is read.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether it was ended.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Why it stopped the import.
    pub(super) fn into_failure(self) -> ModelError {
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(ModelError::Cancelled, |(_, error)| error)
    }

    fn read_part(&self, weight: &Weight<'_>, offset: usize, out: &mut [u8]) -> Result<(), ModelError> {
        if !weight.as_stored || !self.source.read_at(weight.name, offset, out)? {
            self.copy_part(weight, offset, out)?;
        }
        if !self.checked {
            return Ok(());
        }
        match quant::first_not_finite(weight.dtype, out) {
            None => Ok(()),
            Some(element) => {
                let before = offset / weight.dtype.block_bytes() * weight.dtype.block_len();
                Err(ModelError::NotFinite { name: weight.name.to_owned(), element: before + element })
            }
        }
    }

    /// Copies a part of a weight that was read, or made, as a whole.
    fn copy_part(&self, weight: &Weight<'_>, offset: usize, out: &mut [u8]) -> Result<(), ModelError> {
        let mut whole = lock(&weight.whole);
        let data = match whole.data.take() {
            Some(data) => data,
            None => as_type(self.source, weight.name, weight.dtype)?,
        };
        whole.left = whole.left.saturating_sub(out.len());
        if whole.left > 0 {
            whole.data = Some(data.clone());
        }
        drop(whole);
        out.copy_from_slice(&(*data).as_ref()[offset..offset + out.len()]);
        Ok(())
    }
}

impl WeightReader for BulkReader<'_> {
    fn read(&self, weight: usize, offset: usize, out: &mut [u8]) -> bool {
        if self.is_stopped() {
            return false;
        }
        let Err(error) = self.read_part(&self.weights[weight], offset, out) else { return true };
        let mut failure = lock(&self.failure);
        if failure.as_ref().is_none_or(|(other, _)| (weight, offset) < *other) {
            *failure = Some(((weight, offset), error));
        }
        false
    }
}
