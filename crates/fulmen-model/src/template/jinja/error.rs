//! Why a template cannot be parsed or rendered. The line is added by the caller.

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A syntax error.
    #[error("{0}")]
    Syntax(String),
    /// A Jinja feature that is not supported.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// An operation on a value of the wrong type or range.
    #[error("{0}")]
    Value(String),
    /// The template called `raise_exception`.
    #[error("the template rejected the conversation: {0}")]
    Raised(String),
    /// The budget of steps and bytes is exhausted.
    #[error("rendering exceeds the limit of {limit} steps and bytes")]
    Work {
        /// The limit.
        limit: u64,
    },
    /// Calls, expressions, blocks or values are nested too deeply.
    #[error("nested more than {limit} levels deep")]
    Depth {
        /// The limit.
        limit: usize,
    },
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// The error for a wrong value.
pub(super) fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Failure::Value(what.into()))
}
