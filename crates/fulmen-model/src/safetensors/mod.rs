//! Models in the folders of the Hugging Face hub: `config.json`, safetensors files, `tokenizer.json`.
//!
//! A [`SafetensorsFolder`] looks like a GGUF file: the same metadata keys, the same tensor names, the same order of rows.

mod config;
mod error;
mod folder;
mod header;
mod names;

pub use error::{SafetensorsError, SafetensorsProblem};
pub use folder::SafetensorsFolder;
