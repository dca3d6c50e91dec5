//! Comparison of results with the reference.

use fulmen_core::{DType, DTypeError, quant};

use crate::case::Tolerance;
use crate::reference::{Data, Values};

/// Errors below the smallest normal f32 do not count: devices may flush subnormal numbers to zero.
const SUBNORMAL: f64 = f32::MIN_POSITIVE as f64;

/// The worst wrong element of a tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("element {index} is {got:e}, expected {expected:e} (error {nmse:.1e} over the whole tensor)")]
pub struct Mismatch {
    /// Which element.
    pub index: usize,
    /// The value of the reference.
    pub expected: f64,
    /// The value of the backend.
    pub got: f64,
    /// The normalized mean-square error of the whole tensor.
    pub nmse: f64,
}

/// How close a result is to the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreement {
    /// The normalized mean-square error.
    pub error: f64,
    /// The allowed error, including the margin for few elements; 0 if it must be exact.
    pub allowed: f64,
}

impl Agreement {
    const EXACT: Agreement = Agreement { error: 0.0, allowed: 0.0 };

    /// The error relative to what is allowed.
    pub fn share(self) -> f64 {
        if self.error == 0.0 { 0.0 } else { self.error / self.allowed }
    }
}

/// Compares the bytes of a tensor with the reference.
pub fn compare(
    dtype: DType,
    got: &[u8],
    expected: &Data,
    tolerance: Tolerance,
) -> Result<Result<Agreement, Mismatch>, DTypeError> {
    match expected {
        Data::Ints { values, undecided } => {
            let got = words(got);
            let allowed =
                |row: usize| undecided.iter().any(|(of, also)| *of == row && also.contains(&got[row]));
            let wrong = (0..values.len()).find(|&row| values[row] != got[row] && !allowed(row));
            Ok(match wrong {
                None => Ok(Agreement::EXACT),
                Some(index) => {
                    let (expected, got) = (values[index].into(), got[index].into());
                    Err(Mismatch { index, expected, got, nmse: f64::NAN })
                }
            })
        }
        Data::Stored { dtype: DType::U32, bytes, .. } => {
            let (expected, got) = (words(bytes), words(got));
            let wrong = (0..expected.len()).find(|&i| expected[i] != got[i]);
            Ok(wrong.map_or(Ok(Agreement::EXACT), |index| {
                let (expected, got) = (expected[index].into(), got[index].into());
                Err(Mismatch { index, expected, got, nmse: f64::NAN })
            }))
        }
        Data::Stored { dtype, bytes, .. } => {
            let elements = bytes.len() / dtype.block_bytes() * dtype.block_len();
            let got_values = quant::dequantize_to_vec(*dtype, got, elements)?;
            let expected_values = quant::dequantize_to_vec(*dtype, bytes, elements)?;
            let expected_values = Values::plain(expected_values.into_iter().map(f64::from).collect());
            if tolerance == Tolerance::Exact {
                let block = (got.iter().zip(bytes.iter()))
                    .position(|(a, b)| a != b)
                    .map(|at| at / dtype.block_bytes() * dtype.block_len());
                return Ok(block.map_or(Ok(Agreement::EXACT), |index| {
                    let (expected, got) = (expected_values.data[index], got_values[index].into());
                    Err(Mismatch { index, expected, got, nmse: f64::NAN })
                }));
            }
            Ok(compare_floats(&got_values, &expected_values, tolerance))
        }
        Data::Floats(values) => {
            let got = quant::dequantize_to_vec(dtype, got, values.data.len())?;
            Ok(compare_floats(&got, values, tolerance))
        }
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Compares f32 values; NaN and infinities must be where the reference has them.
pub fn compare_floats(got: &[f32], expected: &Values, tolerance: Tolerance) -> Result<Agreement, Mismatch> {
    let all: Vec<usize>;
    let indices = match &expected.known {
        Some(known) => known,
        None => {
            all = (0..expected.data.len()).collect();
            &all
        }
    };
    let size = |i: usize| expected.sizes.as_ref().map_or(expected.data[i].abs(), |sizes| sizes[i]);
    let mismatch = |index: usize, nmse: f64| Mismatch {
        index,
        expected: expected.data[index],
        got: got[index].into(),
        nmse,
    };
    let (mut errors, mut sizes, mut fourths, mut finite) = (0.0, 0.0, 0.0, 0usize);
    for &i in indices {
        let rounded = expected.data[i] as f32;
        let same = match tolerance {
            Tolerance::Exact => same_bits(rounded, got[i]),
            _ if rounded.is_finite() => got[i].is_finite(),
            _ => same_bits(rounded, got[i]),
        };
        if !same {
            return Err(mismatch(i, f64::NAN));
        }
        if rounded.is_finite() {
            errors += error(got[i], expected.data[i]).powi(2);
            sizes += size(i).powi(2);
            fourths += size(i).powi(4);
            finite += 1;
        }
    }
    let Tolerance::Within { nmse: bound, element } = tolerance else { return Ok(Agreement::EXACT) };
    // If few elements are large, only those count: the errors of the others are negligible.
    let counting = if fourths > 0.0 { sizes * sizes / fourths } else { 1.0 };
    let allowed = bound * chance(counting);
    if errors == 0.0 {
        return Ok(Agreement { error: 0.0, allowed });
    }
    let (nmse, typical) = (errors / sizes, (sizes / finite as f64).sqrt());
    let share = |i: usize| {
        let rounded = expected.data[i] as f32;
        if !rounded.is_finite() {
            return 0.0;
        }
        error(got[i], expected.data[i]) / size(i).max(typical)
    };
    let worst = indices.iter().copied().max_by(|&a, &b| share(a).total_cmp(&share(b)));
    match worst {
        // Negated so that a NaN fails.
        Some(worst) if !(nmse <= allowed && share(worst) <= element) => Err(mismatch(worst, nmse)),
        _ => Ok(Agreement { error: nmse, allowed }),
    }
}

/// How much larger than usual the mean square of `n` random errors comes out once in ten million times, over
/// the factor of 2 that the tolerances leave: 1 for many elements, 17 for one. By Wilson and Hilferty's
/// formula for χ², with the degrees of freedom that Welch and Satterthwaite give a sum of unlike squares.
fn chance(n: f64) -> f64 {
    let spread = 2.0 / (9.0 * n.max(1.0));
    ((1.0 - spread + 5.2 * spread.sqrt()).powi(3) / 2.0).max(1.0)
}

fn error(got: f32, expected: f64) -> f64 {
    let error = (f64::from(got) - expected).abs();
    if error <= SUBNORMAL { 0.0 } else { error }
}

fn same_bits(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: &[f32], expected: &[f64], tolerance: Tolerance) -> Result<Agreement, Mismatch> {
        compare_floats(got, &Values::plain(expected.to_vec()), tolerance)
    }

    #[test]
    fn one_wrong_element_among_many_fails() {
        let expected: Vec<f64> = (0..100_000).map(|i| f64::from(i % 7) - 3.0).collect();
        let mut got: Vec<f32> = expected.iter().map(|&x| x as f32).collect();
        assert!(check(&got, &expected, Tolerance::nmse(1e-4)).is_ok());
        got[777] += 0.5;
        assert_eq!(check(&got, &expected, Tolerance::nmse(1e-4)).unwrap_err().index, 777);
    }

    #[test]
    fn chance_counts_the_elements_that_are_large() {
        let mut expected = vec![1.0; 1000];
        let mut got = vec![1.015; 1000];
        assert!(
            check(&got, &expected, Tolerance::nmse(1e-4)).is_err(),
            "a thousand alike leave nothing to chance"
        );
        expected[7] = 1000.0;
        got[7] = 1015.0;
        assert!(check(&got, &expected, Tolerance::nmse(1e-4)).is_ok(), "one that outweighs the others does");
        got[7] = 1050.0;
        assert!(check(&got, &expected, Tolerance::nmse(1e-4)).is_err());
    }

    #[test]
    fn infinities_and_nan_must_be_where_they_belong() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let expected = [1.0, f64::INFINITY, f64::NAN, 1e300];
        assert!(check(&[1.0, inf, nan, inf], &expected, Tolerance::ELEMENT).is_ok());
        for wrong in
            [[nan, inf, nan, inf], [1.0, -inf, nan, inf], [1.0, inf, 0.0, inf], [1.0, inf, nan, 3e38]]
        {
            assert!(check(&wrong, &expected, Tolerance::ELEMENT).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn exact_tells_zeros_apart_and_the_others_let_subnormals_go() {
        assert!(check(&[0.0], &[-0.0], Tolerance::Exact).is_err());
        assert!(check(&[-0.0], &[-0.0], Tolerance::Exact).is_ok());
        assert!(check(&[0.0], &[1e-40], Tolerance::ELEMENT).is_ok());
        assert!(check(&[1.0], &[0.0], Tolerance::ELEMENT).is_err());
    }

    #[test]
    fn elements_are_judged_by_the_size_of_their_terms() {
        let cancelled = Values { data: vec![1e-9], sizes: Some(vec![1.0]), known: None };
        assert!(compare_floats(&[2e-9], &cancelled, Tolerance::FLOAT_MATMUL).is_ok());
        assert!(compare_floats(&[0.1], &cancelled, Tolerance::FLOAT_MATMUL).is_err());
    }
}
