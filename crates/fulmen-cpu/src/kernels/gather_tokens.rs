//! The tokens of rows from the history. A few integers per row, so single-threaded.

use fulmen_core::sampling::NO_TOKEN;

/// For each row: copies the token at its position of its sequence in `history` (`[sequences][capacity]`) to
/// `out`. [`NO_TOKEN`] becomes 0, in the history as well. Sequences and positions must have been checked.
pub fn gather_tokens(
    history: &mut [u32],
    capacity: usize,
    positions: &[u32],
    sequences: Option<&[u32]>,
    out: &mut [u32],
) {
    for (row, out) in out.iter_mut().enumerate() {
        let sequence = sequences.map_or(0, |sequences| sequences[row] as usize);
        let token = &mut history[sequence * capacity + positions[row] as usize];
        if *token == NO_TOKEN {
            *token = 0;
        }
        *out = *token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_find_their_tokens_and_replace_missing_ones() {
        let mut history = [1, 2, 3, 4, NO_TOKEN, 6];
        let mut out = [9; 4];
        gather_tokens(&mut history, 3, &[2, 1, 1, 0], Some(&[0, 1, 1, 1]), &mut out);
        assert_eq!((out, history), ([3, 0, 0, 4], [1, 2, 3, 4, 0, 6]));
    }
}
