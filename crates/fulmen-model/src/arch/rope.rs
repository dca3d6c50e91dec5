//! RoPE scaling for contexts longer than in training: linear, YaRN, and per-frequency factors.
//!
//! All of them reduce to what the op `Rope` takes: a spec, and a divisor for each frequency.

use fulmen_core::{DType, RopePairing, RopeSpec, quant};

use super::config::Keys;
use crate::error::ModelError;
use crate::source::ModelSource;

/// The tensors with one factor per frequency: that of Llama 3 files, and those of Phi-3 files, for contexts
/// as in training and for longer ones.
pub(super) const FACTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

/// The key of the context length before scaling.
pub(super) const ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";

/// RoPE of a model.
pub(super) struct Rope {
    pub(super) spec: RopeSpec,
    /// The `n_rot / 2` frequency factors, if not all are 1.
    pub(super) factors: Option<Vec<f32>>,
    /// Those of long contexts.
    pub(super) long: Option<LongRope>,
}

/// Frequency factors of contexts longer than in training (LongRoPE).
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Sequences of more positions use these factors, for all of their positions.
    pub original_context: u32,
    /// A divisor for each frequency.
    pub factors: Vec<f32>,
}

/// The RoPE spec and the frequency factors.
pub(super) fn read(
    source: &dyn ModelSource,
    keys: &Keys<'_>,
    pairing: RopePairing,
    head_dim: u32,
) -> Result<Rope, ModelError> {
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
    spec.magnitude = positive(keys, "rope.scaling.attn_factor", 1.0)? as f32;
    let (mut factors, long) = factors_of(source, keys, n_rot)?;

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
        ("longrope", _) if long.is_some() => {}
        ("longrope", _) => {
            let expected = format!("[{}]", n_rot / 2);
            return Err(ModelError::MissingTensor { name: FACTORS[2].to_owned(), expected });
        }
        ("yarn", None) => return Err(keys.wrong("rope.scaling.factor", "set for YaRN", "missing")),
        (other, _) => {
            return Err(keys.wrong(
                "rope.scaling.type",
                "none, linear, yarn or longrope",
                format!("{other:?}"),
            ));
        }
    }
    Ok(Rope { spec, factors, long })
}

/// A positive number.
fn positive(keys: &Keys<'_>, key: &str, default: f32) -> Result<f64, ModelError> {
    let value = keys.opt_f32(key)?.unwrap_or(default);
    match value.is_finite() && value > 0.0 {
        true => Ok(f64::from(value)),
        false => Err(keys.wrong(key, "a positive finite number", value)),
    }
}

/// The frequency factors stored in the file: those of all contexts or of short ones, and those of long ones.
fn factors_of(
    source: &dyn ModelSource,
    keys: &Keys<'_>,
    n_rot: u32,
) -> Result<(Option<Vec<f32>>, Option<LongRope>), ModelError> {
    let [all, short, long] = FACTORS.map(|name| file_factors(source, name, n_rot));
    let (all, short, long) = (all?, short?, long?);
    let missing = |name: &str| {
        let expected = format!("[{}]", n_rot / 2);
        ModelError::MissingTensor { name: name.to_owned(), expected }
    };
    match (all, short, long) {
        (all, None, None) => Ok((all, None)),
        (None, Some(short), Some(factors)) => {
            let original_context = match keys.opt_u32(ORIGINAL_CONTEXT)? {
                Some(_) => keys.within(ORIGINAL_CONTEXT, 1 << 28)?,
                None => keys.u32("context_length")?,
            };
            Ok((Some(short), Some(LongRope { original_context, factors })))
        }
        (_, None, Some(_)) => Err(missing(FACTORS[1])),
        (_, Some(_), None) => Err(missing(FACTORS[2])),
        (Some(_), Some(_), Some(_)) => {
            let found = format!("with {} too", FACTORS[1]);
            Err(keys.wrong("rope.scaling.type", format!("one kind of factors, {}", FACTORS[0]), found))
        }
    }
}

/// The frequency factors in this tensor, if the file has it.
fn file_factors(source: &dyn ModelSource, name: &str, n_rot: u32) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(info) = source.tensor(name) else { return Ok(None) };
    let expected = n_rot as usize / 2;
    if info.elements() != expected {
        return Err(ModelError::Shape {
            name: name.to_owned(),
            expected: format!("[{expected}]"),
            found: format!("{:?}", info.dims()),
            transposed: false,
        });
    }
    if info.dtype() != DType::F32 {
        return Err(ModelError::TensorType { name: name.to_owned(), expected: "F32", found: info.dtype() });
    }
    let data = source.data(name)?;
    let factors = quant::dequantize_to_vec(DType::F32, (*data).as_ref(), expected);
    let factors = factors.map_err(|error| fulmen_core::BuildError {
        call: "rope factors",
        problem: fulmen_core::Problem::DType(error),
    })?;
    match factors.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
        Some(element) => Err(ModelError::NotFinite { name: name.to_owned(), element }),
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
    log_multiplier: f64,
    /// Whether the bounds of the blended frequencies are whole numbers.
    truncate: bool,
}

impl Yarn {
    fn read(keys: &Keys<'_>, factor: f32) -> Result<Yarn, ModelError> {
        const MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
        let log_multiplier = keys.opt_f32(MULTIPLIER)?.unwrap_or(0.0);
        if !(log_multiplier.is_finite() && log_multiplier >= 0.0) {
            return Err(keys.wrong(MULTIPLIER, "a finite number, not negative", log_multiplier));
        }
        let original = keys.opt_u32(ORIGINAL_CONTEXT)?;
        let original = original.map_or_else(|| keys.u32("context_length"), Ok)?;
        Ok(Yarn {
            factor: f64::from(factor),
            original_context: f64::from(original.max(1)),
            beta_fast: positive(keys, "rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: positive(keys, "rope.scaling.yarn_beta_slow", 1.0)?,
            attention_factor: positive(keys, "rope.scaling.attn_factor", 1.0)?,
            log_multiplier: f64::from(log_multiplier),
            // Not a key of converters: they leave out what Hugging Face folders say.
            truncate: keys.opt_bool("rope.scaling.yarn_truncate")?.unwrap_or(true),
        })
    }

    /// The factor of sine and cosine. With a log multiplier, the temperature that YaRN adds for long contexts
    /// is taken out again, wholly where it is 1.
    fn magnitude(&self) -> f32 {
        let growth = |multiplier: f64| 1.0 + 0.1 * multiplier * self.factor.max(1.0).ln();
        (self.attention_factor * growth(1.0) / growth(self.log_multiplier)) as f32
    }

    /// The divisor of a pair's frequency.
    fn divisor(&self, pair: u32, n_rot: u32, base: f32) -> f32 {
        let (n, base) = (f64::from(n_rot), f64::from(base));
        // The pair that rotates `turns` times over the original context.
        let pair_of = |turns: f64| {
            n * (self.original_context / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
        };
        let (low, high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(n - 1.0));
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
            log_multiplier: 0.0,
            truncate: true,
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
        // Without rounding, the bounds are 23.6 and 39.7.
        let exact = Yarn { truncate: false, ..yarn };
        let bound = |turns: f64| 64.0 * (32768.0 / (turns * std::f64::consts::TAU)).ln() / 1e6f64.ln();
        let ramp = (30.0 - bound(32.0)) / (bound(1.0) - bound(32.0));
        assert!((f64::from(exact.divisor(30, 128, 1e6)) - 1.0 / (ramp / 4.0 + 1.0 - ramp)).abs() < 1e-6);
        assert_eq!(Yarn { log_multiplier: 1.0, ..exact }.magnitude(), 1.0);
    }
}
