//! What describes the rows of a step, as one block of device memory that one upload fills.
//!
//! ```text
//! │ positions [R] │ slots [R] │ states [R] │ work list [C + 1] │ output rows [L] │ positions [L] │ …
//! … │ slots [L] │ sampling [L] │ penalties [L] │
//! ```
//!
//! `R` rows, up to `C` prefill chunks and `L` output rows; each section begins at a multiple of
//! [`ALIGNMENT`]. Behind them lie the drawn tokens as the next step's input, which `Advance` writes and
//! nobody reads.

use std::ops::Range;

use bytemuck::Pod;
use fulmen_core::sampling::{Penalties, SampleState};
use fulmen_core::{ALIGNMENT, Bindings};
use fulmen_model::arch::names;

/// Where the sections of a program lie in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowBlock {
    sections: [Range<usize>; SECTIONS.len()],
    /// Bytes to upload.
    uploaded: usize,
    bytes: usize,
}

/// What a section has an item for.
#[derive(Clone, Copy)]
enum Items {
    Rows,
    /// Prefill chunks, and one for the head of the list.
    Chunks,
    Outputs,
}

/// Names, bytes per item, and what the items are.
const SECTIONS: [(&str, usize, Items); 10] = [
    (names::ROW_POSITIONS, 4, Items::Rows),
    (names::ROW_SEQUENCES, 4, Items::Rows),
    (names::ROW_STATES, 4, Items::Rows),
    (names::ROW_WORK, 16, Items::Chunks),
    (names::ROW_OUTPUTS, 4, Items::Outputs),
    (names::STEP_POSITIONS, 4, Items::Outputs),
    (names::STEP_SEQUENCES, 4, Items::Outputs),
    (names::STEP_SAMPLING, size_of::<SampleState>(), Items::Outputs),
    (names::STEP_PENALTIES, size_of::<Penalties>(), Items::Outputs),
    (names::STEP_TOKENS, 4, Items::Outputs),
];

/// The arrays of a step, padded to the rows of its program.
#[derive(Debug, Default)]
pub(super) struct RowArrays {
    pub(super) positions: Vec<u32>,
    pub(super) slots: Vec<u32>,
    /// Pages of recurrent states.
    pub(super) states: Vec<u32>,
    pub(super) work: Vec<u32>,
    pub(super) output_rows: Vec<u32>,
    pub(super) output_positions: Vec<u32>,
    pub(super) output_slots: Vec<u32>,
    pub(super) sampling: Vec<SampleState>,
    pub(super) penalties: Vec<Penalties>,
}

impl RowBlock {
    /// The layout for so many rows, prefill chunks and output rows.
    pub(super) fn new(rows: u32, chunks: u32, outputs: u32) -> RowBlock {
        let (mut at, mut uploaded) = (0, 0);
        let sections = SECTIONS.map(|(name, bytes, items)| {
            let count = match items {
                Items::Rows => rows as usize,
                Items::Chunks => chunks as usize + 1,
                Items::Outputs => outputs as usize,
            };
            let section = at..at + bytes * count;
            at = section.end.next_multiple_of(ALIGNMENT);
            if name != names::STEP_TOKENS {
                uploaded = section.end;
            }
            section
        });
        RowBlock { sections, uploaded, bytes: at }
    }

    /// Bytes of the block.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.max(ALIGNMENT)
    }

    /// Binds the states of a program to the block at `ptr`.
    pub(super) fn bind(&self, ptr: u64, bindings: &mut Bindings) {
        for ((name, ..), section) in SECTIONS.iter().zip(&self.sections) {
            bindings.set(name, ptr + section.start as u64);
        }
    }

    /// The bytes to upload.
    pub(super) fn pack(&self, arrays: &RowArrays) -> Vec<u8> {
        let mut bytes = vec![0; self.uploaded];
        let sections: [&[u8]; SECTIONS.len() - 1] = [
            as_bytes(&arrays.positions),
            as_bytes(&arrays.slots),
            as_bytes(&arrays.states),
            as_bytes(&arrays.work),
            as_bytes(&arrays.output_rows),
            as_bytes(&arrays.output_positions),
            as_bytes(&arrays.output_slots),
            as_bytes(&arrays.sampling),
            as_bytes(&arrays.penalties),
        ];
        for (section, data) in self.sections.iter().zip(sections) {
            bytes[section.clone()].copy_from_slice(data);
        }
        bytes
    }
}

fn as_bytes<T: Pod>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_apart_and_aligned() {
        let block = RowBlock::new(70, 2, 3);
        for pair in block.sections.windows(2) {
            assert!(pair[0].end <= pair[1].start && pair[1].start.is_multiple_of(ALIGNMENT), "{block:?}");
        }
        assert!(block.bytes() >= block.sections[9].end && block.uploaded == block.sections[8].end);
        let arrays = RowArrays {
            positions: (0..70).collect(),
            slots: vec![9; 70],
            states: vec![8; 70],
            work: (20..32).collect(),
            output_rows: vec![1, 2, 69],
            output_positions: vec![4, 5, 6],
            output_slots: vec![7; 3],
            sampling: vec![SampleState { step: 17, ..SampleState::greedy() }; 3],
            penalties: vec![Penalties::NONE; 3],
        };
        let bytes = block.pack(&arrays);
        let word = |section: usize, at: usize| {
            let start = block.sections[section].start + 4 * at;
            u32::from_ne_bytes(bytes[start..start + 4].try_into().unwrap())
        };
        assert_eq!((word(0, 69), word(1, 0), word(2, 69), word(3, 11)), (69, 9, 8, 31));
        assert_eq!((word(4, 2), word(5, 1), word(6, 2)), (69, 5, 7));
        assert_eq!((word(7, 6), word(7, 14)), (17, 17));
    }

    #[test]
    fn a_block_without_outputs_has_four_sections() {
        let block = RowBlock::new(1, 0, 0);
        assert_eq!((block.uploaded, block.bytes()), (4 * ALIGNMENT, 4 * ALIGNMENT));
    }
}
