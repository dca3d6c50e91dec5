//! A model on an engine.

use std::sync::Arc;

use fulmen_engine::{
    Engine, EngineError, EngineOptions, Model, ModelSampling, Pooling, Request, RequestHandle, Sampling,
    SamplingParams, Stats,
};
use fulmen_model::ModelError;
use fulmen_model::gguf::{Metadata, Value};
use fulmen_model::source::ModelSource;
use fulmen_model::summary::Summary;
use fulmen_model::template::ChatTemplate;
use fulmen_model::tokenizer::Tokenizer;
use serde_json::{Map, Value as Json, json};

use crate::constraints::ModelConstraints;
use crate::served::{ConstraintFactory, EmbedError, Embedder, ModelDescription, ModelInfo, ServedModel};

/// How the parameters of sampling are given to a device.
pub type SamplingMap = fn(&Sampling, &[(u32, f32)]) -> Result<SamplingParams, String>;

/// A model on an engine.
pub struct EngineModel {
    /// Runs the requests.
    pub engine: Engine,
    /// The tokenizer.
    pub tokenizer: SharedTokenizer,
    /// The chat template.
    pub template: Option<ChatTemplate>,
    /// Positions of prompt and answer together.
    pub context: u32,
    /// Key figures.
    pub info: ModelInfo,
    /// How the parameters of sampling are given to the device.
    pub sampling: SamplingMap,
    /// Makes constraints on answers.
    pub constraints: Option<Box<dyn ConstraintFactory>>,
    /// Whether the device gives log-probabilities.
    pub logprobs: bool,
    /// Computes embeddings.
    pub embedder: Option<Embedder>,
}

/// A tokenizer of its own, or that of a loaded model.
#[derive(Clone)]
pub enum SharedTokenizer {
    /// A tokenizer.
    Own(Arc<Tokenizer>),
    /// The tokenizer of a model that has one.
    Model(Model),
}

/// Why a model cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EngineModelError {
    /// The model lacks something, or an option does not fit it.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine could not be started.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl EngineModel {
    /// Starts an engine for a loaded model. `device` is its name for clients.
    pub fn new(
        model: &Model,
        options: &EngineOptions,
        device: &str,
    ) -> Result<EngineModel, EngineModelError> {
        if model.tokenizer().is_none() {
            return Err(ModelError::Without { what: "tokenizer" }.into());
        }
        let template = model.chat_template()?;
        let context = options.scheduler(model)?.context;
        let engine = Engine::for_model(model, options)?;
        Ok(EngineModel {
            engine,
            tokenizer: SharedTokenizer::Model(model.clone()),
            template,
            context,
            info: info(model, device),
            sampling: model_sampling,
            constraints: Some(Box::new(ModelConstraints::new(model))),
            logprobs: true,
            embedder: embedder(model),
        })
    }
}

/// The parameters that the device of a model takes.
fn model_sampling(sampling: &Sampling, logit_bias: &[(u32, f32)]) -> Result<SamplingParams, String> {
    if logit_bias.is_empty() {
        return Ok(SamplingParams::new(*sampling));
    }
    Ok(SamplingParams::new(ModelSampling { sampling: *sampling, logit_bias: logit_bias.to_vec() }))
}

fn info(model: &Model, device: &str) -> ModelInfo {
    let info = info_of(model.source(), Summary::of(model.source()).ok().as_ref());
    let architecture = model.config().architecture.to_string();
    ModelInfo { architecture, bytes: model.weight_bytes(), device: device.to_owned(), ..info }
}

/// The figures of a model that is not loaded.
fn info_of(source: &dyn ModelSource, summary: Option<&Summary>) -> ModelInfo {
    let types = summary.and_then(|summary| summary.types.iter().max_by_key(|(_, t)| t.parameters));
    ModelInfo {
        architecture: summary.and_then(|summary| summary.architecture.clone()).unwrap_or_default(),
        parameters: summary.map(|summary| summary.parameters),
        bytes: summary.map_or(0, |summary| summary.bytes),
        quantization: types.map_or(String::new(), |(dtype, _)| dtype.to_string()),
        embedding: summary.and_then(|s| s.embedding).and_then(|n| n.try_into().ok()).unwrap_or(0),
        metadata: metadata(source.metadata()),
        ..ModelInfo::default()
    }
}

impl ModelDescription {
    /// What the file of a model says of it. `context` is the one that is asked for, 0 for that of an engine.
    /// `None` if something is missing in the file: a load says what.
    pub fn of_source(source: &dyn ModelSource, context: u32) -> Option<ModelDescription> {
        let summary = Summary::of(source).ok()?;
        let tokenizer = Tokenizer::from_source(source).ok()??;
        let template = ChatTemplate::of_model(source.metadata(), &tokenizer).ok()?;
        let context = match context {
            0 => u32::try_from(summary.context?).ok()?.min(EngineOptions::DEFAULT_CONTEXT),
            asked => asked,
        };
        Some(ModelDescription { info: info_of(source, Some(&summary)), template, context })
    }
}

/// The keys of a file as JSON. Lists are those of the vocabulary, which has a path of its own.
fn metadata(metadata: &Metadata) -> Map<String, Json> {
    let json = |value: &Value| match value {
        Value::U8(number) => json!(number),
        Value::I8(number) => json!(number),
        Value::U16(number) => json!(number),
        Value::I16(number) => json!(number),
        Value::U32(number) => json!(number),
        Value::I32(number) => json!(number),
        Value::U64(number) => json!(number),
        Value::I64(number) => json!(number),
        Value::F32(number) => json!(number),
        Value::F64(number) => json!(number),
        Value::Bool(flag) => json!(flag),
        Value::String(text) => json!(text),
        Value::Array(_) => Json::Null,
    };
    metadata.iter().map(|(key, value)| (key.to_owned(), json(value))).collect()
}

/// Embeddings, pooled as the model's file says.
fn embedder(model: &Model) -> Option<Embedder> {
    let pooling = model.pooling().ok()?;
    if pooling == Pooling::Last {
        return Some(Embedder::LastToken);
    }
    let model = model.clone();
    Some(Embedder::Function(Box::new(move |tokens| {
        let context = tokens.len().try_into().unwrap_or(u32::MAX);
        let options = fulmen_engine::SessionOptions { context, ..*model.session_options() };
        let pooled = model.session_with(options).and_then(|mut session| session.embed(0, tokens, pooling));
        pooled.map_err(|error| EmbedError::Failed(error.to_string()))
    })))
}

impl ServedModel for EngineModel {
    fn tokenizer(&self) -> &Tokenizer {
        match &self.tokenizer {
            SharedTokenizer::Own(tokenizer) => tokenizer,
            SharedTokenizer::Model(model) => model.tokenizer().expect("EngineModel::new has checked it"),
        }
    }

    fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    fn context(&self) -> u32 {
        self.context
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn submit(&self, request: Request) -> RequestHandle {
        self.engine.submit(request)
    }

    fn sampling(&self, sampling: &Sampling, logit_bias: &[(u32, f32)]) -> Result<SamplingParams, String> {
        (self.sampling)(sampling, logit_bias)
    }

    fn constraints(&self) -> Option<&dyn ConstraintFactory> {
        self.constraints.as_deref()
    }

    fn has_logprobs(&self) -> bool {
        self.logprobs
    }

    fn embedder(&self) -> Option<&Embedder> {
        self.embedder.as_ref()
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }
}
