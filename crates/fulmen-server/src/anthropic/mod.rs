//! Anthropic's API.

pub(crate) mod input;
pub(crate) mod messages;
pub(crate) mod stream;
pub(crate) mod thoughts;
pub(crate) mod types;
