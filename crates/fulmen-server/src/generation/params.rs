//! From the fields of a request to the parameters of the engine: one place for all APIs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use fulmen_engine::Sampling;
use serde::Deserialize;

use crate::error::ApiError;
use crate::limits::Limits;
use crate::served::{Grammar, ServedModel};

/// The fields of sampling as clients send them. Each API fills in what it has.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingFields {
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) repeat_window: Option<i64>,
    pub(crate) seed: Option<i64>,
    /// The name of the stop strings in the API, if it is not `stop`.
    pub(crate) stop_name: Option<&'static str>,
    pub(crate) stop: Vec<String>,
    /// The name of the limit in the API, and its value.
    pub(crate) max_tokens: Option<(&'static str, i64)>,
    pub(crate) logit_bias: Vec<(String, f64)>,
    pub(crate) logprobs: Option<i64>,
    /// Whether those of the prompt are wanted, too.
    pub(crate) prompt_logprobs: bool,
    pub(crate) n: Option<i64>,
    pub(crate) ignore_eos: bool,
    /// The field that asks for a grammar, and the grammar.
    pub(crate) grammar: Option<(&'static str, Grammar)>,
}

/// Values for what a request leaves open, such as those of a preset.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingDefaults {
    /// Divides the logits; 0 selects the most likely token.
    pub temperature: Option<f64>,
    /// Probability mass considered.
    pub top_p: Option<f64>,
    /// Most likely tokens considered; 0 for all.
    pub top_k: Option<i64>,
    /// Smallest probability considered, relative to the largest.
    pub min_p: Option<f64>,
    /// Divisor of the logits of recent tokens.
    pub repetition_penalty: Option<f64>,
    /// The largest number of generated tokens.
    pub max_tokens: Option<i64>,
}

/// Checked parameters of a generation.
#[derive(Clone, Debug)]
pub(crate) struct GenerationParams {
    pub(crate) sampling: Sampling,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) stop: Vec<String>,
    /// `None` for what the context leaves.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) prompt_logprobs: bool,
    pub(crate) n: u32,
    pub(crate) ignore_eos: bool,
    /// The field that asks for a grammar, and the grammar.
    pub(crate) grammar: Option<(&'static str, Grammar)>,
}

/// A number inside a range.
fn ranged(name: &'static str, value: Option<f64>, low: f64, high: f64) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ApiError::field(name, format!("{name}: expected {low} to {high}, got {value}")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// An integer inside a range.
fn counted(name: &str, value: i64, low: i64, high: i64) -> Result<i64, ApiError> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(ApiError::field(name, format!("{name}: expected {low} to {high}, got {value}")))
}

impl SamplingFields {
    /// Checks all fields, and fills in what is missing from the defaults.
    pub(crate) fn resolve(
        self,
        defaults: &SamplingDefaults,
        model: &dyn ServedModel,
        limits: &Limits,
    ) -> Result<GenerationParams, ApiError> {
        let sampling = self.sampling(defaults, model.context())?;
        let stop = self.checked_stops(limits)?;
        let logit_bias = self.checked_bias(model, limits)?;
        let max_tokens = self.max_tokens.or(defaults.max_tokens.map(|value| ("max_tokens", value)));
        let max_tokens = match max_tokens {
            Some((name, value)) => {
                let value = counted(name, value, 1, i64::MAX)?;
                Some(u32::try_from(value).unwrap_or(u32::MAX))
            }
            None => None,
        };
        let logprobs = match self.logprobs {
            Some(_) if !model.has_logprobs() => {
                return Err(ApiError::unsupported(
                    "logprobs",
                    "this model's device gives no log-probabilities",
                ));
            }
            Some(top) => Some(counted("top_logprobs", top, 0, 20)? as u8),
            None => None,
        };
        let n = counted("n", self.n.unwrap_or(1), 1, i64::from(limits.choices))? as u32;
        if let Some((param, _)) = self.grammar
            && model.constraints().is_none()
        {
            return Err(ApiError::unsupported(
                param,
                "this model has no constrained decoding (JSON, grammars, required tools)",
            ));
        }
        Ok(GenerationParams {
            sampling,
            logit_bias,
            stop,
            max_tokens,
            logprobs,
            prompt_logprobs: self.prompt_logprobs,
            n,
            ignore_eos: self.ignore_eos,
            grammar: self.grammar,
        })
    }

    fn sampling(&self, defaults: &SamplingDefaults, context: u32) -> Result<Sampling, ApiError> {
        let temperature = ranged("temperature", self.temperature.or(defaults.temperature), 0.0, 100.0)?;
        let top_p = ranged("top_p", self.top_p.or(defaults.top_p), 0.0, 1.0)?;
        let min_p = ranged("min_p", self.min_p.or(defaults.min_p), 0.0, 1.0)?;
        let frequency = ranged("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        let presence = ranged("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        let repetition = self.repetition_penalty.or(defaults.repetition_penalty);
        let repetition = ranged("repetition_penalty", repetition, 0.01, 100.0)?;
        // −1 means all tokens in several APIs.
        let top_k = self.top_k.or(defaults.top_k).unwrap_or(0);
        let top_k = counted("top_k", top_k, -1, i64::from(u32::MAX))?.max(0);
        let window = match self.repeat_window {
            Some(-1) | None => context,
            Some(window) => counted("repeat_last_n", window, -1, i64::from(u32::MAX))? as u32,
        };
        Ok(Sampling {
            temperature: temperature.unwrap_or(1.0),
            top_k: top_k as u32,
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            repeat_penalty: repetition.unwrap_or(1.0),
            frequency_penalty: frequency.unwrap_or(0.0),
            presence_penalty: presence.unwrap_or(0.0),
            repeat_window: window,
            seed: self.seed.map_or_else(new_seed, |seed| seed as u64),
        })
    }

    fn checked_stops(&self, limits: &Limits) -> Result<Vec<String>, ApiError> {
        let name = self.stop_name.unwrap_or("stop");
        let error = |message: String| Err(ApiError::field(name, format!("{name}: expected {message}")));
        if self.stop.len() > limits.stops {
            return error(format!("at most {} strings, got {}", limits.stops, self.stop.len()));
        }
        for stop in &self.stop {
            if stop.is_empty() {
                return error("strings that are not empty".to_owned());
            }
            if stop.len() > limits.stop_bytes {
                return error(format!("strings of at most {} bytes, got {}", limits.stop_bytes, stop.len()));
            }
        }
        Ok(self.stop.clone())
    }

    fn checked_bias(&self, model: &dyn ServedModel, limits: &Limits) -> Result<Vec<(u32, f32)>, ApiError> {
        let error = |message: String| Err(ApiError::field("logit_bias", message));
        if self.logit_bias.len() > limits.logit_bias {
            let (most, got) = (limits.logit_bias, self.logit_bias.len());
            return error(format!("logit_bias: expected at most {most} tokens, got {got}"));
        }
        let vocabulary = model.tokenizer().vocab_size();
        let mut checked = Vec::with_capacity(self.logit_bias.len());
        for (token, bias) in &self.logit_bias {
            let Some(id) = token.parse::<u32>().ok().filter(|&id| (id as usize) < vocabulary) else {
                return error(format!("logit_bias: expected token ids below {vocabulary}, got {token:?}"));
            };
            if !(-100.0..=100.0).contains(bias) {
                return error(format!("logit_bias of token {id}: expected -100 to 100, got {bias}"));
            }
            checked.push((id, *bias as f32));
        }
        Ok(checked)
    }
}

/// A different seed each time.
fn new_seed() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    (now.as_nanos() as u64 ^ call.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
