//! Whole models above the compute graph: GGUF files in, text out.
//!
//! - [`gguf`]: reading GGUF files, nothing in them trusted, and writing them.
//! - [`quantize`]: storing models in smaller types.
//! - [`source`]: what a model's file gives, whatever its format.
//! - [`synth`]: models with random weights, for tests and measurements.
//!
//! This crate will also hold the tokenizers, the chat templates, one description per architecture (Llama, Qwen2,
//! Qwen3) that builds a [`fulmen_core::GraphBuilder`] graph, the KV cache, sampling and generation.

pub mod gguf;
pub mod quantize;
pub mod source;
pub mod synth;
