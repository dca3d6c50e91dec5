//! Which rows of a step are chunks of one sequence, for kernels with a recurrent state
//! (`sequence_chunks.cuh`).

use fulmen_core::BackendError;

use super::recurrent::{StateRows, WalkStarts};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Rows of a chunk.
pub(super) const CHUNK_ROWS: u32 = 64;
/// The fewest rows of a range that is divided into chunks: one that is faster than a walk over its rows.
pub(super) const MIN_RANGE: u32 = 32;

kernel_args! {
    file: "sequence_chunks.cuh";
    constants: [CHUNK_ROWS, MIN_RANGE];

    pub(super) struct SequenceChunks {
        counts: DevicePtr,
        ranges: DevicePtr,
        chunks: DevicePtr,
        walked: DevicePtr,
        m: u32,
        unused: u32,
    }
}

impl SequenceChunks {
    /// Those of `m` rows of sequence 0.
    pub(super) fn of_one_sequence(m: u32) -> SequenceChunks {
        SequenceChunks { counts: 0, ranges: 0, chunks: 0, walked: 0, m, unused: 0 }
    }

    /// Whether they are in a list, beside rows that are walked.
    pub(super) fn is_list(&self) -> bool {
        self.counts != 0
    }

    /// The most ranges.
    pub(super) fn max_ranges(&self) -> u32 {
        if self.is_list() { max_listed(self.m) } else { 1 }
    }

    /// The most chunks.
    pub(super) fn max_chunks(&self) -> u32 {
        if self.is_list() { max_listed(self.m) } else { self.m.div_ceil(CHUNK_ROWS) }
    }

    /// The rows at which walks over all other rows begin.
    pub(super) fn walk_starts(&self) -> WalkStarts {
        WalkStarts::listed(self.walked)
    }
}

/// The most ranges, and the most chunks of them, that a list of `m` rows has: a range has at least
/// [`MIN_RANGE`] rows, and at most a chunk for every `MIN_RANGE` of them.
fn max_listed(m: u32) -> u32 {
    m / MIN_RANGE
}

/// The kernel that makes the list.
mod list {
    use super::{SequenceChunks, StateRows, kernel_args};

    /// The most rows.
    pub(super) const MAX_ROWS: u32 = 32_768;
    pub(super) const THREADS: u32 = 1024;

    kernel_args! {
        file: "sequence_chunk_list.cu";
        constants: [MAX_ROWS, THREADS];

        pub(super) struct ChunkListArgs {
            pub(super) rows: StateRows,
            pub(super) to: SequenceChunks,
        }
    }
}

/// What the rows of a call with a recurrent state need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKernels {
    /// A walk over the rows of each sequence.
    Walk,
    /// Chunks of the only sequence.
    Chunks,
    /// Chunks, and walks over rows that are in none, by a list.
    Listed,
}

impl RowKernels {
    /// Those of `m` rows, whose sequences may be given; `decode`: hardly any two rows are of one.
    pub(super) fn of(m: u32, sequences: Option<u64>, decode: bool) -> RowKernels {
        match sequences {
            _ if m < MIN_RANGE => RowKernels::Walk,
            None => RowKernels::Chunks,
            Some(_) if decode || m > list::MAX_ROWS => RowKernels::Walk,
            Some(_) => RowKernels::Listed,
        }
    }

    /// Launches of an op with one kernel for either.
    pub(super) fn launches(self) -> usize {
        if self == RowKernels::Listed { 3 } else { 1 }
    }
}

/// Bytes of the list of `m` rows.
pub(super) fn list_bytes(m: u32) -> usize {
    Lists::new(0, m).bytes
}

/// Where the parts of a list lie.
struct Lists {
    ranges: u64,
    chunks: u64,
    walked: u64,
    bytes: usize,
}

impl Lists {
    /// 16 bytes for counts and for each range and chunk, then the walked rows and their number.
    fn new(at: u64, m: u32) -> Lists {
        let listed = 16 * u64::from(max_listed(m));
        let ranges = at + 16;
        let (chunks, walked) = (ranges + listed, ranges + 2 * listed);
        let end = (walked + 4 * (1 + u64::from(m))).next_multiple_of(16);
        Lists { ranges, chunks, walked, bytes: (end - at) as usize }
    }
}

/// Launches the kernel that lists the chunks of rows, into [`list_bytes`] at `memory`.
pub(super) fn launch_list(
    queue: &mut Queue,
    rows: StateRows,
    m: u32,
    memory: u64,
) -> Result<SequenceChunks, BackendError> {
    let Lists { ranges, chunks, walked, .. } = Lists::new(memory, m);
    let to = SequenceChunks { counts: memory, ranges, chunks, walked, m, unused: 0 };
    let args = list::ChunkListArgs { rows, to };
    queue.launch(&Launch::new("sequence_chunk_list", "sequence_chunk_list", 1, list::THREADS), &args)?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_composition_of_a_step_has_more_chunks_than_its_list() {
        // All ranges of the same length, and the rest in one.
        for m in [32, 63, 64, 65, 300, 2048] {
            for rows in MIN_RANGE..=m {
                let (ranges, rest) = (m / rows, m % rows);
                let chunks = (ranges - 1) * rows.div_ceil(CHUNK_ROWS) + (rows + rest).div_ceil(CHUNK_ROWS);
                assert!(ranges <= max_listed(m) && chunks <= max_listed(m), "{m} rows, ranges of {rows}");
            }
        }
    }

    #[test]
    fn the_kernels_follow_from_what_is_known_of_the_rows() {
        use RowKernels::{Chunks, Listed, Walk};
        for (m, sequences, decode, expected) in [
            (31, None, false, Walk),
            (32, None, false, Chunks),
            (31, Some(1), false, Walk),
            (32, Some(1), false, Listed),
            (2048, Some(1), true, Walk),
            (32_769, Some(1), false, Walk),
        ] {
            assert_eq!(RowKernels::of(m, sequences, decode), expected, "{m} {sequences:?} {decode}");
        }
    }
}
