//! Errors of tokenizers.

use crate::gguf::MetadataError;

use super::split::Pre;

/// Why a tokenizer cannot be built, or cannot decode.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A metadata key is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An unknown tokenizer type.
    #[error("tokenizer model {model:?} is not supported (supported: gpt2, llama, gemma4)")]
    UnknownModel {
        /// The type.
        model: String,
    },
    /// An unknown pre-tokenizer.
    #[error("pre-tokenizer {pre:?} is not supported (supported: {})", Pre::names())]
    UnknownPre {
        /// Its name.
        pre: String,
    },
    /// An unsupported component of a tokenizer.json.
    #[error("tokenizer.json: {what} is not supported")]
    Unsupported {
        /// The component.
        what: String,
    },
    /// A tokenizer.json that cannot be parsed.
    #[error("tokenizer.json: {what}")]
    Json {
        /// The problem.
        what: String,
    },
    /// The vocabulary is empty.
    #[error("the vocabulary is empty")]
    Empty,
    /// More tokens than 32-bit ids can number.
    #[error("the vocabulary has {count} tokens, more than 32-bit ids can number")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// More tokens than the model has embedding rows.
    #[error("the tokenizer has {tokens} tokens, but the model has only {rows} embedding rows")]
    Rows {
        /// Number of tokens.
        tokens: usize,
        /// Number of embedding rows.
        rows: usize,
    },
    /// There is not enough memory.
    #[error("not enough memory for {what} of the tokenizer")]
    Memory {
        /// What it was needed for.
        what: &'static str,
        /// How many of them.
        count: usize,
    },
    /// A list that does not have one item per token.
    #[error("the number of {what} must be {tokens}, the number of tokens, is {count}")]
    Count {
        /// Which list.
        what: &'static str,
        /// Number of items.
        count: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// Two tokens with the same text.
    #[error("tokens {first} and {second} are both {text:?}")]
    Duplicate {
        /// The token that came first.
        first: u32,
        /// The other.
        second: u32,
        /// Their text.
        text: String,
    },
    /// An unknown token type.
    #[error("token {id} has the unknown type {found}; expected 1 to 6")]
    TokenType {
        /// The token.
        id: usize,
        /// Its type.
        found: i64,
    },
    /// A byte token without a valid byte.
    #[error("byte token {id} must have the form <0xNN>, is {text:?}")]
    ByteToken {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A score that is NaN.
    #[error("the score of token {id} is NaN")]
    Score {
        /// The token.
        id: usize,
    },
    /// A merge that is not two tokens separated by a space.
    #[error("merge {index} must be two tokens separated by a space, is {text:?}")]
    Merge {
        /// Which merge, from 0.
        index: usize,
        /// Its text.
        text: String,
    },
    /// A merge of tokens that are not in the vocabulary.
    #[error("merge {index} ({text:?}) needs the token {missing:?}, which is not in the vocabulary")]
    MergeToken {
        /// Which merge, from 0.
        index: usize,
        /// Its text.
        text: String,
        /// The missing token.
        missing: String,
    },
    /// A special token that is not in the vocabulary.
    #[error("{what} is token {id}, but the vocabulary has only {tokens} tokens")]
    SpecialToken {
        /// Which special token.
        what: &'static str,
        /// The id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// A required special token is not specified.
    #[error("the tokenizer adds {what} to prompts, but does not specify its id")]
    NoSpecialToken {
        /// Which special token.
        what: &'static str,
    },
    /// An id outside the vocabulary, while decoding.
    #[error("token {id} does not exist; the vocabulary has {tokens} tokens")]
    NoSuchToken {
        /// The id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
}

/// The error of an allocation for `count` items that failed.
pub(super) fn no_memory(what: &'static str, count: usize) -> TokenizerError {
    TokenizerError::Memory { what, count }
}

/// As [`no_memory`], if it failed.
pub(super) fn reserve<E>(
    reserved: Result<(), E>,
    what: &'static str,
    count: usize,
) -> Result<(), TokenizerError> {
    reserved.map_err(|_| no_memory(what, count))
}
