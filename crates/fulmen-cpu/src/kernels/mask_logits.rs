//! Logit biases and token masks on a row of logits. One pass over the words of the mask; words that allow all
//! of their tokens are skipped. Bound by memory bandwidth; single-threaded.

/// Adds the biases to the row's logits, then sets those of the tokens that the mask excludes to -inf. Every
/// token of `biases` must be an index of the row, and the mask has a bit for each logit.
pub fn mask_logits(logits: &mut [f32], biases: &[[u32; 2]], mask: Option<&[u32]>) {
    for &[token, value] in biases {
        let (logit, bias) = (&mut logits[token as usize], f32::from_bits(value));
        *logit = if bias == f32::NEG_INFINITY { bias } else { *logit + bias };
    }
    let Some(mask) = mask else { return };
    for (logits, &word) in logits.chunks_mut(32).zip(mask) {
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_come_before_the_mask() {
        let mut logits: Vec<f32> = (0..70).map(|i| i as f32).collect();
        let mask = [u32::MAX, 0, 1 << 4];
        let biases = [[40, 100f32.to_bits()], [68, 0.5f32.to_bits()], [3, f32::NEG_INFINITY.to_bits()]];
        mask_logits(&mut logits, &biases, Some(&mask));
        for (i, &logit) in logits.iter().enumerate() {
            let expected = match i {
                3 => f32::NEG_INFINITY,
                68 => 68.5,
                0..32 => i as f32,
                _ => f32::NEG_INFINITY,
            };
            assert_eq!(logit, expected, "logit {i}");
        }
    }
}
