//! Which rows of an attention over a cache decode and which prefill.
//!
//! Kernels divide the two kinds of rows differently: decoding, each row reads a sequence of its own, and its
//! positions are split among blocks; in a prefill chunk the rows share the keys and values of one sequence.
//! In a mixed step, decode rows come first, then the chunks. How many there are of each is in device memory,
//! so that one captured program serves every mixture:
//!
//! ```text
//! u32:  decode rows | chunks | 0 | 0 | first row | rows | sequence | first position | first row | …
//! ```

use bytemuck::{Pod, Zeroable};

use super::checks::Checked;
use crate::Problem;

/// What is known of the rows of an attention over a cache. Results depend on positions and sequences alone; a
/// backend may use this to choose kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionRows<T = u64> {
    /// Nothing: the backend guesses from the number of rows and sequences.
    #[default]
    Any,
    /// Decoding: hardly any two rows are of one sequence.
    Decode,
    /// Consecutive rows are mostly of one sequence, at consecutive positions.
    Prefill,
    /// Decode rows, then prefill chunks, then inactive rows, as a work list in device memory says. Rows that
    /// the list does not have are inactive: their output is not used.
    Mixed {
        /// The work list: `1 + max_chunks` rows of four u32 values, which only the host writes.
        work: T,
        /// The largest number of chunks.
        max_chunks: u32,
    },
}

impl<T> AttentionRows<T> {
    /// The work list, and the largest number of chunks.
    pub fn work(&self) -> Option<(&T, u32)> {
        match self {
            AttentionRows::Mixed { work, max_chunks } => Some((work, *max_chunks)),
            _ => None,
        }
    }

    /// The same with another kind of reference to the work list.
    pub fn map<U>(self, to: impl FnOnce(T) -> U) -> AttentionRows<U> {
        match self {
            AttentionRows::Any => AttentionRows::Any,
            AttentionRows::Decode => AttentionRows::Decode,
            AttentionRows::Prefill => AttentionRows::Prefill,
            AttentionRows::Mixed { work, max_chunks } => AttentionRows::Mixed { work: to(work), max_chunks },
        }
    }
}

/// A prefill chunk of a mixed step: rows at consecutive positions of one sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PrefillChunk {
    /// Its first row of the step.
    pub first_row: u32,
    /// Rows.
    pub rows: u32,
    /// The sequence.
    pub sequence: u32,
    /// The position of its first row.
    pub first_position: u32,
}

/// The work list of a step: rows `0..decode_rows`, then the chunks, of which there are at most `max_chunks`.
/// The chunks are in the order of their rows and do not overlap.
///
/// ```
/// use fulmen_core::{PrefillChunk, attention_work};
///
/// let chunk = PrefillChunk { first_row: 2, rows: 30, sequence: 7, first_position: 128 };
/// assert_eq!(attention_work(2, &[chunk], 2)?, [2, 1, 0, 0, 2, 30, 7, 128, 0, 0, 0, 0]);
/// # Ok::<(), fulmen_core::Problem>(())
/// ```
pub fn attention_work(
    decode_rows: u32,
    chunks: &[PrefillChunk],
    max_chunks: u32,
) -> Result<Vec<u32>, Problem> {
    let most = u64::from(max_chunks);
    if chunks.len() as u64 > most {
        let got = chunks.len() as u64;
        return Err(Problem::Size { what: "the chunks of a step", expected: most, got });
    }
    let mut next = decode_rows;
    for chunk in chunks {
        check_chunk(chunk, next)?;
        next = chunk.first_row + chunk.rows;
    }
    let mut list = vec![decode_rows, chunks.len() as u32, 0, 0];
    list.extend_from_slice(bytemuck::cast_slice(chunks));
    list.resize(4 + 4 * max_chunks as usize, 0);
    Ok(list)
}

/// Whether a chunk begins at or after row `next` and its rows and positions can be counted.
fn check_chunk(chunk: &PrefillChunk, next: u32) -> Checked<()> {
    if chunk.first_row < next {
        let (expected, got) = (next.into(), chunk.first_row.into());
        return Err(Problem::Size { what: "the first row of a chunk", expected, got });
    }
    if [chunk.first_row, chunk.first_position].iter().any(|&first| first.checked_add(chunk.rows).is_none()) {
        let (expected, got) = ((u32::MAX - chunk.first_row).into(), chunk.rows.into());
        return Err(Problem::Size { what: "the rows of a chunk", expected, got });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: PrefillChunk = PrefillChunk { first_row: 3, rows: 5, sequence: 1, first_position: 0 };

    #[test]
    fn a_work_list_has_the_size_of_its_largest_step() {
        assert_eq!(attention_work(3, &[], 2).unwrap(), [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let next = PrefillChunk { first_row: 8, ..CHUNK };
        let list = attention_work(3, &[CHUNK, next], 2).unwrap();
        assert_eq!(list, [3, 2, 0, 0, 3, 5, 1, 0, 8, 5, 1, 0]);
        assert_eq!(attention_work(0, &[], 0).unwrap(), [0; 4]);
    }

    #[test]
    fn overlapping_and_uncountable_chunks_are_refused() {
        let size = |what, expected, got| Err(Problem::Size { what, expected, got });
        let first = "the first row of a chunk";
        assert_eq!(attention_work(4, &[CHUNK], 2), size(first, 4, 3));
        assert_eq!(attention_work(0, &[CHUNK, PrefillChunk { first_row: 7, ..CHUNK }], 2), size(first, 8, 7));
        assert_eq!(attention_work(0, &[CHUNK; 3], 2), size("the chunks of a step", 2, 3));
        for chunk in
            [PrefillChunk { rows: u32::MAX, ..CHUNK }, PrefillChunk { first_position: u32::MAX, ..CHUNK }]
        {
            assert!(matches!(attention_work(0, &[chunk], 1), Err(Problem::Size { .. })), "{chunk:?}");
        }
    }

    #[test]
    fn the_reference_to_a_work_list_can_change() {
        let mixed = AttentionRows::Mixed { work: 3_usize, max_chunks: 4 };
        assert_eq!(mixed.map(|id| id as u64 + 1).work(), Some((&4, 4)));
        assert_eq!(AttentionRows::<u64>::default().map(|_| 0_usize), AttentionRows::Any);
        assert_eq!(AttentionRows::<u64>::Decode.work(), None);
    }
}
