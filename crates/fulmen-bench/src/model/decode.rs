//! Decode steps of a model.

use fulmen_engine::SessionOptions;
use serde::Serialize;

use super::runs::{DecodeRun, TokenRate};
use super::{LoadedModel, ModelReport, OpProfile, largest};
use crate::memory_bandwidth::{self, DeviceState, bytes_per_step};
use crate::progress::{Progress, Steps};
use crate::{BenchError, Bound};

/// Which decode steps are timed: every combination of depths and batches.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeOptions {
    /// Tokens in the KV cache of each sequence before the first step.
    pub depths: Vec<u32>,
    /// Sequences that decode together.
    pub batches: Vec<u32>,
    /// Steps of a run.
    pub steps: u16,
    /// Steps that the device runs before the host reads a token.
    pub steps_ahead: u16,
    /// Timed runs of each test.
    pub repeat: u16,
    /// The type of the KV cache, the prefill chunk and eager mode. Its context and sequences are not used.
    pub session: SessionOptions,
}

/// One depth and batch. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DecodeTimes {
    /// Tokens in the KV cache before the first step.
    pub depth: u32,
    /// Sequences that decode together.
    pub batch: u32,
    /// Tokens of all sequences per second.
    #[serde(flatten)]
    pub rate: TokenRate,
    /// Time of a step.
    pub step_us: f64,
    /// Launches of a step by the host: 1 if a captured step is replayed.
    pub launches: Option<usize>,
    /// Kernels of a step.
    pub kernels: Option<usize>,
    /// Time that the host spends launching a step.
    pub host_us: Option<f64>,
    /// Bytes that a step must read: the weights once, and the KV cache of each sequence.
    pub read_bytes: u64,
    /// The [bound](crate::Bound) of a step.
    pub bound_us: Option<f64>,
    /// The bound divided by the time of a step.
    pub share_of_bound: Option<f64>,
    /// The ops of a step.
    pub profile: OpProfile,
}

impl DecodeOptions {
    /// What a model must be loaded with so that every test fits.
    pub fn session_options(&self) -> SessionOptions {
        self.session_for(largest(&self.depths), largest(&self.batches).max(1))
    }

    /// Just enough context: more would cost time on some devices.
    fn session_for(&self, depth: u32, sequences: u32) -> SessionOptions {
        let context = depth.saturating_add(self.steps.into()).saturating_add(1);
        SessionOptions { context, sequences, ..self.session }
    }
}

/// Times decode steps: sequences decode greedily, the token is sampled on the device and read by the host.
///
/// # Errors
/// What the model reports, such as a context that it does not have.
pub fn bench_decode(
    loaded: &LoadedModel,
    options: &DecodeOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ModelReport<DecodeTimes>, BenchError> {
    let mut steps = Steps::new(1 + options.depths.len() * options.batches.len(), progress);
    steps.start("memory bandwidth");
    let bandwidth = memory_bandwidth::measure(loaded, DeviceState::Idle);
    steps.finish(1);
    let mut tests = Vec::new();
    for &depth in &options.depths {
        for &batch in &options.batches {
            steps.start(&format!("decode at depth {depth}, batch {batch}"));
            tests.push(measure(loaded, options, depth, batch, bandwidth)?);
            steps.finish(1);
        }
    }
    Ok(ModelReport::new(loaded, bandwidth, tests))
}

pub(super) fn measure(
    loaded: &LoadedModel,
    options: &DecodeOptions,
    depth: u32,
    batch: u32,
    bandwidth: Option<f64>,
) -> Result<DecodeTimes, BenchError> {
    let model = &loaded.model;
    let mut session = model.session_with(options.session_for(depth, batch))?;
    let decode = DecodeRun::new(model, &mut session, batch, depth as usize, options.steps_ahead)?;
    let rate = decode.rate(&mut session, options.steps.into(), options.repeat)?;
    let launches = session.step_launches();
    let middle = depth as usize + usize::from(options.steps) / 2;
    let read_bytes = bytes_per_step(model, &session, middle, batch);
    let step_us = 1e6 * rate.seconds(batch.into());
    let name = format!("decode step at depth {depth}, batch {batch}");
    let run = |session: &mut _| decode.run(session, 1).map(drop);
    let rewind = |session: &mut _| decode.rewind(session);
    let profile = OpProfile::measure(name, &mut session, step_us, bandwidth, rewind, run)?;
    let bound_us = Bound::of(&loaded.device, bandwidth).map(|bound| bound.us(&profile.ops));
    Ok(DecodeTimes {
        depth,
        batch,
        rate,
        step_us,
        launches: launches.map(|launches| launches.launches),
        kernels: launches.map(|launches| launches.kernels),
        host_us: launches.map(|launches| 1e6 * launches.host.as_secs_f64()),
        read_bytes,
        bound_us,
        share_of_bound: bound_us.map(|bound| bound / step_us),
        profile,
    })
}
