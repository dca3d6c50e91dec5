//! Loads the models of a server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fulmen_bench::memory_bandwidth::{self, DeviceState, bytes_per_position};
use fulmen_bench::model::LoadedModel;
use fulmen_core::device::DeviceSelector;
use fulmen_engine::EngineOptions;
use fulmen_engine::{LoadOptions, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::source::{self, ModelSource};
use fulmen_server::{DecodeBound, EngineModel, EngineModelError, ModelLoader, ModelSpec, ServedModel};

use crate::model::builtin::builtin_model;
use crate::model::find::{FindError, find};
use crate::model::split::{Load, SplitError, SplitOptions, device_name_of};
use crate::output::tell;
use crate::select::{SelectError, hardware_threads, parse_device};

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Engine(#[from] EngineModelError),
}

/// Loads models from files, from the cache of downloaded ones, and the built-in one.
pub(super) struct Loader {
    pub(super) device: DeviceSelector,
    pub(super) threads: Option<usize>,
    pub(super) split: SplitOptions,
    /// Everything but the context, which a model may have of its own.
    pub(super) engine: EngineOptions,
    pub(super) check_weights: bool,
    pub(super) quiet: bool,
}

impl Loader {
    fn load(&self, spec: &ModelSpec) -> Result<EngineModel, LoadError> {
        let source: Arc<dyn ModelSource> = match &spec.location {
            Some(location) => Arc::from(source::open(find(location)?).map_err(ModelError::from)?),
            None => Arc::from(source::from_bytes(builtin_model()).map_err(ModelError::from)?),
        };
        let asked = match &spec.device {
            Some(device) => parse_device(device)?,
            None => self.device,
        };
        let context = spec.context.unwrap_or(self.engine.context);
        // Sessions compute embeddings; the engine has pages of its own.
        let session = SessionOptions { context, cache: self.engine.cache, ..SessionOptions::default() };
        let options = LoadOptions { session, check_weights: self.check_weights, progress: None };
        let engine = EngineOptions { context, ..self.engine.clone() };
        let load =
            Load { device: asked, threads: self.threads, options, engine: Some(&engine), quiet: self.quiet };
        let (model, device) = self.split.load(source, load)?;
        let name = device_name_of(&model, &device);
        let threads = self.threads.unwrap_or_else(hardware_threads);
        let loaded = LoadedModel { model, device, load_time: Duration::ZERO, threads };
        // Before the engine takes the rest of the device's memory.
        let bound = bound(&loaded);
        let mut served = EngineModel::new(&loaded.model, &engine, &name)?;
        served.info.bound = bound;
        Ok(served)
    }
}

/// What bounds decoding, for the share of it that clients show.
fn bound(loaded: &LoadedModel) -> Option<DecodeBound> {
    let bandwidth = memory_bandwidth::measure(loaded, DeviceState::Idle)?;
    Some(DecodeBound {
        bytes_per_second: bandwidth as u64,
        bytes_per_token: loaded.model.bytes_per_token(),
        bytes_per_position: bytes_per_position(&loaded.model, loaded.model.session_options()),
    })
}

impl ModelLoader for Loader {
    fn load(&self, spec: &ModelSpec) -> Result<Arc<dyn ServedModel>, String> {
        let started = std::time::Instant::now();
        let model = Loader::load(self, spec).map_err(|error| error.to_string())?;
        if !self.quiet {
            let (seconds, device) = (started.elapsed().as_secs_f64(), &model.info.device);
            tell(&format!("loaded {} on {device} in {seconds:.1} s, context {}", spec.name, model.context));
        }
        Ok(Arc::new(model))
    }

    /// The size of its files; KV pages come on top.
    fn bytes(&self, spec: &ModelSpec) -> Option<u64> {
        let Some(location) = &spec.location else {
            return Some(builtin_model().as_ref().as_ref().len() as u64);
        };
        size(&find(location).ok()?)
    }
}

fn size(path: &Path) -> Option<u64> {
    let metadata = path.metadata().ok()?;
    if !metadata.is_dir() {
        return Some(metadata.len());
    }
    let files = path.read_dir().ok()?.flatten().filter_map(|entry| entry.metadata().ok());
    Some(files.filter(|metadata| metadata.is_file()).map(|metadata| metadata.len()).sum())
}
