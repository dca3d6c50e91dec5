//! Why a model cannot be loaded or run.

use fulmen_core::sampling::SamplingError;
use fulmen_core::{BackendError, BuildError, DType, ExecError};

use crate::arch::Architecture;
use crate::gguf::MetadataError;
use crate::source::SourceError;
use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;

/// Why a model cannot be loaded or run: what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A key is missing or has another type than it should.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The tokenizer makes no sense.
    #[error("the tokenizer: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// The chat template makes no sense.
    #[error("the chat template: {0}")]
    Template(#[from] TemplateError),
    /// An architecture that is not supported.
    #[error("the architecture {found:?} is not supported; supported are {known}", known = Architecture::names())]
    Architecture {
        /// Its name.
        found: String,
    },
    /// A key whose value makes no model.
    #[error("metadata key {key:?} must be {expected}, is {found}")]
    Value {
        /// The key.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A tensor that is not there.
    #[error("tensor {name:?} is missing ({expected} expected)")]
    MissingTensor {
        /// Its name.
        name: String,
        /// Its shape, by GGUF's order.
        expected: String,
    },
    /// A tensor of another shape.
    #[error("tensor {name:?} must be {expected}, is {found}{}", if *.transposed { ": it is transposed" } else { "" })]
    Shape {
        /// Its name.
        name: String,
        /// What it should be, by GGUF's order.
        expected: String,
        /// What it is.
        found: String,
        /// Whether it would fit with its dimensions the other way round.
        transposed: bool,
    },
    /// A tensor whose type cannot be used in its place.
    #[error("tensor {name:?} must be {expected}, is {found}")]
    TensorType {
        /// Its name.
        name: String,
        /// Types that can.
        expected: &'static str,
        /// Its type.
        found: DType,
    },
    /// Tensors that the architecture does not have: without them the model would compute something else.
    #[error("{count} tensors do not belong to a {architecture} model, the first is {first:?}")]
    ExtraTensors {
        /// The architecture.
        architecture: Architecture,
        /// How many there are.
        count: usize,
        /// One of them.
        first: String,
    },
    /// A weight, or the scale of a block of weights, that is NaN or infinite.
    #[error("tensor {name:?}: the value or block scale at element {element} is NaN or infinite")]
    NotFinite {
        /// The tensor.
        name: String,
        /// The first element that it touches.
        element: usize,
    },
    /// Not enough memory, seen before anything was loaded.
    #[error(
        "not enough memory: {} are needed (weights {}, KV cache {}, work {}) and {} are available; a smaller context \
         or a KV cache of 8 bits needs less",
        bytes(*.weights + *.cache + *.work), bytes(*.weights), bytes(*.cache), bytes(*.work), bytes(*.available)
    )]
    Memory {
        /// Bytes of weights that are still to be loaded.
        weights: u64,
        /// Bytes of the KV cache.
        cache: u64,
        /// Bytes of intermediate results.
        work: u64,
        /// Bytes that the device can give.
        available: u64,
    },
    /// Not enough memory for the KV cache, seen when it was asked for.
    #[error(
        "out of memory for the KV cache of {} ({sequences} x {context} positions in {dtype}); a smaller context or a KV \
         cache of 8 bits needs less",
        bytes(*.cache)
    )]
    CacheMemory {
        /// Its bytes.
        cache: u64,
        /// Positions of each sequence.
        context: u32,
        /// Sequences.
        sequences: u32,
        /// Its type.
        dtype: DType,
    },
    /// A context that the model was not made for.
    #[error("a context of {asked} is more than the model's {limit}")]
    Context {
        /// What was asked for.
        asked: u32,
        /// What the model allows.
        limit: u32,
    },
    /// An option that makes no sense.
    #[error("{what} must be {expected}, is {found}")]
    Option {
        /// Which one.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A sampling parameter that makes no sense.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// No tokens at all.
    #[error("the prompt is empty: a model needs at least one token to go on from")]
    EmptyPrompt,
    /// More tokens than the context has room for.
    #[error(
        "the prompt of {tokens} tokens does not fit the context of {context} ({used} of them are in use)"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the context.
        context: u32,
        /// Positions that are in use.
        used: u32,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} at place {at} is outside the vocabulary of {vocabulary}")]
    Token {
        /// The token.
        token: u32,
        /// Where it stands.
        at: usize,
        /// How many tokens there are.
        vocabulary: u32,
    },
    /// A sequence that the session does not have, or the same one twice.
    #[error("sequence {sequence} {problem} ({sequences} in this session)")]
    Sequence {
        /// The sequence.
        sequence: u32,
        /// What is wrong.
        problem: &'static str,
        /// How many there are.
        sequences: u32,
    },
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A text was given to a model that came without a tokenizer, or a chat to one without a template.
    #[error("the model has no {what}")]
    Without {
        /// What is missing.
        what: &'static str,
    },
    /// The graph could not be built: a mistake of this library.
    #[error("the graph of the model is refused: {0}")]
    Build(#[from] BuildError),
    /// The graph could not run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

fn bytes(bytes: u64) -> String {
    fulmen_core::device::format_bytes(bytes)
}
