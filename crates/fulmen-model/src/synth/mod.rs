//! Models with random weights, for tests and benchmarks: well-formed in every respect, but they produce
//! nonsense.
//!
//! The same preset, recipe and seed produce the same bytes on every machine (only RoPE frequency factors may
//! differ in the last bit). The name of a tensor seeds its data, so a model with fewer layers has the same
//! first layers.
//!
//! ```
//! use fulmen_model::synth::{ModelShape, Synth};
//! let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
//! let file = Synth::new(shape, "q8_0".parse().unwrap(), 1).file().unwrap();
//! assert_eq!(file.metadata().u32("qwen3.block_count"), Ok(2));
//! assert_eq!(file.tensor("blk.1.attn_q.weight").unwrap().dims(), [256, 512]);
//! ```

mod data;
mod delta_net;
mod family;
mod gemma4;
mod shape;
mod source;
mod tokenizer;

use std::{path::Path, sync::Arc};

use fulmen_core::DTypeError;

use crate::gguf::{GgufError, GgufFile, GgufWriteError, GgufWriter, Metadata};
use crate::quantize::Recipe;
use crate::source::TensorInfo;
pub use shape::{ExpertShape, ModelShape, PRESETS};
pub use source::SynthSource;

/// A model with random weights.
#[derive(Clone, Debug)]
pub struct Synth {
    /// The dimensions.
    pub shape: ModelShape,
    /// The types of the tensors.
    pub recipe: Recipe,
    /// The random seed of the weights.
    pub seed: u64,
}

/// Why a model could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// Dimensions that no tensor can have.
    #[error("invalid model shape: {0}")]
    Size(#[from] DTypeError),
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] GgufWriteError),
    /// The generated file could not be read.
    #[error(transparent)]
    Read(#[from] GgufError),
}

impl Synth {
    /// A model of this shape.
    pub fn new(shape: ModelShape, recipe: Recipe, seed: u64) -> Synth {
        Synth { shape, recipe, seed }
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata {
        self.shape.metadata(self.recipe)
    }

    /// The tensors.
    pub fn tensors(&self) -> Result<Vec<TensorInfo>, SynthError> {
        Ok(self.shape.tensors(self.recipe)?)
    }

    /// The data of a tensor.
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

    /// The model as a GGUF file in memory.
    pub fn file(&self) -> Result<GgufFile, SynthError> {
        Ok(GgufFile::from_bytes(Arc::new(self.bytes()?))?)
    }

    /// The model as a source that generates tensors on demand: no file, and only tensors in use occupy
    /// memory.
    pub fn source(&self) -> Result<SynthSource, SynthError> {
        SynthSource::new(self.clone())
    }

    /// Writes the model to a file. `progress` is called after each tensor.
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
