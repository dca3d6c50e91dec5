//! Options of text generation.

use std::time::{SystemTime, UNIX_EPOCH};

use fulmen_engine::{GenerateOptions, Sampling};

/// How tokens are sampled and when generation stops.
#[derive(Debug, clap::Args)]
pub(crate) struct SamplingOptions {
    /// Maximum number of tokens to generate; -1, the default, generates until the model stops or the context
    /// is full.
    #[arg(long, short = 'n', value_name = "TOKENS", default_value_t = -1, hide_default_value = true)]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    max_tokens: i64,

    /// Sampling temperature: 0 always takes the most likely token, 1 samples from the model's own
    /// distribution.
    #[arg(long, alias = "temp", value_name = "NUMBER", default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f32,

    /// Sample from the K most likely tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: u32,

    /// Sample from the most likely tokens whose probabilities add up to P (nucleus sampling); 1 for all.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f32,

    /// Sample from tokens at least P times as likely as the most likely one; 0 for all.
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    min_p: f32,

    /// Repetition penalty: divides the logits of recent tokens; 1 for none.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,

    /// Number of recent tokens that the repetition penalty applies to.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    repeat_window: u32,

    /// Random seed: the same seed gives the same text on the same device. By default a new one for each run.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Stop at this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Decode steps that the device runs before the host reads a token; more saves time on fast devices. By
    /// default chosen by the speed of the device.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u16).range(1..=256))]
    ahead: Option<u16>,
}

impl SamplingOptions {
    /// The options, with a new seed if none was given.
    pub(crate) fn generate(&self) -> GenerateOptions {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_window: self.repeat_window,
            seed: self.seed.unwrap_or_else(new_seed),
            ..Sampling::GREEDY
        };
        GenerateOptions {
            sampling,
            // -1 is no limit.
            max_tokens: usize::try_from(self.max_tokens).unwrap_or(usize::MAX),
            stop: self.stop.clone(),
            ahead: self.ahead.map_or(0, usize::from),
            ..GenerateOptions::default()
        }
    }
}

/// A different number each time, short enough to type.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff) << 16
}
