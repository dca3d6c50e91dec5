//! Ollama's API, which many tools speak.

pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod models;
pub(crate) mod stream;
pub(crate) mod types;
