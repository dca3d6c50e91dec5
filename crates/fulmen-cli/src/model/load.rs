//! Options of commands that load a model, and loading with a bar.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_core::DType;
use fulmen_core::device::{DeviceInfo, format_bytes};
use fulmen_model::source::{self, ModelSource};
use fulmen_model::synth::SynthError;
use fulmen_model::{LoadOptions, Model, ModelError, SessionOptions};
use indicatif::{ProgressBar, ProgressStyle};

use super::find::{FindError, find};
use super::story::story;
use crate::select::{OpenOption, SelectError};

/// On which device a model runs, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct EngineOptions {
    #[command(flatten)]
    pub(crate) open: OpenOption,

    /// Type of the KV cache.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub(crate) kv: DType,

    /// Tokens of a prompt that are run at once. Without it 2048 with CUDA and on a discrete GPU, where memory allows, and 512
    /// elsewhere.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    chunk: Option<u32>,

    /// Launch decode steps op by op although the device could replay them.
    #[arg(long)]
    eager: bool,
}

/// Which model, on which device, with which caches.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelOptions {
    #[command(flatten)]
    pub(crate) engine: EngineOptions,

    /// Positions of the context: prompt and answer together. Without it the model's own, but at most 4096.
    #[arg(long, visible_alias = "context", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx: Option<u32>,

    /// Do not look at every weight for NaN and infinities while loading.
    #[arg(long)]
    no_check: bool,
}

fn cache_type(text: &str) -> Result<DType, String> {
    let known = [("f16", DType::F16), ("q8_0", DType::Q8_0), ("f32", DType::F32)];
    let found = known.into_iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    found.map(|(_, dtype)| dtype).ok_or_else(|| "the KV cache can be f16, q8_0 or f32".to_owned())
}

/// Why a model could not be loaded by a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Synth(#[from] SynthError),
}

/// A model, where it is, and how long that took.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) device: DeviceInfo,
    pub(crate) time: Duration,
}

impl EngineOptions {
    /// One sequence with so many positions; 0 for the model's own.
    pub(crate) fn session(&self, context: u32) -> SessionOptions {
        let chunk = self.chunk.unwrap_or(0);
        SessionOptions { context, cache: self.kv, chunk, eager: self.eager, sequences: 1 }
    }

    /// Loads a model; a bar on stderr shows how far it has come, on a terminal and nowhere else.
    pub(crate) fn load(
        &self,
        session: SessionOptions,
        check_weights: bool,
        source: impl FnOnce() -> Result<Arc<dyn ModelSource>, LoadError>,
    ) -> Result<Loaded, LoadError> {
        let start = Instant::now();
        let source = source()?;
        let (info, device) = self.open.open()?;
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("loading {bar:30} {bytes} of {total_bytes}") {
            bar.set_style(style);
        }
        let mut report = |progress: fulmen_model::LoadProgress| {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        };
        let options = LoadOptions { session, check_weights, progress: Some(&mut report) };
        let model = Model::from_source(source, device, options);
        bar.finish_and_clear();
        Ok(Loaded { model: model?, device: info, time: start.elapsed() })
    }
}

impl ModelOptions {
    pub(crate) fn session(&self) -> SessionOptions {
        self.engine.session(self.ctx.unwrap_or(0))
    }

    /// Loads the model at a path or of a name; without one the model that is part of the program.
    pub(crate) fn load(&self, model: Option<&Path>, session: SessionOptions) -> Result<Loaded, LoadError> {
        self.engine.load(session, !self.no_check, || {
            let source = match model {
                Some(model) => source::open(find(model)?),
                None => source::from_bytes(story()),
            };
            Ok(Arc::from(source.map_err(ModelError::from)?))
        })
    }
}

/// A model in few words: `llama, 30 layers, 98.9 MiB of weights`.
pub(crate) fn summary(model: &Model) -> String {
    let config = model.config();
    format!(
        "{}, {} layers, {} of weights",
        config.architecture,
        config.layers,
        format_bytes(model.weight_bytes())
    )
}
