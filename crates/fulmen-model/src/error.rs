//! Why a model cannot be loaded or run.

use fulmen_core::sampling::SamplingError;
use fulmen_core::{BackendError, BuildError, DType, ExecError};

use crate::arch::Architecture;
use crate::gguf::MetadataError;
use crate::source::SourceError;
use crate::template::TemplateError;
use crate::tokenizer::TokenizerError;

/// What is before the message of a tokenizer: one that does not fit into memory may be valid.
fn tokenizer_prefix(error: &TokenizerError) -> &'static str {
    if matches!(error, TokenizerError::Memory { .. }) { "" } else { "invalid tokenizer: " }
}

/// Why a model cannot be loaded or run. Each message says what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A metadata key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The tokenizer is invalid.
    #[error("{prefix}{0}", prefix = tokenizer_prefix(.0))]
    Tokenizer(#[from] TokenizerError),
    /// The chat template is invalid.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The architecture is not supported.
    #[error("architecture {found:?} is not supported (supported: {known})", known = Architecture::names())]
    Architecture {
        /// Its name.
        found: String,
    },
    /// A metadata value that no valid model has.
    #[error("metadata key {key:?} must be {expected}, is {found}")]
    Value {
        /// The key.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A required tensor is missing.
    #[error("tensor {name:?} is missing (expected {expected})")]
    MissingTensor {
        /// Its name.
        name: String,
        /// The expected shape, in GGUF order.
        expected: String,
    },
    /// A tensor has the wrong shape.
    #[error(
        "tensor {name:?} must have the shape {expected}, has {found}{}",
        if *.transposed { " (it is transposed)" } else { "" }
    )]
    Shape {
        /// Its name.
        name: String,
        /// The expected shape, in GGUF order.
        expected: String,
        /// What it is.
        found: String,
        /// Whether the shape would match with its dimensions reversed.
        transposed: bool,
    },
    /// A tensor has a type that cannot be used for its purpose.
    #[error("tensor {name:?} must have type {expected}, has {found}")]
    TensorType {
        /// Its name.
        name: String,
        /// The types that are accepted.
        expected: &'static str,
        /// Its type.
        found: DType,
    },
    /// A weight of a type that the device has no kernels for; checked before anything is loaded.
    #[error(
        "tensor {name:?} has the type {dtype}, for which {backend} has no kernels; run the model on wgpu or \
         the CPU (--device wgpu, --device cpu)"
    )]
    WeightType {
        /// Its name.
        name: String,
        /// Its type.
        dtype: DType,
        /// The device's backend.
        backend: &'static str,
    },
    /// Tensors that the architecture does not define: ignoring them would compute a different model.
    #[error(
        "{count} {} not belong to a {architecture} model: {first:?}{}",
        if *.count == 1 { "tensor does" } else { "tensors do" },
        if *.count == 1 { "" } else { ", …" }
    )]
    ExtraTensors {
        /// The architecture.
        architecture: Architecture,
        /// How many there are.
        count: usize,
        /// The first of them.
        first: String,
    },
    /// A weight or the scale of a weight block is NaN or infinite.
    #[error("tensor {name:?}: the value or block scale at element {element} is NaN or infinite")]
    NotFinite {
        /// The tensor.
        name: String,
        /// The first element affected.
        element: usize,
    },
    /// The logits after a token have no finite maximum: the arithmetic has overflowed.
    #[error(
        "no logit after token {token} (position {position} of sequence {sequence}) is a finite number: \
         the weights are damaged, or too large for the arithmetic of the model"
    )]
    LogitsNotFinite {
        /// The token after which the next was to be drawn.
        token: u32,
        /// Its position.
        position: usize,
        /// Its sequence.
        sequence: u32,
    },
    /// The device does not have enough memory; checked before anything is loaded.
    #[error(
        "not enough memory ({device}): {} needed (weights {}, KV cache {}, activations {}), {} available; \
         use a smaller context or a q8_0 KV cache",
        bytes(*.weights + *.cache + *.activations),
        bytes(*.weights),
        bytes(*.cache),
        bytes(*.activations),
        bytes(*.available)
    )]
    Memory {
        /// The backend of the device: `cpu`, `cuda` or `wgpu`.
        device: &'static str,
        /// Bytes of the weights.
        weights: u64,
        /// Bytes of the KV cache.
        cache: u64,
        /// Bytes of activations.
        activations: u64,
        /// Bytes available on the device.
        available: u64,
    },
    /// Allocating the KV cache failed.
    #[error(
        "out of memory: the KV cache needs {} ({sequences} x {context} positions in {dtype}); \
         use a smaller context or a q8_0 KV cache",
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
    /// A context longer than the model supports.
    #[error("a context of {asked} tokens exceeds the model's limit of {limit}")]
    Context {
        /// The requested context.
        asked: u32,
        /// What the model allows.
        limit: u32,
    },
    /// An invalid option.
    #[error("{what} must be {expected}, is {found}")]
    Option {
        /// Which one.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A model without experts, of which some were to be on another device.
    #[error("this {architecture} model is not a mixture of experts: it has none to leave on the CPU")]
    NotAMixture {
        /// The architecture of the model.
        architecture: Architecture,
    },
    /// A model that cannot be divided among so many ranks.
    #[error("{ranks} ranks cannot share the model: {reason}; possible numbers of ranks: {possible}")]
    Sharding {
        /// The number of ranks.
        ranks: u32,
        /// What does not divide, or is not supported.
        reason: String,
        /// The numbers that are possible.
        possible: String,
    },
    /// A rank of a model that is divided among several failed.
    #[error("rank {rank} of {ranks}: {source}")]
    Rank {
        /// The rank, from 0.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// Its error.
        source: Box<ModelError>,
    },
    /// Ranks of another process failed, or the process has ended.
    #[error("node {node}: {reason}")]
    Node {
        /// The node, from 0.
        node: u32,
        /// What happened.
        reason: String,
    },
    /// A constraint could not go on: the grammar needs more work than its limits allow, or it is broken.
    #[error("{0}")]
    Constraint(String),
    /// An invalid sampling parameter.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The prompt has no tokens.
    #[error("the prompt is empty: a model needs at least one token to continue from")]
    EmptyPrompt,
    /// The prompt does not fit into the context.
    #[error(
        "the prompt of {tokens} {} does not fit into the context of {context} ({used} positions in use)",
        if *.tokens == 1 { "token" } else { "tokens" }
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the context.
        context: u32,
        /// Positions in use.
        used: u32,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} at index {at} is outside the vocabulary of {vocabulary} tokens")]
    Token {
        /// The token.
        token: u32,
        /// Its index in the input.
        at: usize,
        /// How many tokens there are.
        vocabulary: u32,
    },
    /// A sequence that the session does not have, or that was passed twice.
    #[error("sequence {sequence} {problem} (sequences in this session: {sequences})")]
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
    /// Text for a model without a tokenizer, or a chat with a model without a chat template.
    #[error("the model has no {what}")]
    Without {
        /// What is missing.
        what: &'static str,
    },
    /// The graph could not be built: a bug in this library.
    #[error("cannot build the model's graph: {0}")]
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
