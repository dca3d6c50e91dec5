//! The ops in f64, where `std` has none.

use std::f64::consts::{FRAC_2_PI, FRAC_2_SQRT_PI, PI, SQRT_2};

/// `f`, but 0 for -inf, where the limit is 0 and the formula gives a NaN.
fn gated(x: f64, factor: f64) -> f64 {
    if x == f64::NEG_INFINITY { 0.0 } else { x * factor }
}

pub(super) fn sigmoid(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

pub(super) fn swish(x: f64) -> f64 {
    gated(x, sigmoid(x))
}

pub(super) fn gelu(x: f64) -> f64 {
    gated(x, 0.5 * erfc(-x / SQRT_2))
}

/// `x (1 + tanh u) / 2` is `x sigmoid(2 u)`, which does not cancel on the left.
pub(super) fn gelu_tanh(x: f64) -> f64 {
    gated(x, sigmoid(2.0 * FRAC_2_PI.sqrt() * (x + 0.044715 * x * x * x)))
}

/// The larger, or a NaN if either is one.
pub(super) fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The smaller, or a NaN if either is one.
pub(super) fn min(a: f64, b: f64) -> f64 {
    -max(-a, -b)
}

/// A NaN bound is no bound; where the bounds cross, the upper one wins.
pub(super) fn clamp(x: f64, lo: f64, hi: f64) -> f64 {
    let raised = if x < lo { lo } else { x };
    if raised > hi { hi } else { raised }
}

/// The complementary error function: the series of erf near 0, the continued fraction of erfc outside.
fn erfc(x: f64) -> f64 {
    let a = x.abs();
    let y = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        let erf = sum * FRAC_2_SQRT_PI;
        return if x < 0.0 { 1.0 + erf } else { 1.0 - erf };
    } else {
        let mut fraction = 0.0;
        for k in (1..100).rev() {
            fraction = f64::from(k) / 2.0 / (a + fraction);
        }
        (-a * a).exp() / ((a + fraction) * PI.sqrt())
    };
    if x < 0.0 { 2.0 - y } else { y }
}

#[cfg(test)]
mod tests {
    use super::{erfc, gelu};

    #[test]
    fn erfc_at_known_points() {
        // From tables of the function.
        for (x, want) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_1),
            (2.0, 0.004_677_734_981_047_266),
            (3.0, 2.209_049_699_858_544e-5),
            (-1.0, 1.842_700_792_949_715),
            (5.0, 1.537_459_794_428_035e-12),
        ] {
            assert!((erfc(x) / want - 1.0).abs() < 1e-12, "{x}: {} {want}", erfc(x));
        }
        assert_eq!(erfc(f64::INFINITY), 0.0);
        assert_eq!(erfc(f64::NEG_INFINITY), 2.0);
        assert!(erfc(f64::NAN).is_nan());
        assert_eq!(gelu(f64::NEG_INFINITY), 0.0);
    }
}
