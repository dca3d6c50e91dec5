//! Prepares the next decode step from the sampled tokens. A few integers per row, so single-threaded.

/// For each row: copies the sampled token to `tokens`, increments `positions` but keeps it below `capacity`,
/// and stores the token at that position of the row's sequence in `history` (`[sequences][capacity]`).
/// Sequences must have been checked.
pub fn advance(
    drawn: &[u32],
    sequences: Option<&[u32]>,
    capacity: usize,
    tokens: &mut [u32],
    positions: &mut [u32],
    history: &mut [u32],
) {
    let last = u32::try_from(capacity - 1).unwrap_or(u32::MAX);
    for (row, &token) in drawn.iter().enumerate() {
        let sequence = sequences.map_or(0, |sequences| sequences[row] as usize);
        tokens[row] = token;
        positions[row] = positions[row].saturating_add(1).min(last);
        history[sequence * capacity + positions[row] as usize] = token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_advances_in_its_own_sequence() {
        let (mut tokens, mut positions, mut history) = ([0; 3], [1, 3, 0], [0; 12]);
        let drawn = [7, 8, 9];
        advance(&drawn, Some(&[2, 0, 1]), 4, &mut tokens, &mut positions, &mut history);
        assert_eq!((tokens, positions), (drawn, [2, 3, 1]));
        assert_eq!(history, [0, 0, 0, 8, 0, 9, 0, 0, 0, 0, 7, 0]);
    }
}
