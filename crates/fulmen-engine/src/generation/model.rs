//! A model on one or several devices.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, MutexGuard};

use fulmen_core::{Backend, Bindings, LogicalGraph, Plan, SharedBytes, timeline};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, GraphSpec, Placement, split_fused};
use fulmen_model::source::{self, Description, ModelSource};
use fulmen_model::template::ChatTemplate;
use fulmen_model::tokenizer::{Special, Tokenizer};

use super::generate::{GenerateOptions, Generated};
use super::load::{self, Devices, ModelStage};
use super::session::{Session, SessionOptions};
use super::sharded::Ranks;

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
    /// Called with the progress, again and again until all is done. `Break` ends loading with
    /// [`ModelError::Cancelled`].
    pub progress: Option<&'a mut dyn FnMut(LoadProgress) -> ControlFlow<()>>,
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

/// A model whose weights are on a device, or on several. Clones share them.
#[derive(Clone)]
pub struct Model {
    shared: Arc<Shared>,
}

/// What a model and its sessions share.
pub(super) struct Shared {
    pub(super) config: Config,
    /// Metadata and tensors; their data only if a device reads it in place.
    pub(super) source: Arc<dyn ModelSource>,
    pub(super) placement: Placement,
    /// One for each stage of the placement.
    pub(super) stages: Vec<ModelStage>,
    pub(super) session: SessionOptions,
    pub(super) tokenizer: Option<Tokenizer>,
    /// Whether a device reads the weights in the source's memory instead of a copy.
    pub(super) in_place: bool,
    /// The other ranks, if the model is divided among several and this is rank 0.
    pub(super) ranks: Option<Ranks>,
}

impl Shared {
    /// Locks the devices of all stages, in their order.
    pub(super) fn devices(&self) -> Vec<MutexGuard<'_, Device>> {
        self.stages.iter().map(ModelStage::device).collect()
    }

    /// The stage that computes results.
    pub(super) fn last(&self) -> &ModelStage {
        // A placement has at least one stage.
        &self.stages[self.stages.len() - 1]
    }

    /// The memory plan of what a stage runs of a step.
    pub(super) fn stage_plan(&self, stage: usize, spec: &GraphSpec) -> Result<Plan, ModelError> {
        let spec = spec.on(self.placement.stages()[stage]);
        self.stages[stage].templates.plan(&self.config, self.source.as_ref(), &spec)
    }

    fn bytes_per_token(&self) -> u64 {
        let Shared { config, stages, source, .. } = self;
        let weights: u64 = stages.iter().map(|stage| stage.weights.bytes + stage.host_bytes).sum();
        let embedding = source.tensor("token_embd.weight").map_or(0, |info| info.bytes() as u64);
        let row = embedding / u64::from(config.vocabulary.max(1));
        // Of a tied embedding, the first of several stages has a copy of its own.
        let copies = if stages.len() > 1 { 1 } else { 0 };
        let embeddings = if config.tied { copies } else { 1 };
        weights.saturating_sub(embeddings * embedding) + embeddings * row
    }

    /// Fails if the weights that a device reads were changed. To be called after each step, before its
    /// results are used.
    pub(super) fn check_weights(&self) -> Result<(), ModelError> {
        if self.in_place { Ok(self.source.check_unchanged()?) } else { Ok(()) }
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
        device: Device,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let source = split_fused(source)?;
        let config = Config::read(source.as_ref())?;
        let placement = Placement::whole(config.layers);
        Model::new(source, config, placement, Devices::of_stages(vec![device]), options)
    }

    /// Loads a mixture of experts onto two devices: the experts of its first `count` mixture layers onto
    /// `host`, all of them if there are fewer, and everything else onto `device`. A step of `device` is cut
    /// at each of these layers: it passes rows, expert ids and routing weights, and gets rows back.
    ///
    /// # Errors
    /// [`ModelError::NotAMixture`] if the model has no experts.
    pub fn from_source_experts_on(
        source: Arc<dyn ModelSource>,
        device: Device,
        (host, count): (Device, u32),
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let source = split_fused(source)?;
        let config = Config::read(source.as_ref())?;
        let placement = config.with_experts_on_host(count)?;
        let devices = Devices { stages: vec![device], host: Some(host) };
        Model::new(source, config, placement, devices, options)
    }

    /// Loads a model onto several devices, each of which runs some of its layers: the first `layers` of them
    /// on the first device, and so on. Hidden states go from one to the next, and the KV cache of a layer is
    /// where the layer is. With `layers[i]` for each device, at least 1, and together all layers.
    pub fn from_source_split(
        source: Arc<dyn ModelSource>,
        devices: Vec<(Device, u32)>,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let source = split_fused(source)?;
        let config = Config::read(source.as_ref())?;
        let (devices, layers): (Vec<Device>, Vec<u32>) = devices.into_iter().unzip();
        let placement = Placement::split(&layers, config.layers)?;
        Model::new(source, config, placement, Devices::of_stages(devices), options)
    }

    /// There is a device for each stage of the placement.
    fn new(
        source: Arc<dyn ModelSource>,
        config: Config,
        placement: Placement,
        devices: Devices,
        mut options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let mut session = options.session.resolve(&config)?;
        // Building the tokenizer of a large vocabulary takes as long as copying the weights.
        let tokenizer = || timeline::span("build the tokenizer", || Tokenizer::from_source(source.as_ref()));
        let load = || load::stages(source.as_ref(), &config, &placement, devices, &mut session, &mut options);
        let (tokenizer, stages) = load::beside(tokenizer, load);
        // A stage frees its weights when it is dropped.
        let (tokenizer, stages) = (tokenizer?, stages?);
        let in_place = stages.iter().any(|stage| stage.device().reads_imports_in_place());
        // Devices that copied the weights need no mapped file and no bytes of the host any more.
        let source = if in_place { source } else { Arc::new(Description::of(source.as_ref())) };
        let shared = Shared { config, source, placement, stages, session, tokenizer, in_place, ranks: None };
        Ok(Model::of(shared))
    }

    pub(super) fn of(shared: Shared) -> Model {
        Model::sharing(Arc::new(shared))
    }

    pub(super) fn sharing(shared: Arc<Shared>) -> Model {
        Model { shared }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The model's dimensions and constants.
    pub fn config(&self) -> &Config {
        self.shared.ranks.as_ref().map_or(&self.shared.config, |ranks| &ranks.config)
    }

    /// Which layers run on which device.
    pub fn placement(&self) -> &Placement {
        &self.shared.placement
    }

    /// Where the model was loaded from: its metadata and tensors. Their data is there only if a device
    /// reads it in place ([`DeviceMemory::reads_imports_in_place`](fulmen_core::DeviceMemory)); devices that
    /// copy the weights leave no copy on the host.
    pub fn source(&self) -> &dyn ModelSource {
        self.shared.ranks.as_ref().map_or(&self.shared.source, |ranks| &ranks.source).as_ref()
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

    /// An embedding of the text: its hidden states after the final norm, pooled as the file says
    /// ([`pooling`](Model::pooling)).
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, ModelError> {
        let tokenizer = self.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let tokens = tokenizer.encode_prompt(text, Special::AsText);
        self.session()?.embed(0, &tokens, self.pooling()?)
    }

    /// Bytes of the weights on all devices.
    pub fn weight_bytes(&self) -> u64 {
        self.stage_weight_bytes().iter().sum::<u64>() + self.host_weight_bytes()
    }

    /// Bytes of the weights of each stage, on all ranks. An embedding that is also the output matrix belongs
    /// to the first and to the last one.
    pub fn stage_weight_bytes(&self) -> Vec<u64> {
        let bytes = |stage: usize| self.all_ranks().map(move |rank| rank.stages[stage].weights.bytes).sum();
        (0..self.shared.stages.len()).map(bytes).collect()
    }

    /// Bytes of the weights of experts that are on another device than their layer.
    pub fn host_weight_bytes(&self) -> u64 {
        self.shared.stages.iter().map(|stage| stage.host_bytes).sum()
    }

    /// Bytes of weights that a decode step reads: all but the embedding, of which it reads one row, unless
    /// the embedding is also the output matrix.
    pub fn bytes_per_token(&self) -> u64 {
        self.all_ranks().map(|rank| rank.bytes_per_token()).sum()
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
        let _between_steps = self.between_steps()?;
        let chunks: Result<Vec<u32>, _> = self.all_ranks().map(|rank| load::chunk(rank, &options)).collect();
        options.chunk = chunks?.into_iter().min().unwrap_or(options.chunk);
        Session::new(Arc::clone(&self.shared), options).map_err(|error| self.error_of_first_rank(error))
    }

    /// The graph of a step, before fusion and planning: to print, to visualize, or to run elsewhere. Of
    /// several ranks, that of rank 0.
    pub fn graph(&self, spec: &GraphSpec) -> Result<LogicalGraph, ModelError> {
        self.shared.config.graph(self.shared.source.as_ref(), spec)
    }

    /// The memory plan of a step, fused for the device of its stage; without a stage, for the last device.
    pub fn plan(&self, spec: &GraphSpec) -> Result<Plan, ModelError> {
        let Shared { config, source, placement, stages, .. } = self.shared.as_ref();
        let place = placement.stages().iter().position(|&stage| Some(stage) == spec.stage);
        let stage = place.map_or(self.shared.last(), |place| &stages[place]);
        let spec = match (spec.stage, placement.stages()) {
            // Its host has weights that the device does not have.
            (None, &[only]) if only.is_cut() => spec.on(only),
            _ => *spec,
        };
        stage.templates.plan(config, source.as_ref(), &spec)
    }

    /// The addresses of the weights on the device, by name; of several devices, on the last. They are valid
    /// as long as the model or a clone of it lives.
    pub fn weights(&self) -> &Bindings {
        &self.shared.last().weights.bindings
    }

    /// The addresses of the weights of a stage of the placement.
    pub(crate) fn stage_weights(&self, stage: usize) -> &Bindings {
        &self.shared.stages[stage].weights.bindings
    }

    /// Calls `f` with the device of a stage of the placement, while nobody else uses it.
    pub(crate) fn with_stage<T>(&self, stage: usize, f: impl FnOnce(&mut dyn Backend) -> T) -> T {
        f(self.shared.stages[stage].device().as_mut())
    }

    /// Fails if the weights that a device reads in place were changed. To be called after each step, before
    /// its results are used.
    pub fn check_unchanged(&self) -> Result<(), ModelError> {
        self.shared.check_weights()
    }

    /// Calls `f` with the device, while no session uses it; of several devices, with the last.
    pub fn with_device<T>(&self, f: impl FnOnce(&mut dyn Backend) -> T) -> T {
        f(self.shared.last().device().as_mut())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", self.config()).finish_non_exhaustive()
    }
}
