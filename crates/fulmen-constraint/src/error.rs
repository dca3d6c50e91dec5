//! What can go wrong with a grammar.

/// Why a grammar was refused, or what is wrong with a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// A grammar that is larger than the limit.
    #[error("the {kind} has {bytes} bytes; at most {limit} are allowed")]
    TooLong {
        /// The kind of grammar.
        kind: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Brackets within brackets beyond the limit.
    #[error("the {kind} is nested {depth} levels deep; at most {limit} are allowed")]
    TooDeep {
        /// The kind of grammar.
        kind: &'static str,
        /// Its depth.
        depth: usize,
        /// The limit.
        limit: usize,
    },
    /// Text that is not JSON.
    #[error("the JSON schema is not JSON: {message} at line {line}, column {column}")]
    Json {
        /// What is wrong.
        message: String,
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
    },
    /// A schema that is invalid or uses what is not supported.
    #[error("the JSON schema is invalid or not supported at {pointer:?}: {message}")]
    Schema {
        /// The place, as a JSON pointer; empty for the whole schema.
        pointer: String,
        /// What is wrong.
        message: String,
    },
    /// A regular expression or grammar that is invalid.
    #[error("the {kind} is invalid: {message}")]
    Invalid {
        /// The kind of grammar.
        kind: &'static str,
        /// What is wrong, and where.
        message: String,
    },
    /// The vocabulary of the tokenizer does not fit the logits of the model.
    #[error("the tokenizer has {tokens} tokens, but the model gives only {logits} logits")]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Logits of a row.
        logits: u32,
    },
    /// The token trie could not be built.
    #[error("the vocabulary cannot be used for constrained decoding: {0}")]
    Trie(String),
}
