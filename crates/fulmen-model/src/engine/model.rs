//! A model on a device.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use fulmen_core::{Backend, Bindings, LogicalGraph, Plan, SharedBytes, timeline};

use super::chunk;
use super::generate::{GenerateOptions, Generated};
use super::session::{Session, SessionOptions};
use super::templates::Templates;
use super::weights::{self, Weights};
use crate::arch::{Config, GraphSpec, Step};
use crate::error::ModelError;
use crate::source::{self, Description, ModelSource};
use crate::template::ChatTemplate;
use crate::tokenizer::{Special, Tokenizer};

/// A device that a model can be loaded onto.
pub type Device = Box<dyn Backend + Send>;

/// Loading progress. Checking the weights and importing them into the device count equally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes done.
    pub done: u64,
    /// Bytes to do.
    pub total: u64,
}

/// How a model is loaded.
pub struct LoadOptions<'a> {
    /// The options of [`Model::session`]; its memory must be available, too.
    pub session: SessionOptions,
    /// Whether the weights are checked for NaN and infinity, before or while they are imported.
    pub check_weights: bool,
    /// Called with the progress.
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
    /// Metadata and tensors; their data only if the device reads it in place.
    pub(super) source: Arc<dyn ModelSource>,
    pub(super) templates: Templates,
    pub(super) weights: Weights,
    pub(super) session: SessionOptions,
    pub(super) tokenizer: Option<Tokenizer>,
    /// Whether the device reads the weights in the source's memory instead of a copy.
    in_place: bool,
    device: Mutex<Device>,
}

impl Shared {
    /// Locks the device. A thread that panicked while holding the lock does not affect the others: sessions
    /// write their own state before they run.
    pub(super) fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Fails if the weights that the device reads were changed. To be called after each step, before its
    /// results are used.
    pub(super) fn check_weights(&self) -> Result<(), ModelError> {
        if self.in_place { Ok(self.source.check_unchanged()?) } else { Ok(()) }
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

    /// Loads a file or folder onto a device, with options.
    pub fn load_with(
        path: impl AsRef<Path>,
        device: Device,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        Model::from_source(Arc::from(source::open(path)?), device, options)
    }

    /// Loads a GGUF file held in memory, such as one embedded in the program (`Arc::new(include_bytes!(…))`).
    /// It is not copied if the device can use it in place and its address is a multiple of 16.
    pub fn from_bytes(
        bytes: SharedBytes,
        device: Device,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        Model::from_source(Arc::from(source::from_bytes(bytes)?), device, options)
    }

    /// Loads a model from any source of metadata and tensors. Architecture, dimensions, types and memory are
    /// checked before anything is loaded.
    pub fn from_source(
        source: Arc<dyn ModelSource>,
        mut device: Device,
        mut options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let config = Config::read(source.as_ref())?;
        let mut session = options.session.resolve(&config)?;
        // Building the tokenizer of a large vocabulary takes as long as copying the weights.
        let tokenizer = || timeline::span("build the tokenizer", || Tokenizer::from_source(source.as_ref()));
        let load = || load_weights(device.as_mut(), source.as_ref(), &config, &mut session, &mut options);
        let (tokenizer, loaded) = beside(tokenizer, load);
        let tokenizer = match tokenizer {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                if let Ok((_, mut weights)) = loaded {
                    weights.free(device.as_mut());
                }
                return Err(error.into());
            }
        };
        let (templates, weights) = loaded?;
        let in_place = device.reads_imports_in_place();
        // A device that copied the weights needs no mapped file and no bytes of the host any more.
        let source = if in_place { source } else { Arc::new(Description::of(source.as_ref())) };
        let device = Mutex::new(device);
        let shared = Shared { config, source, templates, weights, session, tokenizer, in_place, device };
        Ok(Model { shared: Arc::new(shared) })
    }

    /// The model's dimensions and constants.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Where the model was loaded from: its metadata and tensors. Their data is there only if the device
    /// reads it in place ([`DeviceMemory::reads_imports_in_place`](fulmen_core::DeviceMemory)); a device that
    /// copies the weights leaves no copy on the host.
    pub fn source(&self) -> &dyn ModelSource {
        self.shared.source.as_ref()
    }

    /// The tokenizer, if the source has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.shared.tokenizer.as_ref()
    }

    /// The chat template: the model's own or that of its family; `None` for a model without one.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>, ModelError> {
        let tokenizer = self.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(ChatTemplate::of_model(self.source().metadata(), tokenizer)?)
    }

    /// Generates text that continues a prompt, in a new session; `piece` gets the text as it is generated. To
    /// reuse the KV cache for the next prompt, use a [`Session`].
    pub fn generate(
        &self,
        prompt: &str,
        options: &GenerateOptions,
        piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        self.session()?.generate(prompt, options)?.finish(piece)
    }

    /// The hidden state of the last token, after the final norm: an embedding of the text.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, ModelError> {
        let tokenizer = self.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let tokens = tokenizer.encode_prompt(text, Special::AsText);
        self.session()?.hidden(0, &tokens)
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.shared.weights.bytes
    }

    /// Bytes of weights that a decode step reads: all but the embedding, of which it reads one row, unless
    /// the embedding is also the output matrix.
    pub fn bytes_per_token(&self) -> u64 {
        let config = self.config();
        let embedding = self.source().tensor("token_embd.weight").map_or(0, |info| info.bytes() as u64);
        let row = embedding / u64::from(config.vocabulary.max(1));
        if config.tied { self.weight_bytes() } else { self.weight_bytes() - embedding + row }
    }

    /// The session options given when the model was loaded, with all defaults filled in.
    pub fn session_options(&self) -> &SessionOptions {
        &self.shared.session
    }

    /// A session with the options given when the model was loaded.
    pub fn session(&self) -> Result<Session, ModelError> {
        self.session_with(self.shared.session)
    }

    /// A session with other options.
    pub fn session_with(&self, options: SessionOptions) -> Result<Session, ModelError> {
        let mut options = options.resolve(self.config())?;
        let Shared { templates, config, source, .. } = self.shared.as_ref();
        let activations = |rows| activation_bytes(templates, config, source.as_ref(), &options, rows);
        let chunk = chunk::choose(self.shared.device().as_ref(), config, &options, 0, activations)?;
        options.chunk = chunk;
        Session::new(Arc::clone(&self.shared), options)
    }

    /// The graph of a step, before fusion and planning: to print, to visualize, or to run elsewhere.
    pub fn graph(&self, spec: &GraphSpec) -> Result<LogicalGraph, ModelError> {
        self.shared.config.graph(self.source(), spec)
    }

    /// The memory plan of a step, fused for the device.
    pub fn plan(&self, spec: &GraphSpec) -> Result<Plan, ModelError> {
        let Shared { templates, config, source, .. } = self.shared.as_ref();
        templates.plan(config, source.as_ref(), spec)
    }

    /// The addresses of the weights on the device, by name. They are valid as long as the model or a clone of
    /// it lives.
    pub fn weights(&self) -> &Bindings {
        &self.shared.weights.bindings
    }

    /// Fails if the weights that the device reads in place were changed. To be called after each step, before
    /// its results are used.
    pub fn check_unchanged(&self) -> Result<(), ModelError> {
        self.shared.check_weights()
    }

    /// Calls `f` with the device, while no session uses it.
    pub fn with_device<T>(&self, f: impl FnOnce(&mut dyn Backend) -> T) -> T {
        f(self.shared.device().as_mut())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", self.config()).finish_non_exhaustive()
    }
}

/// Runs `first` on another thread beside `second`. Without threads, one after the other.
fn beside<A: Send, B>(first: impl Fn() -> A + Send + Sync, second: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let running = thread::Builder::new().spawn_scoped(scope, &first);
        let second = second();
        let first = match running {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => first(),
        };
        (first, second)
    })
}

/// Checks that a model fits, chooses its prefill chunk, and imports its weights.
fn load_weights(
    device: &mut dyn Backend,
    source: &dyn ModelSource,
    config: &Config,
    session: &mut SessionOptions,
    options: &mut LoadOptions<'_>,
) -> Result<(Templates, Weights), ModelError> {
    let graph =
        config.graph(source, &session.spec(Step::Decode { rows: 1, penalize: false, mask: false }))?;
    let bytes = weights::weight_bytes(&graph);
    let templates = Templates::new(device.fusions());
    let activations = |rows| activation_bytes(&templates, config, source, session, rows);
    let chunk = chunk::choose(device, config, session, bytes, activations)?;
    check_memory(device, config, session, bytes, activations(chunk)?)?;
    session.chunk = chunk;

    // Checking and importing count equally.
    let steps = if options.check_weights { 2 } else { 1 };
    let total = bytes.saturating_mul(steps);
    let mut report = |done: u64| {
        if let Some(progress) = &mut options.progress {
            progress(LoadProgress { done: done.min(total), total });
        }
    };
    let mut doubled = |done: u64| report(done.saturating_mul(steps));
    let weights = Weights::load(device, &graph, source, config, options.check_weights, &mut doubled)?;
    report(total);
    Ok((templates, weights))
}

/// Bytes of the activations of a prefill of `rows` tokens.
fn activation_bytes(
    templates: &Templates,
    config: &Config,
    source: &dyn ModelSource,
    session: &SessionOptions,
    rows: u32,
) -> Result<u64, ModelError> {
    let spec = session.spec(Step::Prefill { rows: rows.min(session.context), results: None });
    Ok(templates.plan(config, source, &spec)?.arena_bytes as u64)
}

/// Fails if the device reports less available memory than needed.
fn check_memory(
    device: &dyn Backend,
    config: &Config,
    session: &SessionOptions,
    weights: u64,
    activations: u64,
) -> Result<(), ModelError> {
    let Some(available) = device.available_bytes() else { return Ok(()) };
    let cache = session.cache_bytes(config);
    if weights.saturating_add(cache).saturating_add(activations) > available {
        return Err(ModelError::Memory { weights, cache, activations, available });
    }
    Ok(())
}
