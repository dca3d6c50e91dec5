//! What can be wrong with a tokenizer, as types.

use crate::gguf::MetadataError;

use super::split::Pre;

/// Why a tokenizer cannot be made, or cannot decode.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key of the metadata is missing or has another type.
    #[error("tokenizer: {0}")]
    Metadata(#[from] MetadataError),
    /// A kind of tokenizer that is not known.
    #[error("tokenizer model {model:?} is not supported (supported: gpt2, llama)")]
    UnknownModel {
        /// The kind.
        model: String,
    },
    /// A pre-tokenizer that is not known.
    #[error("pre-tokenizer {pre:?} is not supported (supported: {})", Pre::names())]
    UnknownPre {
        /// Its name.
        pre: String,
    },
    /// A part of a tokenizer.json that is not known.
    #[error("tokenizer.json: {what} is not supported")]
    Unsupported {
        /// Which part, and what it is.
        what: String,
    },
    /// A tokenizer.json that is not JSON, or lacks a part.
    #[error("tokenizer.json: {what}")]
    Json {
        /// What is wrong with it.
        what: String,
    },
    /// No tokens at all.
    #[error("the vocabulary is empty")]
    Empty,
    /// More tokens than ids of 32 bits can tell apart.
    #[error("the vocabulary has {count} tokens, more than 32 bits can number")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Tokens that the model has no rows for.
    #[error("the tokenizer has {tokens} tokens, the model has only {rows} rows for them")]
    Rows {
        /// How many tokens.
        tokens: usize,
        /// How many rows.
        rows: usize,
    },
    /// Lists that should have one item per token and do not.
    #[error("there are {count} {what} for {tokens} tokens")]
    Count {
        /// Which list.
        what: &'static str,
        /// How many items it has.
        count: usize,
        /// How many tokens there are.
        tokens: usize,
    },
    /// The same text twice.
    #[error("tokens {first} and {second} are both {text:?}")]
    Duplicate {
        /// The token that came first.
        first: u32,
        /// The other.
        second: u32,
        /// Their text.
        text: String,
    },
    /// A token type that is not known.
    #[error("token {id} has type {found}; 1 to 6 are known")]
    TokenType {
        /// The token.
        id: usize,
        /// Its type.
        found: i64,
    },
    /// A token that stands for a byte and does not say which.
    #[error("token {id} stands for a byte, so it must be written <0xNN>, is {text:?}")]
    ByteToken {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A score that cannot be compared.
    #[error("the score of token {id} is not a number")]
    Score {
        /// The token.
        id: usize,
    },
    /// A merge that is not two texts with a space between them.
    #[error("merge {index} must be two tokens with a space between, is {text:?}")]
    Merge {
        /// Which merge, from 0.
        index: usize,
        /// Its text.
        text: String,
    },
    /// A merge of tokens that the vocabulary does not have.
    #[error("merge {index} ({text:?}) needs the token {missing:?}, which is not in the vocabulary")]
    MergeToken {
        /// Which merge, from 0.
        index: usize,
        /// Its text.
        text: String,
        /// What is missing.
        missing: String,
    },
    /// A special token that is not in the vocabulary.
    #[error("{what} is token {id}, but there are only {tokens} tokens")]
    SpecialToken {
        /// Which special token.
        what: &'static str,
        /// The id given.
        id: u32,
        /// How many tokens there are.
        tokens: usize,
    },
    /// A special token that is needed and not known.
    #[error("texts should get {what}, but the tokenizer does not say which token that is")]
    NoSpecialToken {
        /// Which special token.
        what: &'static str,
    },
    /// An id without a token, while decoding.
    #[error("token {id} does not exist (there are {tokens} tokens)")]
    NoSuchToken {
        /// The id.
        id: u32,
        /// How many tokens there are.
        tokens: usize,
    },
}
