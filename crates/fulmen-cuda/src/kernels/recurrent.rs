//! The rows of kernels with a recurrent state (`sequence_walk.cuh`).

use fulmen_core::RecurrentState;

use crate::layout::{DevicePtr, kernel_args};
use crate::queue::Queue;

kernel_args! {
    file: "sequence_walk.cuh";

    pub(super) struct StateRows {
        positions: DevicePtr,
        sequences: DevicePtr,
        fault: DevicePtr,
        m: u32,
        n_seqs: u32,
    }
}

impl StateRows {
    pub(super) fn new(
        queue: &mut Queue,
        state: RecurrentState,
        positions: u64,
        sequences: Option<u64>,
        m: u32,
    ) -> StateRows {
        let sequences = sequences.unwrap_or(0);
        StateRows { positions, sequences, fault: queue.fault(), m, n_seqs: state.n_seqs }
    }

    /// Rows that may be the first of a sequence: the second grid dimension.
    pub(super) fn starts(&self) -> u64 {
        if self.sequences == 0 { 1 } else { self.m.into() }
    }
}
