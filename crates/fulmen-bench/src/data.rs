//! Random inputs, and the check of results.

use crate::BenchError;

/// A value from -1 to 1 that depends on `seed` and `index` only.
pub(crate) fn random_value(seed: u64, index: u64) -> f32 {
    let mut x = (seed << 40 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // An f32 has 24 bits of mantissa.
    ((x >> 40) as f32) / (1u32 << 23) as f32 - 1.0
}

/// Values from `-scale` to `scale`.
pub(crate) fn random_values(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    (0..len as u64).map(|i| random_value(seed, i) * scale).collect()
}

/// `count` indices below `len`: the first, the last, and others spread evenly.
pub(crate) fn spread_indices(len: usize, count: usize) -> Vec<usize> {
    let (last, count) = (len.saturating_sub(1), count.clamp(2, len.max(2)));
    let mut indices: Vec<usize> = (0..count).map(|i| last * i / (count - 1)).collect();
    indices.dedup();
    indices
}

/// Compares elements with their expected values. Each may be off by `tolerance` times the root mean square of
/// these.
pub(crate) fn check(
    case: &str,
    got: &[f32],
    expected: &[(usize, f64)],
    tolerance: f64,
) -> Result<(), BenchError> {
    let squares: f64 = expected.iter().map(|(_, e)| e * e).sum();
    let allowed = tolerance * (squares / expected.len().max(1) as f64).sqrt();
    for &(index, expected) in expected {
        let wrong = |got| BenchError::WrongResult { case: case.to_owned(), index, expected, got };
        let &got = got.get(index).ok_or_else(|| wrong(f32::NAN))?;
        let off = (f64::from(got) - expected).abs();
        if !off.is_finite() || off > allowed {
            return Err(wrong(got));
        }
    }
    Ok(())
}

/// Fails if a result has too few or too many elements.
pub(crate) fn check_len(case: &str, got: &[f32], expected: usize) -> Result<(), BenchError> {
    if got.len() == expected {
        return Ok(());
    }
    Err(BenchError::WrongLength { case: case.to_owned(), expected, got: got.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fill_their_range_and_repeat() {
        let some = random_values(3, 10_000, 2.0);
        assert!(some.iter().all(|x| (-2.0..=2.0).contains(x)));
        assert!(some.iter().any(|&x| x < -1.9) && some.iter().any(|&x| x > 1.9));
        assert!((some.iter().sum::<f32>() / 10_000.0).abs() < 0.05);
        assert_eq!(some, random_values(3, 10_000, 2.0));
        assert_ne!(some, random_values(4, 10_000, 2.0));
    }

    #[test]
    fn spread_indices_have_both_ends() {
        assert_eq!(spread_indices(101, 3), [0, 50, 100]);
        assert_eq!(spread_indices(1, 5), [0]);
        assert_eq!(spread_indices(3, 9), [0, 1, 2]);
    }

    #[test]
    fn wrong_missing_and_nan_elements_are_found() {
        let expected = [(0, 1.0), (2, -1.0)];
        assert!(check("w", &[1.0, 9.0, -1.000001], &expected, 1e-4).is_ok());
        for got in [&[1.0, 9.0, -1.01][..], &[1.0, 9.0], &[f32::NAN, 0.0, -1.0]] {
            assert!(
                matches!(check("w", got, &expected, 1e-4), Err(BenchError::WrongResult { .. })),
                "{got:?}"
            );
        }
    }
}
