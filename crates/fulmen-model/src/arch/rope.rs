//! RoPE scaling for contexts longer than in training: linear, YaRN, and per-frequency factors.
//!
//! All of them reduce to what the op `Rope` takes: a spec, and a divisor for each frequency.

use fulmen_core::{DType, RopePairing, RopeSpec, quant};

use super::config::Keys;
use crate::error::ModelError;
use crate::source::ModelSource;

/// The tensor of Llama 3 files with one factor per frequency.
pub(super) const FACTORS: &str = "rope_freqs.weight";

/// The RoPE spec and, if not all are 1, the `n_rot / 2` frequency factors.
pub(super) fn read(
    source: &dyn ModelSource,
    keys: &Keys<'_>,
    pairing: RopePairing,
    head_dim: u32,
) -> Result<(RopeSpec, Option<Vec<f32>>), ModelError> {
    let n_rot = keys.opt_u32("rope.dimension_count")?.unwrap_or(head_dim);
    if n_rot == 0 || n_rot > head_dim || !n_rot.is_multiple_of(2) {
        let expected = format!("even and from 2 to the head size {head_dim}");
        return Err(keys.wrong("rope.dimension_count", expected, n_rot));
    }
    let base = keys.opt_f32("rope.freq_base")?.unwrap_or(10_000.0);
    if !(base.is_finite() && base > 0.0) {
        return Err(keys.wrong("rope.freq_base", "a positive finite number", base));
    }
    let mut spec = RopeSpec { n_rot, ..RopeSpec::new(pairing, head_dim, base) };
    let mut factors = file_factors(source, n_rot)?;

    let scaling = keys.opt_string("rope.scaling.type")?.unwrap_or("none");
    // Old files use this key for linear scaling, without a type.
    let old = keys.opt_f32("rope.scale_linear")?;
    let factor = keys.opt_f32("rope.scaling.factor")?;
    if let Some(factor) = factor.or(old).filter(|factor| !(factor.is_finite() && *factor > 0.0)) {
        return Err(keys.wrong("rope.scaling.factor", "a positive finite number", factor));
    }
    match (scaling, factor) {
        ("none", _) => spec.freq_scale = 1.0 / old.unwrap_or(1.0),
        ("linear", factor) => spec.freq_scale = 1.0 / factor.or(old).unwrap_or(1.0),
        ("yarn", Some(factor)) => {
            let yarn = Yarn::read(keys, factor)?;
            spec.magnitude = yarn.magnitude();
            let scale = |pair: u32| yarn.divisor(pair, n_rot, base);
            let given = factors.unwrap_or_else(|| vec![1.0; n_rot as usize / 2]);
            factors = Some((0..n_rot / 2).zip(given).map(|(pair, given)| given * scale(pair)).collect());
        }
        ("yarn", None) => return Err(keys.wrong("rope.scaling.factor", "set for YaRN", "missing")),
        (other, _) => {
            return Err(keys.wrong("rope.scaling.type", "none, linear or yarn", format!("{other:?}")));
        }
    }
    Ok((spec, factors))
}

/// The frequency factors stored in the file.
fn file_factors(source: &dyn ModelSource, n_rot: u32) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(info) = source.tensor(FACTORS) else { return Ok(None) };
    let expected = n_rot as usize / 2;
    if info.elements() != expected {
        return Err(ModelError::Shape {
            name: FACTORS.to_owned(),
            expected: format!("[{expected}]"),
            found: format!("{:?}", info.dims()),
            transposed: false,
        });
    }
    if info.dtype() != DType::F32 {
        return Err(ModelError::TensorType {
            name: FACTORS.to_owned(),
            expected: "F32",
            found: info.dtype(),
        });
    }
    let data = source.data(FACTORS)?;
    let factors = quant::dequantize_to_vec(DType::F32, (*data).as_ref(), expected);
    let factors = factors.map_err(|error| fulmen_core::BuildError {
        call: "rope factors",
        problem: fulmen_core::Problem::DType(error),
    })?;
    match factors.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
        Some(element) => Err(ModelError::NotFinite { name: FACTORS.to_owned(), element }),
        None => Ok(Some(factors)),
    }
}

/// YaRN (Peng et al., 2023): low frequencies are interpolated by `factor`, high ones are unchanged, those in
/// between are blended.
struct Yarn {
    factor: f64,
    original_context: f64,
    beta_fast: f64,
    beta_slow: f64,
    attention_factor: f64,
}

impl Yarn {
    fn read(keys: &Keys<'_>, factor: f32) -> Result<Yarn, ModelError> {
        let number = |key: &str, default: f32| {
            let value = keys.opt_f32(key)?.unwrap_or(default);
            if value.is_finite() && value > 0.0 {
                return Ok(f64::from(value));
            }
            Err(keys.wrong(key, "a positive finite number", value))
        };
        let original = keys.opt_u32("rope.scaling.original_context_length")?;
        let original = original.map_or_else(|| keys.u32("context_length"), Ok)?;
        Ok(Yarn {
            factor: f64::from(factor),
            original_context: f64::from(original.max(1)),
            beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
            attention_factor: number("rope.scaling.attn_factor", 1.0)?,
        })
    }

    /// The factor of sine and cosine.
    fn magnitude(&self) -> f32 {
        (self.attention_factor * (1.0 + 0.1 * self.factor.ln())) as f32
    }

    /// The divisor of a pair's frequency.
    fn divisor(&self, pair: u32, n_rot: u32, base: f32) -> f32 {
        let (n, base) = (f64::from(n_rot), f64::from(base));
        // The pair that rotates `turns` times over the original context.
        let pair_of = |turns: f64| {
            n * (self.original_context / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
        };
        let low = pair_of(self.beta_fast).floor().max(0.0);
        let high = pair_of(self.beta_slow).ceil().min(n - 1.0);
        let ramp = ((f64::from(pair) - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        // 1 for an unchanged frequency.
        let kept = 1.0 - ramp;
        (1.0 / (ramp / self.factor + kept)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_keeps_high_frequencies_and_divides_low_ones() {
        let yarn = Yarn {
            factor: 4.0,
            original_context: 32768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
        };
        let divisors: Vec<f32> = (0..64).map(|pair| yarn.divisor(pair, 128, 1e6)).collect();
        assert_eq!((divisors[0], divisors[63]), (1.0, 4.0));
        assert!(divisors.is_sorted());
        // Between the bounds (low = 23, high = 40), 1/4 and 1 are blended linearly.
        let (low, high) = (23.0, 40.0);
        for (pair, divisor) in divisors.iter().enumerate() {
            let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
            assert!((f64::from(*divisor) - 1.0 / (ramp / 4.0 + 1.0 - ramp)).abs() < 1e-6, "{pair}");
        }
        assert!((yarn.magnitude() - 1.138_629_4).abs() < 1e-6);
    }
}
