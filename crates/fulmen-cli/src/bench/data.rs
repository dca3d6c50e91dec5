//! Numbers to compute with, and the check of what came out.

use super::BenchError;

/// A number from -1 to 1 that depends on `seed` and `index` only.
pub(super) fn number(seed: u64, index: u64) -> f32 {
    let mut x = (seed << 40 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // 24 bits are all that f32 holds.
    ((x >> 40) as f32) / (1u32 << 23) as f32 - 1.0
}

/// Numbers from `-scale` to `scale`.
pub(super) fn numbers(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    (0..len as u64).map(|i| number(seed, i) * scale).collect()
}

/// `count` places among `len` elements: the first, the last, and others spread evenly.
pub(super) fn places(len: usize, count: usize) -> Vec<usize> {
    let (last, count) = (len.saturating_sub(1), count.clamp(2, len.max(2)));
    let mut places: Vec<usize> = (0..count).map(|i| last * i / (count - 1)).collect();
    places.dedup();
    places
}

/// Compares elements with what they must be. Each may be off by `tolerance` of their root mean square.
pub(super) fn check(
    work: &str,
    got: &[f32],
    expected: &[(usize, f64)],
    tolerance: f64,
) -> Result<(), BenchError> {
    let squares: f64 = expected.iter().map(|(_, e)| e * e).sum();
    let allowed = tolerance * (squares / expected.len().max(1) as f64).sqrt();
    for &(index, expected) in expected {
        let wrong = |got| BenchError::Wrong { work: work.to_owned(), index, expected, got };
        let &got = got.get(index).ok_or_else(|| wrong(f32::NAN))?;
        let off = (f64::from(got) - expected).abs();
        if !off.is_finite() || off > allowed {
            return Err(wrong(got));
        }
    }
    Ok(())
}

/// Fails where a result is shorter or longer than it must be.
pub(super) fn check_len(work: &str, got: &[f32], expected: usize) -> Result<(), BenchError> {
    if got.len() == expected {
        return Ok(());
    }
    Err(BenchError::WrongLength { work: work.to_owned(), expected, got: got.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_their_range_and_repeat() {
        let some = numbers(3, 10_000, 2.0);
        assert!(some.iter().all(|x| (-2.0..=2.0).contains(x)));
        assert!(some.iter().any(|&x| x < -1.9) && some.iter().any(|&x| x > 1.9));
        assert!((some.iter().sum::<f32>() / 10_000.0).abs() < 0.05);
        assert_eq!(some, numbers(3, 10_000, 2.0));
        assert_ne!(some, numbers(4, 10_000, 2.0));
    }

    #[test]
    fn places_have_both_ends() {
        assert_eq!(places(101, 3), [0, 50, 100]);
        assert_eq!(places(1, 5), [0]);
        assert_eq!(places(3, 9), [0, 1, 2]);
    }

    #[test]
    fn a_check_finds_what_is_off_missing_or_no_number() {
        let expected = [(0, 1.0), (2, -1.0)];
        assert!(check("w", &[1.0, 9.0, -1.000001], &expected, 1e-4).is_ok());
        for got in [&[1.0, 9.0, -1.01][..], &[1.0, 9.0], &[f32::NAN, 0.0, -1.0]] {
            assert!(matches!(check("w", got, &expected, 1e-4), Err(BenchError::Wrong { .. })), "{got:?}");
        }
    }
}
