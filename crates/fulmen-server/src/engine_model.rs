//! A model on an engine.

use std::sync::Arc;

use fulmen_engine::{
    Engine, EngineError, EngineOptions, Model, ModelSampling, Pooling, Request, RequestHandle, Sampling,
    SamplingParams, Stats,
};
use fulmen_model::ModelError;
use fulmen_model::gguf::{Metadata, Value};
use fulmen_model::summary::Summary;
use fulmen_model::template::ChatTemplate;
use fulmen_model::tokenizer::Tokenizer;
use serde_json::{Map, Value as Json, json};

use crate::constraints::ModelConstraints;
use crate::served::{ConstraintFactory, EmbedError, Embedder, ModelInfo, ServedModel};

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
    let config = model.config();
    let summary = Summary::of(model.source()).ok();
    let types = summary.as_ref().and_then(|summary| summary.types.iter().max_by_key(|(_, t)| t.parameters));
    ModelInfo {
        architecture: config.architecture.to_string(),
        parameters: summary.as_ref().map(|summary| summary.parameters),
        bytes: model.weight_bytes(),
        quantization: types.map_or(String::new(), |(dtype, _)| dtype.to_string()),
        embedding: summary.as_ref().and_then(|s| s.embedding).and_then(|n| n.try_into().ok()).unwrap_or(0),
        metadata: metadata(model.source().metadata()),
        device: device.to_owned(),
        bound: None,
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
