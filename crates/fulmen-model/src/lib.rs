//! Whole models above the compute graph: GGUF files in, text out.
//!
//! - [`gguf`]: reading GGUF files, nothing in them trusted.
//! - [`source`]: what a model's file gives, whatever its format.
//! - [`arch`]: one description per architecture (Llama, Qwen2, Qwen3), from which the graph is built for every backend.
//!
//! This crate will also hold the tokenizers, the chat templates, the KV cache, sampling and generation.

pub mod arch;
pub mod engine;
mod error;
pub mod gguf;
pub mod source;

pub use engine::{Device, LoadOptions, LoadProgress, Model, Sampling, Session, SessionOptions};
pub use error::ModelError;
