//! The tokens that were drawn become the next step's. A few integers: one thread.

/// For each row: `tokens` becomes the token drawn, `positions` goes up by one but stays below `capacity`, and the row's
/// sequence in `history` (rows of `capacity` tokens) gets the token there. Sequences must have been checked.
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
    fn every_row_moves_on_in_its_own_sequence() {
        let (mut tokens, mut positions, mut history) = ([0; 3], [1, 3, 0], [0; 12]);
        let drawn = [7, 8, 9];
        advance(&drawn, Some(&[2, 0, 1]), 4, &mut tokens, &mut positions, &mut history);
        assert_eq!((tokens, positions), (drawn, [2, 3, 1]));
        assert_eq!(history, [0, 0, 0, 8, 0, 9, 0, 0, 0, 0, 7, 0]);
    }
}
