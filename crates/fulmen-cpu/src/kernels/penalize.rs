//! Repetition, frequency and presence penalties: sorts a row's token window and updates each distinct token
//! once. Some hundred tokens per row, so single-threaded.

use fulmen_core::sampling::Penalties;

/// Penalizes one row of logits in place for the tokens in `past`, each of which must be an index of the row.
/// `sorted` is scratch memory.
pub fn penalize(logits: &mut [f32], past: &[u32], penalties: &Penalties, sorted: &mut Vec<u32>) {
    sorted.clear();
    sorted.extend_from_slice(past);
    sorted.sort_unstable();
    for same in sorted.chunk_by(|a, b| a == b) {
        let logit = &mut logits[same[0] as usize];
        *logit = penalties.apply(*logit, u32::try_from(same.len()).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_changed_once_with_its_count() {
        let penalties = Penalties { repeat: 2.0, frequency: 1.0, presence: 0.5, window: 9 };
        let mut logits = [4.0, 4.0, -4.0, 4.0];
        penalize(&mut logits, &[2, 0, 2, 0, 0], &penalties, &mut Vec::new());
        assert_eq!(logits, [-1.5, 4.0, -10.5, 4.0]);
    }
}
