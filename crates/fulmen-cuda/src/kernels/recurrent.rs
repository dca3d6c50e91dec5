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

    pub(super) struct WalkStarts {
        list: DevicePtr,
    }
}

/// Blocks that share a list of rows at which they begin to walk: enough that a GPU is full.
const LISTED_WALKS: u32 = 32;

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

    /// The second grid dimension for walks from `starts`.
    pub(super) fn walks(&self, starts: WalkStarts) -> u64 {
        if starts.list == 0 { self.starts() } else { self.starts().min(LISTED_WALKS.into()) }
    }
}

impl WalkStarts {
    /// Any row that is the first of its sequence.
    pub(super) const ALL: WalkStarts = WalkStarts { list: 0 };

    /// The rows of a list, whose length is in front of it.
    pub(super) fn listed(list: u64) -> WalkStarts {
        WalkStarts { list }
    }
}
