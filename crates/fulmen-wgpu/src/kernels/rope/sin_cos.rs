//! RoPE angles: frequencies as fixed-point numbers, so that position times frequency is exact
//! (`sin_cos.wgsl`).

use std::f64::consts::TAU;

use fulmen_core::RopeSpec;

use crate::kernels::{
    KernelError,
    bind::invalid,
    preprocess::{Value, values},
};

/// Refuses a rotation that the kernels do not support.
pub(crate) fn check(op: &'static str, rope: &RopeSpec, head_dim: u32) -> Result<(), KernelError> {
    let RopeSpec { n_rot, base, freq_scale, magnitude, .. } = *rope;
    if !n_rot.is_multiple_of(2) || n_rot > head_dim {
        return Err(invalid(
            op,
            format!("{n_rot} elements of a head of {head_dim} cannot be rotated in pairs"),
        ));
    }
    // Up to 127 revolutions per position fit before the point.
    let numbers = base >= 1.0 && base.is_finite() && (0.0..=128.0).contains(&freq_scale);
    if !numbers || !magnitude.is_finite() {
        return Err(invalid(
            op,
            format!(
                "a base of {base}, a scale of {freq_scale} and a magnitude of {magnitude} are out of range"
            ),
        ));
    }
    Ok(())
}

/// The values that `rope/sin_cos.wgsl` takes.
pub(crate) fn sin_cos_values(rope: &RopeSpec, factors: bool) -> [(&'static str, Value); 5] {
    let pairs = rope.n_rot / 2;
    // A frequency is the product of two table entries: of every eighth pair, and of the eight pairs after it.
    let power = |i: u32| f64::from(rope.base).powf(-2.0 * f64::from(i) / f64::from(rope.n_rot));
    let high =
        (0..pairs.div_ceil(8)).map(|i| power(8 * i) * f64::from(rope.freq_scale) / TAU * 2f64.powi(56));
    let low = (0..pairs.min(8)).map(|i| power(i) * 2f64.powi(64));
    values![
        pairs,
        factors,
        high_table: words(high),
        low_table: words(low),
        magnitude: format!("{:e}", rope.magnitude),
    ]
}

/// 64-bit numbers as pairs of low and high word.
fn words(numbers: impl Iterator<Item = f64>) -> Vec<Vec<u32>> {
    // The conversion saturates, where 1 would need a 65th bit.
    let bits = numbers.map(|number| number as u64);
    bits.map(|bits| vec![(bits & 0xffff_ffff) as u32, (bits >> 32) as u32]).collect()
}
