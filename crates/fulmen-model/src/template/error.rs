//! Errors of chat templates.

use super::jinja::Failure;
use crate::gguf::MetadataError;

/// Why a chat template cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template cannot be parsed.
    #[error("chat template, line {line}: {failure}")]
    Read {
        /// The line, from 1.
        line: u32,
        /// The problem.
        failure: Failure,
    },
    /// The template cannot be rendered with this conversation.
    #[error("chat template, line {line}: {failure}")]
    Render {
        /// The line, from 1.
        line: u32,
        /// The problem.
        failure: Failure,
    },
    /// The template is too large.
    #[error("the chat template is too large: {bytes} bytes, limit {limit}")]
    Size {
        /// Its size in bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// There is no template with this name.
    #[error("there is no chat template {name:?} (known: {known})")]
    UnknownFamily {
        /// The name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The metadata key has the wrong type.
    #[error("chat template: {0}")]
    Metadata(#[from] MetadataError),
}
