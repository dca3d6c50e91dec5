//! A model on a device.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use fulmen_core::{Backend, LogicalGraph, SharedBytes};

use super::chunk;
use super::generate::{GenerateOptions, Generated};
use super::session::{Session, SessionOptions};
use super::weights::{self, Weights};
use crate::arch::{Config, GraphSpec, Step};
use crate::error::ModelError;
use crate::source::{self, ModelSource};
use crate::template::ChatTemplate;
use crate::tokenizer::{Special, Tokenizer};

/// A device that a model can be loaded onto.
pub type Device = Box<dyn Backend + Send>;

/// How far loading has come. Checking the weights and bringing them to the device count alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes done.
    pub done: u64,
    /// Bytes to do.
    pub total: u64,
}

/// How a model is loaded.
pub struct LoadOptions<'a> {
    /// The sessions that are planned: their memory must be there, too. [`Model::session`] makes one.
    pub session: SessionOptions,
    /// Whether every weight is looked at for NaN and infinities first.
    pub check_weights: bool,
    /// Is told how far it has come.
    pub progress: Option<&'a mut dyn FnMut(LoadProgress)>,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        LoadOptions { session: SessionOptions::default(), check_weights: true, progress: None }
    }
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoadOptions { session, check_weights, .. } = self;
        f.debug_struct("LoadOptions").field("session", session).field("check_weights", check_weights).finish()
    }
}

/// A model whose weights are on a device. Clones share them.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

/// What a model and its sessions share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) source: Arc<dyn ModelSource>,
    pub(super) weights: Weights,
    pub(super) session: SessionOptions,
    pub(super) tokenizer: Option<Tokenizer>,
    device: Mutex<Device>,
}

impl Shared {
    /// The device, when nobody else uses it. A thread that panicked while it had it changes nothing for the others:
    /// sessions write their own states before they run.
    pub(super) fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let device = self.device.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.weights.free(device.as_mut());
    }
}

impl Model {
    /// Loads a GGUF file, or a folder with `config.json` and safetensors files, onto a device.
    pub fn load(path: impl AsRef<Path>, device: Device) -> Result<Model, ModelError> {
        Model::load_with(path, device, LoadOptions::default())
    }

    /// Loads a file or folder onto a device, in a certain way.
    pub fn load_with(
        path: impl AsRef<Path>,
        device: Device,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        Model::from_source(Arc::from(source::open(path)?), device, options)
    }

    /// Loads a GGUF file that lies in memory, such as one that is part of the program (`Arc::new(include_bytes!(…))`). Where
    /// the device can use it there, it is not copied, unless its address is no multiple of 16.
    pub fn from_bytes(
        bytes: SharedBytes,
        device: Device,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        Model::from_source(Arc::from(source::from_bytes(bytes)?), device, options)
    }

    /// Loads a model from anything that gives metadata and tensors. Nothing is loaded before everything was checked:
    /// architecture, sizes, shapes, types, memory.
    pub fn from_source(
        source: Arc<dyn ModelSource>,
        mut device: Device,
        mut options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let config = Config::read(source.as_ref())?;
        let mut session = options.session.resolve(&config)?;
        let tokenizer = Tokenizer::from_source(source.as_ref())?;
        let graph =
            config.graph(source.as_ref(), &session.spec(Step::Decode { rows: 1, penalize: false }))?;
        let bytes = weights::weight_bytes(&graph);
        session.chunk = chunk::choose(device.as_ref(), &config, source.as_ref(), &session, bytes)?;
        check_memory(device.as_ref(), &config, source.as_ref(), &session, bytes)?;

        let total = if options.check_weights { bytes.saturating_mul(2) } else { bytes };
        let mut report = |done: u64| {
            if let Some(progress) = &mut options.progress {
                progress(LoadProgress { done: done.min(total), total });
            }
        };
        let mut checked = 0;
        if options.check_weights {
            weights::check(&graph, source.as_ref(), &mut report)?;
            checked = bytes;
        }
        let weights = Weights::load(device.as_mut(), &graph, source.as_ref(), &config, &mut |done| {
            report(checked + done)
        })?;
        report(total);
        let shared = Shared { config, source, weights, session, tokenizer, device: Mutex::new(device) };
        Ok(Model { shared: Arc::new(shared) })
    }

    /// Its sizes and constants.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The file that it came from.
    pub fn source(&self) -> &dyn ModelSource {
        self.shared.source.as_ref()
    }

    /// Its tokenizer, if the file has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.shared.tokenizer.as_ref()
    }

    /// Its chat template: its own or that of its family; `None` for a model that was not made for conversations.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, ModelError> {
        let tokenizer = self.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(ChatTemplate::of_model(self.source().metadata(), tokenizer)?)
    }

    /// Generates text that goes on from a prompt, in a session of its own, and gives each piece as it comes. A
    /// [`Session`] of your own keeps what was run for the next prompt.
    pub fn generate(
        &self,
        prompt: &str,
        options: &GenerateOptions,
        piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        self.session()?.generate(prompt, options)?.finish(piece)
    }

    /// The hidden row of the text's last token, after the last norm: an embedding of the text.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, ModelError> {
        let tokenizer = self.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let tokens = tokenizer.encode_prompt(text, Special::AsText);
        self.session()?.hidden(0, &tokens)
    }

    /// Bytes that its weights take on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.shared.weights.bytes
    }

    /// Bytes of weights that a decode step reads: all but the embedding, of which it reads a row, unless that is also
    /// the head.
    pub fn bytes_per_token(&self) -> u64 {
        let config = self.config();
        let embedding = self.source().tensor("token_embd.weight").map_or(0, |info| info.bytes() as u64);
        let row = embedding / u64::from(config.vocabulary.max(1));
        if config.tied { self.weight_bytes() } else { self.weight_bytes() - embedding + row }
    }

    /// The sessions that were planned when the model was loaded, with nothing left open.
    pub fn session_options(&self) -> &SessionOptions {
        &self.shared.session
    }

    /// A session as planned when the model was loaded.
    pub fn session(&self) -> Result<Session, ModelError> {
        self.session_with(self.shared.session)
    }

    /// A session with other options.
    pub fn session_with(&self, options: SessionOptions) -> Result<Session, ModelError> {
        let mut options = options.resolve(self.config())?;
        options.chunk =
            chunk::choose(self.shared.device().as_ref(), self.config(), self.source(), &options, 0)?;
        Session::new(Arc::clone(&self.shared), options)
    }

    /// The graph of a run, before fusion and planning: to print, to draw, or to run elsewhere.
    pub fn graph(&self, spec: &GraphSpec) -> Result<LogicalGraph, ModelError> {
        self.shared.config.graph(self.source(), spec)
    }

    /// Something done with the device, while no session uses it.
    pub fn with_device<T>(&self, f: impl FnOnce(&mut dyn Backend) -> T) -> T {
        f(self.shared.device().as_mut())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", self.config()).finish_non_exhaustive()
    }
}

/// Refuses what the device cannot hold, where it tells how much that is.
fn check_memory(
    device: &dyn Backend,
    config: &Config,
    source: &dyn ModelSource,
    session: &SessionOptions,
    weights: u64,
) -> Result<(), ModelError> {
    let Some(available) = device.available_bytes() else { return Ok(()) };
    let cache = session.cache_bytes(config);
    let work = chunk::work_bytes(config, source, session, session.chunk)?;
    if weights.saturating_add(cache).saturating_add(work) > available {
        return Err(ModelError::Memory { weights, cache, work, available });
    }
    Ok(())
}
