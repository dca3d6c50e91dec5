//! What the server needs of a model.

use fulmen_engine::Sampling;
use fulmen_engine::{Constraint, Request, RequestHandle, SamplingParams, Stats};
use fulmen_model::template::ChatTemplate;
use fulmen_model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A model that answers requests.
///
/// [`EngineModel`](crate::EngineModel) is one on an engine; programs may bring their own.
pub trait ServedModel: Send + Sync + 'static {
    /// The tokenizer.
    fn tokenizer(&self) -> &Tokenizer;

    /// The chat template; `None` for a model that was not trained for conversations.
    fn chat_template(&self) -> Option<&ChatTemplate>;

    /// Positions of prompt and answer together.
    fn context(&self) -> u32;

    /// Key figures for clients.
    fn info(&self) -> &ModelInfo;

    /// Queues a request.
    fn submit(&self, request: Request) -> RequestHandle;

    /// The device's parameters of sampling. `logit_bias` is added to the logits of tokens. The error says
    /// what the device does not do.
    fn sampling(&self, sampling: &Sampling, logit_bias: &[(u32, f32)]) -> Result<SamplingParams, String>;

    /// Makes constraints on answers; `None` if this model cannot be constrained.
    fn constraints(&self) -> Option<&dyn ConstraintFactory> {
        None
    }

    /// Whether log-probabilities of tokens can be had.
    fn has_logprobs(&self) -> bool {
        false
    }

    /// How embeddings are computed; `None` if this model gives none.
    fn embedder(&self) -> Option<&Embedder> {
        None
    }

    /// What the engine does now and has done. If its device was lost, the next request loads the model anew.
    fn stats(&self) -> Stats;
}

/// Computes the embedding of tokens, which fit into the context: not normalized, pooled as the model says.
pub type EmbedFunction = Box<dyn Fn(&[u32]) -> Result<Vec<f32>, EmbedError> + Send + Sync>;

/// How embeddings are computed.
pub enum Embedder {
    /// The hidden state of the last token, which the engine computes with the states of other requests.
    LastToken,
    /// By a function, on a thread that may block. The server runs one at a time.
    Function(EmbedFunction),
}

/// Why there is no embedding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The model gives no embeddings.
    #[error("this model gives no embeddings")]
    Unsupported,
    /// The text is too long.
    #[error("a text of {tokens} tokens does not fit into the context of {context}")]
    TooLong {
        /// Tokens of the text.
        tokens: usize,
        /// Positions of the context.
        context: u32,
    },
    /// The device failed.
    #[error("the embedding failed: {0}")]
    Failed(String),
}

/// Key figures of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// `general.architecture`.
    pub architecture: String,
    /// Parameters, if they are known.
    pub parameters: Option<u64>,
    /// Bytes of the weights.
    pub bytes: u64,
    /// The most frequent data type of the weights, such as `Q4_K`.
    pub quantization: String,
    /// Dimensions of a hidden state.
    pub embedding: u32,
    /// The keys of the model's file; `null` for lists.
    pub metadata: Map<String, Value>,
    /// The device that it runs on.
    pub device: String,
    /// What bounds its decoding; `None` if the bandwidth of the device is unknown.
    pub bound: Option<DecodeBound>,
}

/// What clients are told of a model.
#[derive(Debug)]
pub struct ModelDescription {
    /// Key figures.
    pub info: ModelInfo,
    /// The chat template.
    pub template: Option<ChatTemplate>,
    /// Positions of prompt and answer together.
    pub context: u32,
}

/// The memory-bandwidth bound of decoding: a token takes at least the time to read the weights and the keys
/// and values of all positions once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DecodeBound {
    /// Bytes that the device reads in a second.
    pub bytes_per_second: u64,
    /// Bytes of weights that a token reads.
    pub bytes_per_token: u64,
    /// Bytes that a token reads of every position before it.
    pub bytes_per_position: u64,
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema allows.
    JsonSchema(Value),
    /// A grammar in the syntax of llguidance (Lark).
    Lark(String),
    /// A regular expression for the whole answer.
    Regex(String),
}

/// Makes constraints on answers. An error is the client's: its grammar is wrong.
pub trait ConstraintFactory: Send + Sync {
    /// A constraint for one answer.
    fn constraint(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, String>;
}
