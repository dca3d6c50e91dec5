//! Models with random weights, for tests and measurements: well-formed in every respect, they just say nonsense.
//!
//! The same preset, recipe and seed give the same bytes on every machine (of the frequency factors of RoPE alone the
//! last bit may differ). Each tensor is drawn by its name, so a model with fewer layers has the same first layers.
//!
//! ```
//! use fulmen_model::synth::{Shape, Synth};
//! let shape = Shape { layers: 2, ..Shape::preset("tiny-qwen3").unwrap() };
//! let file = Synth::new(shape, "q8_0".parse().unwrap(), 1).file().unwrap();
//! assert_eq!(file.metadata().u32("qwen3.block_count"), Ok(2));
//! assert_eq!(file.tensor("blk.1.attn_q.weight").unwrap().dims(), [256, 512]);
//! ```

mod data;
mod shape;
mod source;
mod tokenizer;

use std::{path::Path, sync::Arc};

use fulmen_core::DTypeError;

use crate::gguf::{GgufError, GgufFile, GgufWriteError, GgufWriter, Metadata};
use crate::quantize::Recipe;
use crate::source::TensorInfo;
pub use shape::{PRESETS, Shape};
pub use source::SynthSource;

/// A model with random weights.
#[derive(Clone, Debug)]
pub struct Synth {
    /// Its sizes.
    pub shape: Shape,
    /// The types of its tensors.
    pub recipe: Recipe,
    /// What its weights are drawn from.
    pub seed: u64,
}

/// Why a model could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// Sizes that no tensor can have.
    #[error("the shape gives no model: {0}")]
    Size(#[from] DTypeError),
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] GgufWriteError),
    /// The file could not be read again.
    #[error(transparent)]
    Read(#[from] GgufError),
}

impl Synth {
    /// A model of this shape.
    pub fn new(shape: Shape, recipe: Recipe, seed: u64) -> Synth {
        Synth { shape, recipe, seed }
    }

    /// Its metadata.
    pub fn metadata(&self) -> Metadata {
        self.shape.metadata(self.recipe)
    }

    /// Its tensors.
    pub fn tensors(&self) -> Result<Vec<TensorInfo>, SynthError> {
        Ok(self.shape.tensors(self.recipe)?)
    }

    /// The bytes of one of its tensors.
    pub fn data(&self, tensor: &TensorInfo) -> Result<Vec<u8>, SynthError> {
        Ok(data::data(&self.shape, tensor, self.seed)?)
    }

    /// The model as the bytes of a GGUF file.
    pub fn bytes(&self) -> Result<Vec<u8>, SynthError> {
        let tensors = self.tensors()?;
        let mut writer = GgufWriter::new(Vec::new(), &self.metadata(), &tensors)?;
        for tensor in &tensors {
            writer.write(tensor.name(), &self.data(tensor)?)?;
        }
        Ok(writer.finish()?)
    }

    /// The model as an open file in memory.
    pub fn file(&self) -> Result<GgufFile, SynthError> {
        Ok(GgufFile::from_bytes(Arc::new(self.bytes()?))?)
    }

    /// The model as a source whose tensors are made when they are asked for: no file, and no more of them in memory than
    /// somebody holds.
    pub fn source(&self) -> Result<SynthSource, SynthError> {
        SynthSource::new(self.clone())
    }

    /// Writes the model to a file. `progress` is told of each tensor that was written.
    pub fn write(
        &self,
        path: &Path,
        replace: bool,
        mut progress: impl FnMut(&TensorInfo),
    ) -> Result<(), SynthError> {
        let tensors = self.tensors()?;
        let mut writer = GgufWriter::create(path, replace, &self.metadata(), &tensors)?;
        for tensor in &tensors {
            writer.write(tensor.name(), &self.data(tensor)?)?;
            progress(tensor);
        }
        Ok(writer.keep()?)
    }
}
