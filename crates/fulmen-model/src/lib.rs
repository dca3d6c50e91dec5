//! Language models on top of the compute graph: files, tokenizers, chat templates, architectures. The crate
//! `fulmen-engine` runs them on devices.
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
//!
//! From a file to the tokens of a prompt and the graph of a step, with the model that is built into the
//! `fulmen` command:
//!
//! ```
//! use fulmen_core::DType;
//! use fulmen_model::arch::{Config, GraphSpec, Step};
//! use fulmen_model::source;
//! use fulmen_model::tokenizer::{Special, Tokenizer};
//!
//! let file = source::open("../fulmen-cli/assets/story.gguf")?;
//! let tokenizer = Tokenizer::from_source(file.as_ref())?.expect("a tokenizer");
//! let tokens = tokenizer.encode_prompt("Once upon a time", Special::AsText);
//! let step = Step::Prefill { rows: tokens.len() as u32, results: None };
//! let graph = Config::read(file.as_ref())?
//!     .graph(file.as_ref(), &GraphSpec::contiguous(step, DType::F16, 1, 128))?;
//! assert!(graph.ops.len() > 10);
//! # Ok::<(), fulmen_model::ModelError>(())
//! ```

pub mod arch;
mod dequantized;
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

pub use error::ModelError;
