//! Options of commands that load a model, and loading with a bar.

use std::path::Path;
use std::time::{Duration, Instant};

use fulmen_core::DType;
use fulmen_core::device::{DeviceInfo, format_bytes};
use fulmen_model::{LoadOptions, Model, ModelError, SessionOptions};
use indicatif::{ProgressBar, ProgressStyle};

use super::find::{FindError, find};
use super::story::story;
use crate::select::{OpenOption, SelectError};

/// Which model, on which device, with which caches.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelOptions {
    #[command(flatten)]
    pub(crate) open: OpenOption,

    /// Positions of the context: prompt and answer together. Without it the model's own, but at most 4096.
    #[arg(long, visible_alias = "context", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx: Option<u32>,

    /// Type of the KV cache.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = cache_type)]
    pub(crate) kv: DType,

    /// Tokens of a prompt that are run at once.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) chunk: u32,

    /// Launch decode steps op by op although the device could replay them.
    #[arg(long)]
    eager: bool,

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
}

/// A model, where it is, and how long that took.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) device: DeviceInfo,
    pub(crate) time: Duration,
}

impl ModelOptions {
    pub(crate) fn session(&self) -> SessionOptions {
        let (context, cache) = (self.ctx.unwrap_or(0), self.kv);
        SessionOptions { context, cache, chunk: self.chunk, eager: self.eager, sequences: 1 }
    }

    /// Loads a model, without a name the one that is part of the program; a bar on stderr shows how far it has come, on a
    /// terminal and nowhere else.
    pub(crate) fn load(&self, model: Option<&Path>, session: SessionOptions) -> Result<Loaded, LoadError> {
        let start = Instant::now();
        let path = model.map(find).transpose()?;
        let (info, device) = self.open.open()?;
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("loading {bar:30} {bytes} of {total_bytes}") {
            bar.set_style(style);
        }
        let mut report = |progress: fulmen_model::LoadProgress| {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        };
        let options = LoadOptions { session, check_weights: !self.no_check, progress: Some(&mut report) };
        let model = match path {
            Some(path) => Model::load_with(path, device, options),
            None => Model::from_bytes(story(), device, options),
        };
        bar.finish_and_clear();
        Ok(Loaded { model: model?, device: info, time: start.elapsed() })
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
