//! The rows of a step by sequence, for kernels with a recurrent state.

use fulmen_core::NO_STATE;

/// Rows of a step, grouped by sequence.
pub(crate) struct SequenceRows {
    /// Row numbers, those of a sequence together and in their order.
    rows: Vec<u32>,
    /// The sequence and the end of its rows.
    ends: Vec<(u32, usize)>,
}

impl SequenceRows {
    /// Groups `m` rows but for the inactive ones; without sequence numbers all are of sequence 0.
    pub(crate) fn new(sequences: Option<&[u32]>, m: usize) -> SequenceRows {
        let of = |row: u32| sequences.map_or(0, |sequences| sequences[row as usize]);
        let mut rows: Vec<u32> = (0..m as u32).filter(|&row| of(row) != NO_STATE).collect();
        // Stable: the rows of a sequence stay in order.
        rows.sort_by_key(|&row| of(row));
        let mut ends = Vec::new();
        for run in rows.chunk_by(|&a, &b| of(a) == of(b)) {
            let first = ends.last().map_or(0, |&(_, end)| end);
            ends.push((of(run[0]), first + run.len()));
        }
        SequenceRows { rows, ends }
    }

    /// Sequences that have rows.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The `at`-th of these sequences, and its rows in their order.
    pub(crate) fn get(&self, at: usize) -> (usize, &[u32]) {
        let (sequence, end) = self.ends[at];
        let first = if at == 0 { 0 } else { self.ends[at - 1].1 };
        (sequence as usize, &self.rows[first..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_sequence_keep_their_order() {
        let rows = SequenceRows::new(Some(&[3, 1, 3, 0, 3, 1]), 6);
        let all: Vec<(usize, &[u32])> = (0..rows.len()).map(|at| rows.get(at)).collect();
        assert_eq!(all, [(0, &[3][..]), (1, &[1, 5]), (3, &[0, 2, 4])]);
        let rows = SequenceRows::new(Some(&[NO_STATE, 1, NO_STATE]), 3);
        assert_eq!((rows.len(), rows.get(0)), (1, (1, &[1][..])));
        let rows = SequenceRows::new(None, 2);
        assert_eq!((rows.len(), rows.get(0)), (1, (0, &[0, 1][..])));
        assert_eq!(SequenceRows::new(None, 0).len(), 0);
    }
}
