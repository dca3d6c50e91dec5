//! A model on an engine.

use std::sync::Arc;

use fulmen_engine::{
    Engine, EngineError, EngineOptions, Event, Model, ModelSampling, Request, RequestHandle, Sampling,
    SamplingParams, Stats,
};
use fulmen_model::ModelError;
use fulmen_model::summary::Summary;
use fulmen_model::template::ChatTemplate;
use fulmen_model::tokenizer::Tokenizer;

use crate::constraints::ModelConstraints;
use crate::served::{ConstraintFactory, EmbedError, ModelInfo, ServedModel};

/// How the parameters of sampling are given to a device.
pub type SamplingMap = fn(&Sampling, &[(u32, f32)]) -> Result<SamplingParams, String>;

/// Computes the embedding of tokens.
pub type EmbedFunction = Box<dyn Fn(&[u32]) -> Result<Vec<f32>, EmbedError> + Send + Sync>;

/// How embeddings are computed.
pub enum Embedder {
    /// The hidden state of the last token, which the engine computes.
    LastToken,
    /// By a function, on a thread that may block.
    Function(EmbedFunction),
}

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
        device: device.to_owned(),
        bound: None,
    }
}

/// How the hidden states of a text become its embedding, with the number in model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    Mean = 1,
    First = 2,
    Last = 3,
}

impl Pooling {
    /// The pooling that a file names; the last token without a name. `None` for a model that gives states
    /// without pooling, or ranks.
    fn of_file(number: Option<u64>) -> Option<Pooling> {
        match number {
            None => Some(Pooling::Last),
            Some(number) => {
                [Pooling::Mean, Pooling::First, Pooling::Last].into_iter().find(|p| *p as u64 == number)
            }
        }
    }

    /// Pools the hidden states of tokens. `hidden` appends tokens to a sequence and gives the state of the
    /// last one. Attention is causal, so the states of a beginning do not depend on what follows.
    fn pool<E>(
        self,
        tokens: &[u32],
        mut hidden: impl FnMut(&[u32]) -> Result<Vec<f32>, E>,
    ) -> Result<Vec<f32>, E> {
        match self {
            Pooling::Last => hidden(tokens),
            Pooling::First => hidden(&tokens[..tokens.len().min(1)]),
            Pooling::Mean => {
                let mut sum: Vec<f64> = Vec::new();
                for token in tokens {
                    let state = hidden(std::slice::from_ref(token))?;
                    sum.resize(state.len(), 0.0);
                    sum.iter_mut().zip(&state).for_each(|(sum, value)| *sum += f64::from(*value));
                }
                let count = tokens.len().max(1) as f64;
                Ok(sum.into_iter().map(|value| (value / count) as f32).collect())
            }
        }
    }
}

/// Embeddings, pooled as the model's file says.
fn embedder(model: &Model) -> Option<Embedder> {
    let key = format!("{}.pooling_type", model.config().architecture);
    let pooling = Pooling::of_file(model.source().metadata().opt_u64(&key).ok()?)?;
    if pooling == Pooling::Last {
        return Some(Embedder::LastToken);
    }
    let model = model.clone();
    Some(Embedder::Function(Box::new(move |tokens| {
        let context = tokens.len().try_into().unwrap_or(u32::MAX);
        let options = fulmen_engine::SessionOptions { context, ..*model.session_options() };
        let pooled = model
            .session_with(options)
            .and_then(|mut session| pooling.pool(tokens, |tokens| session.hidden(0, tokens)));
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

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, EmbedError> {
        // The engine draws a token behind them.
        if tokens.len() >= self.context as usize {
            return Err(EmbedError::TooLong { tokens: tokens.len(), context: self.context });
        }
        match &self.embedder {
            None => Err(EmbedError::Unsupported),
            Some(Embedder::Function(embed)) => embed(tokens),
            Some(Embedder::LastToken) => {
                let mut request =
                    self.engine.submit(Request { hidden: true, ..Request::new(tokens.to_vec(), 1) });
                match request.next() {
                    Some(Event::Token(sampled)) => Ok(sampled.hidden),
                    Some(Event::Failed(error)) => Err(EmbedError::Failed(error.to_string())),
                    _ => Err(EmbedError::Failed("the engine has ended without a token".to_owned())),
                }
            }
        }
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_pooled_as_the_file_says() {
        let pool = |number: Option<u64>, tokens: &[u32]| {
            let mut seen: Vec<u32> = Vec::new();
            // The state of a token is its number, and how many there are so far.
            let hidden = |tokens: &[u32]| -> Result<Vec<f32>, ()> {
                seen.extend_from_slice(tokens);
                Ok(vec![*seen.last().unwrap() as f32, seen.len() as f32])
            };
            Pooling::of_file(number).map(|pooling| pooling.pool(tokens, hidden).unwrap())
        };
        let tokens = [5, 1, 3];
        assert_eq!(pool(None, &tokens), Some(vec![3.0, 3.0]));
        assert_eq!(pool(Some(1), &tokens), Some(vec![3.0, 2.0]));
        assert_eq!(pool(Some(2), &tokens), Some(vec![5.0, 1.0]));
        assert_eq!(pool(Some(3), &tokens), Some(vec![3.0, 3.0]));
        for number in [0, 4, 99] {
            assert_eq!(pool(Some(number), &tokens), None);
        }
    }
}
