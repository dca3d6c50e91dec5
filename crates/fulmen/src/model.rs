//! Language models: GGUF and safetensors files, tokenizers, chat templates and architectures (the crate
//! `fulmen-model`), and models on devices: weights, sessions, generation ([`engine`], of `fulmen-engine`).

pub use fulmen_engine::generation::{
    self as engine, Chat, Device, FinishReason, GenerateOptions, Generated, Generation, LoadOptions,
    LoadProgress, Model, Perplexity, PerplexityOptions, Sampling, Session, SessionOptions,
};
pub use fulmen_model::{
    ModelError, arch, gguf, quantize, safetensors, source, summary, synth, template, tokenizer,
};
