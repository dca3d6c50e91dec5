//! Loads the models of a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fulmen_bench::memory_bandwidth::{self, DeviceState, bytes_per_position};
use fulmen_bench::model::LoadedModel;
use fulmen_core::device::DeviceSelector;
use fulmen_core::{BackendError, ExecError};
use fulmen_engine::pages::{GroupKind, PAGE_SIZE};
use fulmen_engine::{EngineError, EngineOptions, GroupStats, LoadOptions, Nodes, SessionOptions, Stats};
use fulmen_model::ModelError;
use fulmen_model::source::{self, ModelSource};
use fulmen_server::{
    DecodeBound, EngineModel, EngineModelError, ModelDescription, ModelLoader, ModelSpec, ServedModel,
};

use crate::model::builtin::builtin_model;
use crate::model::find::{FindError, find};
use crate::model::nodes::{NodeError, load_on_nodes};
use crate::model::split::{Load, SplitError, SplitOptions, device_name_of};
use crate::output::{tell, thousands};
use crate::select::{SelectError, hardware_threads, parse_device};

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Nodes(#[from] NodeError),
    #[error(transparent)]
    Engine(#[from] EngineModelError),
}

impl LoadError {
    /// Whether the device, as it is used now, has no memory for the model.
    fn is_out_of_memory(&self) -> bool {
        match self {
            LoadError::Model(error)
            | LoadError::Split(SplitError::Model(error))
            | LoadError::Nodes(NodeError::Split(SplitError::Model(error)))
            | LoadError::Engine(EngineModelError::Model(error)) => lacks_memory(error),
            LoadError::Engine(EngineModelError::Engine(EngineError::Model(error))) => lacks_memory(error),
            _ => false,
        }
    }
}

fn lacks_memory(error: &ModelError) -> bool {
    matches!(
        error,
        ModelError::Memory { .. }
            | ModelError::CacheMemory { .. }
            | ModelError::Backend(BackendError::OutOfMemory { .. })
            | ModelError::Exec(ExecError::Backend(BackendError::OutOfMemory { .. }))
    )
}

/// Loads models from files, from the cache of downloaded ones, and the built-in one.
pub(super) struct Loader {
    pub(super) device: DeviceSelector,
    pub(super) threads: Option<usize>,
    pub(super) split: SplitOptions,
    /// The processes that run the model, if there are several.
    pub(super) nodes: Option<Nodes>,
    /// Everything but the context, which a model may have of its own.
    pub(super) engine: EngineOptions,
    pub(super) check_weights: bool,
    pub(super) quiet: bool,
}

impl Loader {
    fn load(&self, spec: &ModelSpec) -> Result<EngineModel, LoadError> {
        let source = open(spec)?;
        let asked = match &spec.device {
            Some(device) => parse_device(device)?,
            None => self.device,
        };
        let context = spec.context.unwrap_or(self.engine.context);
        // Sessions compute embeddings; the engine has pages of its own.
        let session = SessionOptions { context, cache: self.engine.cache, ..SessionOptions::default() };
        let options = LoadOptions { session, check_weights: self.check_weights, progress: None };
        let engine = EngineOptions { context, ..self.engine.clone() };
        let threads = self.threads;
        let (model, device) = match &self.nodes {
            Some(nodes) => load_on_nodes(nodes, source, (&self.split, asked, threads), options)?,
            None => {
                let engine = Some(&engine);
                self.split
                    .load(source, Load { device: asked, threads, options, engine, quiet: self.quiet })?
            }
        };
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

fn open(spec: &ModelSpec) -> Result<Arc<dyn ModelSource>, LoadError> {
    Ok(match &spec.location {
        Some(location) => Arc::from(source::open(find(location)?).map_err(ModelError::from)?),
        None => Arc::from(source::from_bytes(builtin_model()).map_err(ModelError::from)?),
    })
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

/// How many tokens the KV pages hold.
fn pages(stats: &Stats) -> String {
    let tokens = |group: &GroupStats| thousands(u64::from(group.pages) * u64::from(PAGE_SIZE));
    let Some(all) = stats.groups.first().map(tokens) else { return String::new() };
    match stats.window_group() {
        Some(group) => {
            let GroupKind::Window { positions } = group.kind else { return String::new() };
            let (window, positions) = (tokens(&group), thousands(positions.into()));
            format!(", KV pages for {all} tokens ({window} in layers with a window of {positions})")
        }
        None => format!(", KV pages for {all} tokens"),
    }
}

impl Loader {
    /// Runs what node 0 tells this node, until it ends the model.
    pub(super) fn follow(&self, nodes: &Nodes, spec: &ModelSpec) -> Result<(), LoadError> {
        let source = open(spec)?;
        let session = SessionOptions { cache: self.engine.cache, ..SessionOptions::default() };
        let options = LoadOptions { session, check_weights: self.check_weights, progress: None };
        let (model, _) = load_on_nodes(nodes, source, (&self.split, self.device, self.threads), options)?;
        Ok(model.follow()?)
    }
}

impl ModelLoader for Loader {
    fn load(&self, spec: &ModelSpec) -> Result<Arc<dyn ServedModel>, fulmen_server::LoadError> {
        let started = std::time::Instant::now();
        let failed = |error: LoadError| fulmen_server::LoadError {
            out_of_memory: error.is_out_of_memory(),
            message: error.to_string(),
        };
        let model = Loader::load(self, spec).map_err(failed)?;
        if !self.quiet {
            let (seconds, device) = (started.elapsed().as_secs_f64(), &model.info.device);
            let (name, context, pages) = (&spec.name, model.context, pages(&model.engine.stats()));
            tell(&format!("loaded {name} on {device} in {seconds:.1} s, context {context}{pages}"));
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

    fn describe(&self, spec: &ModelSpec) -> Option<ModelDescription> {
        let context = spec.context.unwrap_or(self.engine.context);
        ModelDescription::of_source(open(spec).ok()?.as_ref(), context)
    }
}

/// The files of a split model, `NAME-00001-of-00003.gguf` and so on, if the path is one of them.
fn shards(path: &Path) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (start, count) = name.rsplit_once("-of-")?;
    let (stem, number) = start.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(number) || !digits(count) {
        return None;
    }
    let last: u32 = count.parse().ok()?;
    Some(
        (1..=last).map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{count}.gguf"))).collect(),
    )
}

fn size(path: &Path) -> Option<u64> {
    let metadata = path.metadata().ok()?;
    if !metadata.is_dir() {
        let shards = shards(path).unwrap_or_else(|| vec![path.to_owned()]);
        return shards.iter().map(|path| path.metadata().ok().map(|metadata| metadata.len())).sum();
    }
    let files = path.read_dir().ok()?.flatten().filter_map(|entry| entry.metadata().ok());
    Some(files.filter(|metadata| metadata.is_file()).map(|metadata| metadata.len()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shards_of_a_split_model_count() {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=3 {
            let name = format!("big-{number:05}-of-00003.gguf");
            std::fs::write(folder.path().join(name), vec![0; 100 * number]).unwrap();
        }
        std::fs::write(folder.path().join("small.gguf"), [0; 7]).unwrap();
        std::fs::write(folder.path().join("cut-00001-of-00002.gguf"), [0; 7]).unwrap();
        let of = |name: &str| size(&folder.path().join(name));
        assert_eq!(of("big-00001-of-00003.gguf"), Some(600));
        assert_eq!(of("small.gguf"), Some(7));
        // A shard is missing: the load says which.
        assert_eq!(of("cut-00001-of-00002.gguf"), None);
        assert_eq!(of("none.gguf"), None);
    }

    #[test]
    fn a_load_without_memory_is_told_from_others() {
        let out = || ModelError::from(BackendError::OutOfMemory { needed: 5, available: None });
        assert!(LoadError::Model(out()).is_out_of_memory());
        assert!(LoadError::Engine(EngineModelError::Model(out())).is_out_of_memory());
        let engine = EngineModelError::Engine(EngineError::Model(Arc::new(out())));
        assert!(LoadError::Engine(engine).is_out_of_memory());
        assert!(!LoadError::Model(ModelError::EmptyPrompt).is_out_of_memory());
    }
}
