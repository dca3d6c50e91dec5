//! Whole models above the compute graph: GGUF files in, text out.
//!
//! This crate will hold the GGUF reader and writer, the tokenizers, the chat templates, one description per
//! architecture (Llama, Qwen2, Qwen3) that builds a [`fulmen_core::GraphBuilder`] graph, the KV cache, sampling
//! and generation. It has no contents yet.
