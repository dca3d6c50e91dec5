//! What can be wrong with a chat template, as types.

use super::jinja::Failure;
use crate::gguf::MetadataError;

/// Why a chat template cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template cannot be read.
    #[error("chat template, line {line}: {failure}")]
    Read {
        /// The line, from 1.
        line: u32,
        /// What is wrong there.
        failure: Failure,
    },
    /// The template cannot be rendered with this conversation.
    #[error("chat template, line {line}: {failure}")]
    Render {
        /// The line, from 1.
        line: u32,
        /// What went wrong there.
        failure: Failure,
    },
    /// A template that is larger than any real one.
    #[error("the chat template has {bytes} bytes, more than {limit}")]
    Size {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        limit: usize,
    },
    /// A name for which there is no template.
    #[error("there is no chat template {name:?} (known: {known})")]
    UnknownFamily {
        /// The name.
        name: String,
        /// The names that are known.
        known: String,
    },
    /// A key of the metadata has another type.
    #[error("chat template: {0}")]
    Metadata(#[from] MetadataError),
}
