//! Options of how text is generated.

use std::time::{SystemTime, UNIX_EPOCH};

use fulmen_model::{GenerateOptions, Sampling};

/// How tokens are drawn and when an answer ends.
#[derive(Debug, clap::Args)]
pub(crate) struct SamplingOptions {
    /// Tokens of the answer at most; without it until the model ends or the context is full.
    #[arg(long, short = 'n', value_name = "TOKENS")]
    max_tokens: Option<usize>,

    /// Divides the logits: 0 always takes the most likely token, 1 draws as the model says.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.8, allow_negative_numbers = true)]
    temp: f32,

    /// Consider so many of the most likely tokens; 0 for all.
    #[arg(long, value_name = "COUNT", default_value_t = 40)]
    top_k: u32,

    /// Consider the most likely tokens that have this probability together; 1 for all.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f32,

    /// Consider tokens that have at least this share of the probability of the most likely; 0 for all.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.05, allow_negative_numbers = true)]
    min_p: f32,

    /// Divide the logits of tokens that came before by this; 1 for none.
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,

    /// So many of the last tokens count as "before".
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    repeat_window: u32,

    /// The same seed gives the same text on the same device. Without it another one each time.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// End the answer at this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Steps that the device runs before the host looks: more save waiting on fast devices. Without it as many as pass in the
    /// blink of an eye.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u16).range(1..=256))]
    ahead: Option<u16>,
}

impl SamplingOptions {
    /// The options, with a seed drawn if none was given.
    pub(crate) fn generate(&self) -> GenerateOptions {
        let sampling = Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_window: self.repeat_window,
            seed: self.seed.unwrap_or_else(fresh_seed),
            ..Sampling::GREEDY
        };
        GenerateOptions {
            sampling,
            max_tokens: self.max_tokens.unwrap_or(usize::MAX),
            stop: self.stop.clone(),
            ahead: self.ahead.map_or(0, usize::from),
            ..GenerateOptions::default()
        }
    }
}

/// Another number each time, short enough to type again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff) << 16
}
