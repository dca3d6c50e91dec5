//! Token sampling from a row of logits: the parameters, the random numbers and the algorithm that every
//! backend implements.
//!
//! # The algorithm
//!
//! For one row of logits `l` and one [`SampleState`] with temperature `T`:
//!
//! 1. NaN never wins. If the largest logit is not a finite number (all are NaN or -inf, or one is +inf), the
//!    row has no result: it gives [`NO_TOKEN`], at any temperature. `T == 0`: the result is the index of the
//!    largest logit, the lowest such index on a tie.
//! 2. The candidates are the logits that are neither NaN nor -inf, sorted by (logit descending, index
//!    ascending). The first `top_k` are kept; 0 keeps all.
//! 3. Candidate `i` has the weight `w_i = exp((l_i - l_0) / T)`, where `l_0` is the first candidate's logit.
//!    `Z` is the sum of the weights that step 2 kept, and `w_i / Z` is the candidate's probability.
//! 4. Candidates with `w_i < min_p` are dropped, the first excepted.
//! 5. The shortest prefix with a sum of weights of at least `top_p * Z` is kept, or all if there is none
//!    or `top_p >= 1`; never less than one candidate.
//! 6. `u` is [`uniform`]`(seed_lo, seed_hi, step, row)`. The result is the first candidate at which the
//!    running sum of the kept weights exceeds `u` times their total.
//! 7. `step` is incremented, wrapping.
//!
//! The sums are those of real numbers: backends may differ only where a threshold of step 4, 5 or 6 is within
//! the rounding error of a sum.
//!
//! A random number is a function of the seed, the step and the row of a state, and of nothing else. Whoever
//! sets the step to the number of tokens sampled so far, or to the position, gets the same tokens for the
//! same logits, whatever else runs in the batch and however often the sequence was interrupted.
//!
//! # Before sampling
//!
//! Penalties ([`Penalties`]), then logit biases, then a token mask ([`LogitEdits`]) change the logits. A
//! token that the mask excludes has the logit -inf and is never sampled; a mask that excludes every token
//! leaves a row without a result ([`NO_TOKEN`]).
//!
//! # Log-probabilities
//!
//! They are those of the softmax of a row of logits as the model gives them, at temperature 1: `l_t - ln Σ
//! exp(l_i)`. The first value of a row is that of the given token, the others are those of the most likely
//! tokens, sorted by (logit descending, index ascending). Logits that are NaN or -inf count as -inf. Where a
//! row has fewer candidates, the remaining values are -inf and their token is [`NO_TOKEN`]. A row without a
//! finite maximum has the value NaN everywhere and [`NO_TOKEN`] for its most likely tokens; a given token
//! outside the vocabulary has the value NaN.

mod constraint;

pub use constraint::{Constraint, TokenMask};

use bytemuck::{Pod, Zeroable};

/// In a list of sampling slots: a row without one, which keeps its logits.
pub const NO_SLOT: u32 = u32::MAX;

/// A capacity for logit biases that serves most requests.
pub const MAX_LOGIT_BIASES: u32 = 1024;

/// The most log-probabilities of a row beside that of the given token.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// The most largest values of a row that [`TopK`](crate::TensorOp::TopK) gives.
pub const MAX_TOP_K: u32 = 64;

/// The result for a row of logits without a finite maximum: the arithmetic of the model has overflowed, or a
/// weight is NaN. No vocabulary has this token.
pub const NO_TOKEN: u32 = u32::MAX;

/// The sampling parameters of one row and the position in its random sequence, as laid out in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleState {
    /// Divides the logits; 0 selects the largest.
    pub temperature: f32,
    /// How many candidates are kept; 0 for all.
    pub top_k: u32,
    /// The probability mass that is kept; 1 or more for all.
    pub top_p: f32,
    /// The smallest probability that is kept, relative to the largest; 0 for any.
    pub min_p: f32,
    /// The low half of the seed.
    pub seed_lo: u32,
    /// The high half of the seed.
    pub seed_hi: u32,
    /// The number of tokens sampled so far; the kernel increments it.
    pub step: u32,
    /// Which of several sequences with the same seed this is.
    pub row: u32,
}

// SAFETY: eight fields of four bytes each, all of them valid as zero.
unsafe impl Zeroable for SampleState {}
// SAFETY: `repr(C)` over eight fields of four bytes: no padding, and every bit pattern is valid.
unsafe impl Pod for SampleState {}

const _: () = assert!(size_of::<SampleState>() == 32);

/// Repetition, frequency and presence penalties of one row, as laid out in device memory.
///
/// They apply to the last `window` tokens up to and including the row's position. For each distinct token,
/// with `c` occurrences among them, the logit `l` becomes `l / repeat` if it is positive and `l * repeat`
/// otherwise, and then `c * frequency + presence` is subtracted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Repetition penalty; 1 has no effect.
    pub repeat: f32,
    /// Subtracted for each occurrence of the token.
    pub frequency: f32,
    /// Subtracted once if the token occurs.
    pub presence: f32,
    /// The number of tokens considered; 0 for none.
    pub window: u32,
}

// SAFETY: four fields of four bytes each, all of them valid as zero.
unsafe impl Zeroable for Penalties {}
// SAFETY: `repr(C)` over four fields of four bytes: no padding, and every bit pattern is valid.
unsafe impl Pod for Penalties {}

const _: () = assert!(size_of::<Penalties>() == 16);

impl Penalties {
    /// No effect.
    pub const NONE: Penalties = Penalties { repeat: 1.0, frequency: 0.0, presence: 0.0, window: 0 };

    /// Checks that every parameter is in its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        if !(self.repeat.is_finite() && self.repeat > 0.0) {
            return Err(SamplingError::Repeat(self.repeat));
        }
        for (name, value) in [("frequency", self.frequency), ("presence", self.presence)] {
            if !value.is_finite() {
                return Err(SamplingError::Penalty { name, value });
            }
        }
        Ok(())
    }

    /// The penalized logit of a token with `count` occurrences.
    pub fn apply(&self, logit: f32, count: u32) -> f32 {
        let scaled = if logit > 0.0 { logit / self.repeat } else { logit * self.repeat };
        scaled - (count as f32 * self.frequency + self.presence)
    }
}

/// What changes the logits of one sampling slot, beside penalties: biases, and whether its mask counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitEdits {
    /// Whether the slot's token mask excludes tokens. The mask of another slot is not read.
    pub masked: bool,
    /// Tokens and what is added to their logits: finite, or -inf, which excludes the token.
    pub biases: Vec<(u32, f32)>,
}

impl LogitEdits {
    /// Checks the biases against the vocabulary and the room for them in device memory.
    pub fn validate(&self, vocabulary: u32, capacity: u32) -> Result<(), SamplingError> {
        let count = u32::try_from(self.biases.len()).unwrap_or(u32::MAX);
        if count > capacity {
            return Err(SamplingError::Biases { count, capacity });
        }
        let mut tokens = std::collections::HashSet::new();
        for &(token, value) in &self.biases {
            if token >= vocabulary {
                return Err(SamplingError::BiasToken { token, vocabulary });
            }
            if !is_bias(value) {
                return Err(SamplingError::Bias { token, value });
            }
            if !tokens.insert(token) {
                return Err(SamplingError::DuplicateBias(token));
            }
        }
        Ok(())
    }

    /// The words in device memory, without those behind the last bias: whether the mask counts (0 or 1), the
    /// number of biases, then the token and the bits of the value of each. The tokens must differ.
    pub fn words(&self) -> Vec<u32> {
        let mut words = vec![u32::from(self.masked), self.biases.len() as u32];
        words.extend(self.biases.iter().flat_map(|&(token, value)| [token, value.to_bits()]));
        words
    }
}

/// Whether a value can be added to a logit: finite, or -inf.
pub fn is_bias(value: f32) -> bool {
    value.is_finite() || value == f32::NEG_INFINITY
}

/// A sampling parameter out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// The temperature is NaN, infinite or negative.
    #[error("the temperature must be a finite number of at least 0, not {0}")]
    Temperature(f32),
    /// `top_p` is NaN or negative.
    #[error("top_p must be a number of at least 0, not {0}")]
    TopP(f32),
    /// `min_p` is NaN or outside `[0, 1]`.
    #[error("min_p must be a number from 0 to 1, not {0}")]
    MinP(f32),
    /// The repetition penalty is NaN, infinite, 0 or negative.
    #[error("the repetition penalty must be a finite number above 0, not {0}")]
    Repeat(f32),
    /// Another penalty is NaN or infinite.
    #[error("the {name} penalty must be a finite number, not {value}")]
    Penalty {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: f32,
    },
    /// A logit bias is NaN or +inf.
    #[error("the logit bias of token {token} must be a finite number or -inf, not {value}")]
    Bias {
        /// The token.
        token: u32,
        /// What was given.
        value: f32,
    },
    /// A logit bias of a token that is not in the vocabulary.
    #[error("a logit bias is for token {token}, but the vocabulary has {vocabulary} tokens")]
    BiasToken {
        /// The token.
        token: u32,
        /// Tokens in the vocabulary.
        vocabulary: u32,
    },
    /// Two logit biases of one token.
    #[error("token {0} has two logit biases")]
    DuplicateBias(u32),
    /// More logit biases than a slot has room for.
    #[error("there are {count} logit biases, but only {capacity} are possible")]
    Biases {
        /// How many were given.
        count: u32,
        /// How many fit.
        capacity: u32,
    },
}

impl SampleState {
    /// Greedy sampling: always the largest logit.
    pub const fn greedy() -> SampleState {
        SampleState {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed_lo: 0,
            seed_hi: 0,
            step: 0,
            row: 0,
        }
    }

    /// Checks that every parameter is in its range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(SamplingError::Temperature(self.temperature));
        }
        if self.top_p.is_nan() || self.top_p < 0.0 {
            return Err(SamplingError::TopP(self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err(SamplingError::MinP(self.min_p));
        }
        Ok(())
    }

    /// The random number of the current step, in `[0, 1)`.
    pub fn uniform(&self) -> f32 {
        uniform(self.seed_lo, self.seed_hi, self.step, self.row)
    }
}

/// Four well-mixed words from four words: the `pcg4d` hash of Jarzynski and Olano (2020). It needs nothing
/// but wrapping 32-bit arithmetic, which every shading language has.
pub const fn pcg4d(v: [u32; 4]) -> [u32; 4] {
    const fn congruential(x: u32) -> u32 {
        x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
    }
    const fn mix([mut x, mut y, mut z, mut w]: [u32; 4]) -> [u32; 4] {
        x = x.wrapping_add(y.wrapping_mul(w));
        y = y.wrapping_add(z.wrapping_mul(x));
        z = z.wrapping_add(x.wrapping_mul(y));
        w = w.wrapping_add(y.wrapping_mul(z));
        [x, y, z, w]
    }
    let [x, y, z, w] = mix([congruential(v[0]), congruential(v[1]), congruential(v[2]), congruential(v[3])]);
    mix([x ^ (x >> 16), y ^ (y >> 16), z ^ (z >> 16), w ^ (w >> 16)])
}

/// A random number in `[0, 1)`: the upper 24 bits of the hash's first word over 2^24, which is exact in f32.
pub const fn uniform(seed_lo: u32, seed_hi: u32, step: u32, row: u32) -> f32 {
    (pcg4d([seed_lo, seed_hi, step, row])[0] >> 8) as f32 / (1u32 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From an implementation of the published hash in another language.
    #[test]
    fn hash_has_fixed_outputs() {
        let table = [
            (
                [0x0000_0000, 0x0000_0000, 0x0000_0000, 0x0000_0000],
                [0x0f02_f829, 0x2d56_8769, 0x32b0_c43b, 0xd325_48ea],
            ),
            (
                [0x0000_0001, 0x0000_0002, 0x0000_0003, 0x0000_0004],
                [0x3622_cd16, 0xf114_71d8, 0xe110_9b3f, 0x02b9_4c2f],
            ),
            (
                [0xffff_ffff, 0xffff_ffff, 0xffff_ffff, 0xffff_ffff],
                [0x974e_d892, 0xc015_dc67, 0x9f95_5760, 0xa1bb_a208],
            ),
            (
                [0xdead_beef, 0x1234_5678, 0x0000_002a, 0x0000_0007],
                [0xbe72_304f, 0xdb86_66e0, 0x8243_86d6, 0x5098_1aa5],
            ),
            (
                [0x0000_0000, 0x0000_0000, 0x0000_0001, 0x0000_0000],
                [0x2eda_6c9d, 0x681d_2eed, 0x306c_117d, 0xb060_7dce],
            ),
        ];
        for (input, output) in table {
            assert_eq!(pcg4d(input), output, "{input:x?}");
            let [a, b, c, d] = input;
            assert_eq!(uniform(a, b, c, d), (output[0] >> 8) as f32 / 16_777_216.0);
        }
    }

    #[test]
    fn numbers_are_uniform_over_steps_rows_and_seeds() {
        const BINS: usize = 64;
        const DRAWS: u32 = 64_000;
        type Draw = fn(u32) -> f32;
        let sequences: [(&str, Draw); 4] = [
            ("steps", |i| uniform(1234, 0, i, 0)),
            ("rows", |i| uniform(1234, 0, 7, i)),
            ("low seeds", |i| uniform(i, 0, 0, 0)),
            ("high seeds", |i| uniform(5, i, 3, 1)),
        ];
        for (name, draw) in sequences {
            let mut bins = [0u32; BINS];
            let (mut mean, mut lagged, mut last) = (0.0, 0.0, draw(DRAWS));
            for i in 0..DRAWS {
                let u = draw(i);
                assert!((0.0..1.0).contains(&u));
                bins[(u * BINS as f32) as usize] += 1;
                mean += f64::from(u);
                lagged += (f64::from(u) - 0.5) * (f64::from(last) - 0.5);
                last = u;
            }
            let expected = f64::from(DRAWS) / BINS as f64;
            let chi2: f64 = bins.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
            // 63 degrees of freedom: 120 is beyond one in a hundred thousand.
            assert!(chi2 < 120.0, "{name}: chi² {chi2}");
            assert!((mean / f64::from(DRAWS) - 0.5).abs() < 0.006, "{name}: mean");
            assert!((lagged / f64::from(DRAWS)).abs() < 0.0016, "{name}: consecutive numbers are correlated");
        }
    }

    #[test]
    fn penalties_are_checked_and_make_tokens_less_likely() {
        assert_eq!(Penalties::NONE.validate(), Ok(()));
        for repeat in [0.0, -1.0, f32::INFINITY] {
            let bad = Penalties { repeat, ..Penalties::NONE };
            assert_eq!(bad.validate(), Err(SamplingError::Repeat(repeat)));
        }
        assert!(Penalties { repeat: f32::NAN, ..Penalties::NONE }.validate().is_err());
        let bad = Penalties { presence: f32::NAN, ..Penalties::NONE };
        assert!(bad.validate().unwrap_err().to_string().contains("presence penalty"));
        let bad = Penalties { frequency: f32::INFINITY, ..Penalties::NONE };
        assert!(bad.validate().unwrap_err().to_string().contains("frequency penalty"));

        let penalties = Penalties { repeat: 2.0, frequency: 0.25, presence: 0.5, window: 8 };
        assert_eq!(penalties.apply(4.0, 2), 1.0);
        assert_eq!(penalties.apply(-4.0, 1), -8.75);
        assert_eq!(penalties.apply(f32::NEG_INFINITY, 1), f32::NEG_INFINITY);
        assert_eq!(Penalties::NONE.apply(3.5, 9), 3.5);
    }

    #[test]
    fn logit_edits_are_checked_and_laid_out() {
        let edits = LogitEdits { masked: true, biases: vec![(7, 1.5), (3, f32::NEG_INFINITY)] };
        assert_eq!(edits.validate(8, 2), Ok(()));
        assert_eq!(edits.words(), [1, 2, 7, 1.5f32.to_bits(), 3, f32::NEG_INFINITY.to_bits()]);
        assert_eq!(LogitEdits::default().words(), [0, 0]);
        assert_eq!(edits.validate(8, 1), Err(SamplingError::Biases { count: 2, capacity: 1 }));
        assert_eq!(edits.validate(7, 2), Err(SamplingError::BiasToken { token: 7, vocabulary: 7 }));
        let twice = LogitEdits { biases: vec![(1, 0.5), (1, 0.5)], ..LogitEdits::default() };
        assert_eq!(twice.validate(8, 2), Err(SamplingError::DuplicateBias(1)));
        for value in [f32::NAN, f32::INFINITY] {
            let bad = LogitEdits { biases: vec![(1, value)], ..LogitEdits::default() };
            assert!(bad.validate(8, 2).unwrap_err().to_string().contains("the logit bias of token 1"));
        }
    }

    #[test]
    fn parameters_are_checked() {
        use SamplingError::*;
        let good =
            SampleState { temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.05, ..SampleState::greedy() };
        assert_eq!(good.validate(), Ok(()));
        assert_eq!(SampleState::greedy().validate(), Ok(()));
        assert_eq!(SampleState { top_p: 2.0, min_p: 1.0, ..good }.validate(), Ok(()));
        for t in [-0.1, f32::INFINITY] {
            assert_eq!(SampleState { temperature: t, ..good }.validate(), Err(Temperature(t)));
        }
        assert_eq!(SampleState { top_p: -0.5, ..good }.validate(), Err(TopP(-0.5)));
        for p in [-0.5, 1.5] {
            assert_eq!(SampleState { min_p: p, ..good }.validate(), Err(MinP(p)));
        }
        for nan in [
            SampleState { temperature: f32::NAN, ..good },
            SampleState { top_p: f32::NAN, ..good },
            SampleState { min_p: f32::NAN, ..good },
        ] {
            assert!(nan.validate().is_err());
        }
    }
}
