//! Who may launch kernels whose blocks wait for each other.
//!
//! Such a kernel needs all multiprocessors at once. Two of them, on two streams, could each have a part and wait for the rest
//! for ever; so one queue of a device has the right to launch them, for as long as it lives.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The devices whose right is taken.
static TAKEN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// The right to all multiprocessors of a device; others may take it when this is dropped.
#[derive(Debug)]
pub(crate) struct WholeDevice {
    ordinal: usize,
}

impl WholeDevice {
    /// The right, if nobody has it.
    pub(crate) fn take(ordinal: usize) -> Option<WholeDevice> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        // Made only where it is given: to drop one gives the right back.
        if taken.insert(ordinal) { Some(WholeDevice { ordinal }) } else { None }
    }
}

impl Drop for WholeDevice {
    fn drop(&mut self) {
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.ordinal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_right_at_a_time() {
        let first = WholeDevice::take(1000).expect("nobody has it");
        assert!(WholeDevice::take(1000).is_none());
        assert!(WholeDevice::take(1001).is_some(), "another device");
        drop(first);
        assert!(WholeDevice::take(1000).is_some());
    }
}
