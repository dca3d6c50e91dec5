//! Language models on top of the compute graph: GGUF files in, text out.
//!
//! - [`gguf`]: reads GGUF files without trusting anything in them, and writes them.
//! - [`quantize`]: converts models to smaller data types.
//! - [`safetensors`]: reads Hugging Face model folders.
//! - [`source`]: metadata and tensors of a model, independent of the file format.
//! - [`summary`]: a model's key figures and the memory it needs.
//! - [`synth`]: models with random weights, for tests and benchmarks.
//! - [`template`]: chat templates, which turn a conversation into a prompt.
//! - [`tokenizer`]: text to token ids and back.
//! - [`arch`]: one description per architecture (Llama, Qwen2, Qwen3), from which the graph is built for
//!   every backend.
//! - [`engine`]: weights on a device, sessions, generation.
//!
//! From a file to text, with the model that is built into the `fulmen` command:
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
mod mapping;
mod memory;
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
