//! Whole models above the compute graph: GGUF files in, text out.
//!
//! - [`gguf`]: reading GGUF files, nothing in them trusted, and writing them.
//! - [`quantize`]: storing models in smaller types.
//! - [`safetensors`]: models in the folders of the Hugging Face hub.
//! - [`source`]: what a model's file gives, whatever its format.
//! - [`summary`]: a model in a few numbers, and the memory it needs.
//! - [`synth`]: models with random weights, for tests and measurements.
//!
//! This crate will also hold the tokenizers, the chat templates, one description per architecture (Llama, Qwen2,
//! Qwen3) that builds a [`fulmen_core::GraphBuilder`] graph, the KV cache, sampling and generation.

pub mod gguf;
pub mod quantize;
mod rope_factors;
pub mod safetensors;
pub mod source;
pub mod summary;
pub mod synth;
