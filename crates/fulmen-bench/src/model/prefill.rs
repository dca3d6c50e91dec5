//! Prefill of a model.

use fulmen_engine::SessionOptions;
use serde::Serialize;

use super::runs::{PrefillRun, TokenRate};
use super::{LoadedModel, ModelReport, OpProfile, largest};
use crate::BenchError;
use crate::memory_bandwidth::{self, DeviceState};
use crate::peak::tensor_core_peak;
use crate::progress::{Progress, Steps};

/// Which prefills are timed: every combination of depths and lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillOptions {
    /// Tokens of the prompts.
    pub tokens: Vec<u32>,
    /// Tokens in the KV cache before the prompt.
    pub depths: Vec<u32>,
    /// Timed runs of each test.
    pub repeat: u16,
    /// The type of the KV cache, the prefill chunk and eager mode. Its context is not used.
    pub session: SessionOptions,
}

/// One prefill. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrefillTimes {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Tokens in the KV cache before the prompt.
    pub depth: u32,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
    /// Tokens per second.
    #[serde(flatten)]
    pub rate: TokenRate,
    /// Time of the prompt.
    pub seconds: f64,
    /// Operations of matmuls and of attention.
    pub flops: u64,
    /// `flops` per second.
    pub flops_per_second: f64,
    /// What the tensor cores of the device reach at most, if known.
    pub peak_flops_per_second: Option<f64>,
    /// How much of that was reached, from 0 to 1.
    pub share_of_peak: Option<f64>,
    /// The ops of the prefill.
    pub profile: OpProfile,
}

impl PrefillOptions {
    /// What a model must be loaded with so that every test fits.
    pub fn session_options(&self) -> SessionOptions {
        self.session_for(largest(&self.tokens), largest(&self.depths))
    }

    fn session_for(&self, tokens: u32, depth: u32) -> SessionOptions {
        SessionOptions { context: tokens.saturating_add(depth).saturating_add(1), ..self.session }
    }
}

/// Times prefills: a prompt runs in chunks, and its first token is sampled on the device and read by the
/// host.
///
/// # Errors
/// What the model reports, such as a context that it does not have.
pub fn bench_prefill(
    loaded: &LoadedModel,
    options: &PrefillOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelReport<PrefillTimes>, BenchError> {
    let mut steps = Steps::new(1 + options.depths.len() * options.tokens.len(), progress);
    steps.start("memory bandwidth");
    let bandwidth = memory_bandwidth::measure(loaded, DeviceState::Idle);
    steps.finish(1);
    let mut tests = Vec::new();
    for &depth in &options.depths {
        for &tokens in &options.tokens {
            steps.start(&format!("prefill of {tokens} at depth {depth}"));
            tests.push(measure(loaded, options, depth, tokens, bandwidth)?);
            steps.finish(1);
        }
    }
    Ok(ModelReport::new(loaded, bandwidth, tests))
}

fn measure(
    loaded: &LoadedModel,
    options: &PrefillOptions,
    depth: u32,
    tokens: u32,
    bandwidth: Option<f64>,
) -> Result<PrefillTimes, BenchError> {
    let model = &loaded.model;
    let mut session = model.session_with(options.session_for(tokens, depth))?;
    let prefill = PrefillRun::new(model, &mut session, depth as usize, tokens as usize)?;
    let rate = prefill.rate(&mut session, options.repeat)?;
    let seconds = rate.seconds(tokens.into());
    let name = format!("prefill of {tokens} token{} at depth {depth}", if tokens == 1 { "" } else { "s" });
    let run = |session: &mut _| prefill.run(session).map(drop);
    let profile = OpProfile::measure(name, &mut session, 1e6 * seconds, bandwidth, |_| Ok(()), run)?;
    let flops = profile.flops();
    let flops_per_second = flops as f64 / seconds;
    let peak = tensor_core_peak(&loaded.device);
    Ok(PrefillTimes {
        tokens,
        depth,
        chunk: session.options().chunk,
        rate,
        seconds,
        flops,
        flops_per_second,
        peak_flops_per_second: peak,
        share_of_peak: peak.map(|peak| flops_per_second / peak),
        profile,
    })
}
