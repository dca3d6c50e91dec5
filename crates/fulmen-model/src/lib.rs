//! Whole models above the compute graph: GGUF files in, text out.
//!
//! - [`gguf`]: reading GGUF files, nothing in them trusted.
//! - [`source`]: what a model's file gives, whatever its format.
//! - [`tokenizer`]: text to token ids and back.
//!
//! This crate will also hold the chat templates, one description per architecture (Llama, Qwen2,
//! Qwen3) that builds a [`fulmen_core::GraphBuilder`] graph, the KV cache, sampling and generation.

pub mod gguf;
pub mod source;
pub mod tokenizer;
