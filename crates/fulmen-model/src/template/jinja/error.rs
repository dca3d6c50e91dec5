//! Why a template cannot be read or rendered. The line is added where it is known.

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The text is not a template.
    #[error("{0}")]
    Syntax(String),
    /// Something that templates may have and that is not supported here.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A value that does not fit what is done with it.
    #[error("{0}")]
    Value(String),
    /// The template itself refused the messages, with `raise_exception`.
    #[error("the template refuses the conversation: {0}")]
    Raised(String),
    /// More work or memory than rendering may cost.
    #[error("rendering takes too much: more than {limit} steps and bytes")]
    Work {
        /// How much it may take.
        limit: u64,
    },
    /// Calls, expressions, blocks or values in each other without an end.
    #[error("nested deeper than {limit}")]
    Depth {
        /// How deep it may be.
        limit: usize,
    },
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// A value that does not fit.
pub(super) fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Failure::Value(what.into()))
}
