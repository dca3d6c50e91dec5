//! Hugging Face model folders: `config.json`, safetensors files, `tokenizer.json`.
//!
//! A [`SafetensorsFolder`] presents itself like a GGUF file: same metadata keys, tensor names and row order.

mod config;
mod convert;
mod error;
mod experts;
mod family;
mod folder;
mod gemma4;
mod header;
mod hybrid;
mod mxfp4;
mod names;

pub use error::{SafetensorsError, SafetensorsProblem};
pub use folder::SafetensorsFolder;
