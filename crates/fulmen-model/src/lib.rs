//! Whole models above the compute graph: GGUF files in, text out.
//!
//! - [`gguf`]: reading GGUF files, nothing in them trusted, and writing them.
//! - [`quantize`]: storing models in smaller types.
//! - [`safetensors`]: models in the folders of the Hugging Face hub.
//! - [`source`]: what a model's file gives, whatever its format.
//! - [`summary`]: a model in a few numbers, and the memory it needs.
//! - [`synth`]: models with random weights, for tests and measurements.
//! - [`template`]: conversations as the text that a model goes on from.
//! - [`tokenizer`]: text to token ids and back.
//! - [`arch`]: one description per architecture (Llama, Qwen2, Qwen3), from which the graph is built for every backend.
//! - [`engine`]: weights on a device, sessions, generation.
//!
//! From a file to text, step by step, with the model that is part of the `fulmen` command:
//!
//! ```
//! use fulmen_cpu::CpuDispatcher;
//! use fulmen_model::{FinishReason, GenerateOptions, Model};
//!
//! let model = Model::load("../fulmen-cli/assets/story.gguf", Box::new(CpuDispatcher::new()))?;
//! let mut session = model.session()?;
//! let mut story = session.generate("Once upon a time", &GenerateOptions::default())?;
//! while let Some(piece) = story.next_piece()? {
//!     print!("{piece}");
//! }
//! assert!(matches!(story.generated().reason, FinishReason::EndToken(_)));
//! # Ok::<(), fulmen_model::ModelError>(())
//! ```

pub mod arch;
pub mod engine;
mod error;
pub mod gguf;
pub mod quantize;
mod rope_factors;
pub mod safetensors;
pub mod source;
pub mod summary;
pub mod synth;
pub mod template;
pub mod tokenizer;

pub use engine::{
    Chat, Device, FinishReason, GenerateOptions, Generated, Generation, LoadOptions, LoadProgress, Model,
    Perplexity, PerplexityOptions, Sampling, Session, SessionOptions,
};
pub use error::ModelError;
