//! Prefill and decode throughput of a model at several depths, as llama-bench measures them.

use fulmen_engine::Session;
use serde::Serialize;

use super::runs::{DecodeRun, PrefillRun, TokenRate};
use super::{LoadedModel, ModelReport};
use crate::BenchError;
use crate::memory_bandwidth::{self, DeviceState, bytes_per_step};
use crate::progress::{Progress, Steps};

/// Which tests run at each depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThroughputOptions {
    /// Tokens of each prefill test.
    pub prefill: Vec<usize>,
    /// Tokens of each decode test.
    pub decode: Vec<usize>,
    /// Tokens in the KV cache before the test.
    pub depths: Vec<usize>,
    /// Sequences that decode together.
    pub batch: u32,
    /// Steps that the device runs before the host reads a token.
    pub steps_ahead: u16,
    /// Timed runs of each test.
    pub repeat: u16,
}

impl ThroughputOptions {
    /// The shortest context that fits every test.
    pub fn context(&self) -> u32 {
        let deepest = self.depths.iter().max().copied().unwrap_or(0);
        let longest = self.prefill.iter().chain(&self.decode).max().copied().unwrap_or(0);
        u32::try_from(deepest + longest + 1).unwrap_or(u32::MAX).max(64)
    }
}

/// One test. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThroughputTimes {
    /// Its name by the convention of llama-bench: `pp512` for prefill, `tg128` for decode.
    pub test: String,
    /// Tokens in the KV cache before the test.
    pub depth: usize,
    /// Sequences that decode together.
    pub batch: u32,
    /// Tokens per second.
    #[serde(flatten)]
    pub rate: TokenRate,
    /// Bytes per second that decoding must read: the weights once per step, and the KV cache of each
    /// sequence.
    pub read_bytes_per_second: Option<f64>,
    /// How much of the memory-bandwidth bound decoding reaches: `read_bytes_per_second` over the measured
    /// bandwidth.
    pub share_of_bound: Option<f64>,
}

/// Times prefill and decode of a model with the session options that it was loaded with.
///
/// # Errors
/// What the model reports.
pub fn bench_throughput(
    loaded: &LoadedModel,
    options: &ThroughputOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelReport<ThroughputTimes>, BenchError> {
    let mut session = loaded.model.session()?;
    let count = |tests: &[usize]| tests.iter().filter(|&&tokens| tokens > 0).count();
    let per_depth = count(&options.prefill) + count(&options.decode);
    let mut steps = Steps::new(1 + options.depths.len() * per_depth, progress);
    let mut tests = Vec::new();
    for &depth in &options.depths {
        for &tokens in options.prefill.iter().filter(|&&tokens| tokens > 0) {
            steps.start(&format!("prefill of {tokens} at depth {depth}"));
            tests.push(prefill(loaded, options, &mut session, depth, tokens)?);
            steps.finish(1);
        }
        for &tokens in options.decode.iter().filter(|&&tokens| tokens > 0) {
            steps.start(&format!("decode of {tokens} at depth {depth}"));
            tests.push(decode(loaded, options, &mut session, depth, tokens)?);
            steps.finish(1);
        }
    }
    steps.start("memory bandwidth");
    let bandwidth = memory_bandwidth::measure(loaded, DeviceState::Busy);
    steps.finish(1);
    for test in &mut tests {
        test.share_of_bound = test.read_bytes_per_second.zip(bandwidth).map(|(read, most)| read / most);
    }
    Ok(ModelReport::new(loaded, bandwidth, tests))
}

fn prefill(
    loaded: &LoadedModel,
    options: &ThroughputOptions,
    session: &mut Session,
    depth: usize,
    tokens: usize,
) -> Result<ThroughputTimes, BenchError> {
    let run = PrefillRun::new(&loaded.model, session, depth, tokens)?;
    let rate = run.rate(session, options.repeat)?;
    let test = format!("pp{tokens}");
    Ok(ThroughputTimes { test, depth, batch: 1, rate, read_bytes_per_second: None, share_of_bound: None })
}

fn decode(
    loaded: &LoadedModel,
    options: &ThroughputOptions,
    session: &mut Session,
    depth: usize,
    tokens: usize,
) -> Result<ThroughputTimes, BenchError> {
    let batch = options.batch;
    let run = DecodeRun::new(&loaded.model, session, batch, depth, options.steps_ahead)?;
    let rate = run.rate(session, tokens, options.repeat)?;
    let bytes = bytes_per_step(&loaded.model, session, depth.max(1) + tokens / 2, batch);
    let read = bytes as f64 * rate.mean / f64::from(batch);
    let test = if batch > 1 { format!("tg{tokens} x{batch}") } else { format!("tg{tokens}") };
    Ok(ThroughputTimes { test, depth, batch, rate, read_bytes_per_second: Some(read), share_of_bound: None })
}
