//! Options of commands that load a model, and loading with a progress bar.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen::OpenOptions;
use fulmen_bench::model::LoadedModel;
use fulmen_core::DType;
use fulmen_core::device::format_bytes;
use fulmen_core::timeline;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::source::{self, ModelSource};
use fulmen_model::synth::SynthError;
use indicatif::ProgressDrawTarget;

use super::builtin::builtin_model;
use super::find::{FindError, find};
use super::split::{Load, SplitError, SplitOptions};
use crate::error::CommandError;
use crate::output::counted;
use crate::progress::bar_with;
use crate::select::{OpenOption, open};

/// On which device a model runs, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct EngineOptions {
    #[command(flatten)]
    pub(crate) open: OpenOption,

    /// Type of the KV cache: f16, q8_0 or f32.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub(crate) kv: DType,

    /// Prefill chunk: tokens of a prompt that run at once. By default 4096 with CUDA and 2048 on
    /// discrete GPUs, if they have enough memory, and 512 on other devices.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    chunk: Option<u32>,

    /// Launch decode steps op by op instead of replaying a captured step.
    #[arg(long)]
    eager: bool,

    #[command(flatten)]
    pub(crate) split: SplitOptions,
}

/// Which model, on which device, with which context.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelOptions {
    #[command(flatten)]
    pub(crate) engine: EngineOptions,

    /// Context length: tokens of prompt and answer together. By default the model's own, but at most 4096, or
    /// what a longer prompt needs; benchmarks use what their tests need.
    #[arg(long, alias = "ctx", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,

    /// Do not check the weights for NaN and infinity while loading.
    #[arg(long)]
    no_check: bool,
}

pub(crate) fn cache_type(text: &str) -> Result<DType, String> {
    let known = [("f16", DType::F16), ("q8_0", DType::Q8_0), ("f32", DType::F32)];
    let found = known.into_iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    found.map(|(_, dtype)| dtype).ok_or_else(|| "the KV cache can be f16, q8_0 or f32".to_owned())
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Synth(#[from] SynthError),
}

impl CommandError for LoadError {
    fn is_usage(&self) -> bool {
        match self {
            LoadError::Split(error) => error.is_usage(),
            LoadError::Model(error) => error.is_usage(),
            LoadError::Find(error) => error.is_usage(),
            LoadError::Synth(_) => false,
        }
    }
}

impl EngineOptions {
    /// A session with one sequence and this context; 0 for the model's own.
    pub(crate) fn session(&self, context: u32) -> SessionOptions {
        let chunk = self.chunk.unwrap_or(0);
        SessionOptions { context, cache: self.kv, chunk, eager: self.eager, sequences: 1 }
    }

    /// Loads a model for sessions, or for an engine, with a progress bar.
    pub(crate) fn load(
        &self,
        session: SessionOptions,
        engine: Option<&fulmen_engine::EngineOptions>,
        check_weights: bool,
        source: impl FnOnce() -> Result<Arc<dyn ModelSource>, LoadError>,
    ) -> Result<LoadedModel, LoadError> {
        let start = Instant::now();
        let source = timeline::span("open the model file", source)?;
        let bar = bar_with("loading {bar:30} {bytes} of {total_bytes}", 0);
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let mut report = |progress: fulmen_engine::LoadProgress| {
            // Small models are loaded before anybody could read a bar.
            if bar.is_hidden() && start.elapsed() > Duration::from_millis(300) {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            if bar.length() != Some(progress.total) {
                bar.set_length(progress.total);
            }
            bar.set_position(progress.done);
            ControlFlow::Continue(())
        };
        let options = LoadOptions { session, check_weights, progress: Some(&mut report) };
        let (device, threads) = (self.open.device.device, self.open.asked_threads());
        let loaded = self.split.load(source, Load { device, threads, options, engine, quiet: false });
        bar.finish_and_clear();
        let (model, device) = loaded?;
        Ok(LoadedModel { model, device, load_time: start.elapsed(), threads: self.open.threads() })
    }
}

impl EngineOptions {
    /// Loads rank 0 of a model that is divided among `ranks`, without the others, to measure it.
    pub(crate) fn load_rank(
        &self,
        ranks: u32,
        session: SessionOptions,
        source: Arc<dyn ModelSource>,
    ) -> Result<LoadedModel, LoadError> {
        let start = Instant::now();
        let options = OpenOptions { threads: self.open.asked_threads() };
        let (device, opened) = open(self.open.device.device, &options).map_err(SplitError::from)?;
        let load = LoadOptions { session, check_weights: false, progress: None };
        let model = match ranks {
            1 => Model::from_source(source, opened, load)?,
            _ => Model::from_source_rank_alone(source, opened, ranks, load)?,
        };
        Ok(LoadedModel { model, device, load_time: start.elapsed(), threads: self.open.threads() })
    }
}

impl LoadError {
    /// Whether the model cannot be divided among a number of ranks.
    pub(crate) fn is_sharding(&self) -> bool {
        matches!(
            self,
            LoadError::Model(ModelError::Sharding { .. })
                | LoadError::Split(SplitError::Model(ModelError::Sharding { .. }))
        )
    }
}

impl ModelOptions {
    pub(crate) fn session(&self) -> SessionOptions {
        self.engine.session(self.context.unwrap_or(0))
    }

    /// Loads the model at a path or with a name for sessions; without one the built-in model.
    pub(crate) fn load(
        &self,
        model: Option<&Path>,
        session: SessionOptions,
    ) -> Result<LoadedModel, LoadError> {
        self.load_for(model, session, None)
    }

    /// The same for an engine.
    pub(crate) fn load_for(
        &self,
        model: Option<&Path>,
        session: SessionOptions,
        engine: Option<&fulmen_engine::EngineOptions>,
    ) -> Result<LoadedModel, LoadError> {
        self.engine.load(session, engine, !self.no_check, || {
            let source = match model {
                Some(model) => source::open(find(model)?),
                None => source::from_bytes(builtin_model()),
            };
            Ok(Arc::from(source.map_err(ModelError::from)?))
        })
    }
}

/// A model in a few words: `llama, 30 layers, 98.9 MiB of weights`.
pub(crate) fn summary(model: &Model) -> String {
    let config = model.config();
    let layers = counted(config.layers as usize, "layer");
    format!("{}, {layers}, {} of weights", config.architecture, format_bytes(model.weight_bytes()))
}
