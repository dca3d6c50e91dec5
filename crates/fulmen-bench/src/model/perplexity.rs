//! The perplexity of a text.

use fulmen_engine::{Model, Perplexity, PerplexityOptions, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::tokenizer::Special;
use serde::Serialize;

use super::LoadedModel;
use crate::BenchError;

/// The window if none is given: the one that others measure with.
const DEFAULT_WINDOW: u32 = 512;

/// How a text is scored.
#[derive(Clone, Debug, PartialEq)]
pub struct TextOptions {
    /// Tokens of a window; by default 512, or the context of the model if that is shorter.
    pub context: Option<u32>,
    /// Distance between the starts of two windows; see [`PerplexityOptions::stride`].
    pub stride: Option<u32>,
    /// Parse control tokens in the text, such as `<|endoftext|>`.
    pub special: bool,
    /// Do not add the BOS token of the model.
    pub bare: bool,
    /// The type of the KV cache, the prefill chunk and eager mode. Its context is not used.
    pub session: SessionOptions,
}

/// The score of a text. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerplexityReport {
    /// e to the mean negative log-likelihood.
    pub perplexity: f64,
    /// Its standard error.
    pub perplexity_error: f64,
    /// The mean of −ln p.
    pub mean_nll: f64,
    /// Its standard error.
    pub mean_nll_error: f64,
    /// Tokens of the text.
    pub tokens: usize,
    /// Tokens that were scored.
    pub tokens_scored: usize,
    /// Tokens that were run.
    pub tokens_run: usize,
    /// Tokens run per second.
    pub tokens_per_second: f64,
    /// How long it took.
    pub seconds: f64,
    /// Tokens of a window.
    pub context: u32,
    /// As in [`TextOptions`].
    pub stride: Option<u32>,
    /// As in [`TextOptions`].
    pub special: bool,
    /// As in [`TextOptions`].
    pub bare: bool,
    /// The type of the KV cache.
    pub cache: String,
    /// The device, as `--device` takes it.
    pub device: String,
    /// Its name.
    pub name: String,
    /// The architecture of the model.
    pub architecture: &'static str,
    /// Bytes of all weights.
    pub weight_bytes: u64,
}

/// A text as it is scored.
pub(super) struct ScoredText {
    pub(super) tokens: Vec<u32>,
    /// The token that the tokenizer puts before a text, if it does.
    pub(super) begin: Option<u32>,
    /// Tokens of a window.
    pub(super) window: u32,
}

impl ScoredText {
    pub(super) fn new(model: &Model, text: &str, options: &TextOptions) -> Result<ScoredText, ModelError> {
        let tokenizer = model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let special = if options.special { Special::Parse } else { Special::AsText };
        let encode = |text: &str| match options.bare {
            true => tokenizer.encode(text, special),
            false => tokenizer.encode_prompt(text, special),
        };
        let window = options.context.unwrap_or_else(|| DEFAULT_WINDOW.min(model.config().context));
        Ok(ScoredText { tokens: encode(text), begin: encode("").first().copied(), window })
    }
}

/// Scores a text. `progress` gets the score so far and the number of tokens that will be run in all.
///
/// # Errors
/// What the model reports, such as a text that is too short or a window that it does not have.
pub fn measure_perplexity(
    loaded: &LoadedModel,
    text: &str,
    options: &TextOptions,
    progress: impl FnMut(&Perplexity, usize),
) -> Result<PerplexityReport, BenchError> {
    let model = &loaded.model;
    let ScoredText { tokens, begin, window: context } = ScoredText::new(model, text, options)?;
    let windows = PerplexityOptions {
        window: context as usize,
        stride: options.stride.map(|stride| stride as usize),
        begin,
        threads: loaded.threads,
    };
    let cache = options.session.cache;
    let mut session = model.session_with(SessionOptions { context, ..options.session })?;
    let scored = session.perplexity(&tokens, &windows, progress)?;
    Ok(PerplexityReport {
        perplexity: scored.value(),
        perplexity_error: scored.value() * scored.error(),
        mean_nll: scored.mean_nll(),
        mean_nll_error: scored.error(),
        tokens: tokens.len(),
        tokens_scored: scored.scored,
        tokens_run: scored.run,
        tokens_per_second: scored.rate(),
        seconds: scored.time.as_secs_f64(),
        context,
        stride: options.stride,
        special: options.special,
        bare: options.bare,
        cache: cache.to_string(),
        device: loaded.device.selector().to_string(),
        name: loaded.device.name.clone(),
        architecture: model.config().architecture.name(),
        weight_bytes: model.weight_bytes(),
    })
}
