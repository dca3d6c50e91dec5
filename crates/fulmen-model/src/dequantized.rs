//! A model with its weights as F32.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use fulmen_core::{DType, SharedBytes, quant};

use crate::gguf::Metadata;
use crate::source::{ModelSource, SourceError, TensorInfo};

/// A model whose quantized and half-precision weights are F32 with the same values: the reference for what
/// the arithmetic on smaller types loses. Tensors are dequantized when their data are asked for.
pub struct Dequantized {
    source: Arc<dyn ModelSource>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Dequantized {
    /// Fails if a tensor would be too large as F32.
    pub fn new(source: Arc<dyn ModelSource>) -> Result<Dequantized, SourceError> {
        let as_f32 = |info: &TensorInfo| {
            let dtype = if info.dtype() == DType::U32 { DType::U32 } else { DType::F32 };
            TensorInfo::new(info.name(), info.dims(), dtype)
                .map_err(|error| SourceError::Dequantize { name: info.name().to_owned(), error })
        };
        let tensors = source.tensors().iter().map(as_f32).collect::<Result<Vec<_>, _>>()?;
        let by_name = tensors.iter().enumerate().map(|(at, info)| (info.name().to_owned(), at)).collect();
        Ok(Dequantized { source, tensors, by_name })
    }
}

struct Floats(Vec<f32>);

impl AsRef<[u8]> for Floats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl ModelSource for Dequantized {
    fn format(&self) -> String {
        format!("{}, weights as F32", self.source.format())
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.source.files()
    }

    fn metadata(&self) -> &Metadata {
        self.source.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&at| &self.tensors[at])
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        let info = self.source.tensor(name).ok_or_else(|| SourceError::NoTensor { name: name.to_owned() })?;
        let bytes = self.source.data(name)?;
        if matches!(info.dtype(), DType::F32 | DType::U32) {
            return Ok(bytes);
        }
        let floats = quant::dequantize_to_vec(info.dtype(), (*bytes).as_ref(), info.elements())
            .map_err(|error| SourceError::Dequantize { name: name.to_owned(), error })?;
        Ok(Arc::new(Floats(floats)))
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.source.check_unchanged()
    }

    fn tokenizer_json(&self) -> Option<PathBuf> {
        self.source.tokenizer_json()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::{ModelShape, Synth};

    #[test]
    fn weights_have_the_values_of_the_source() {
        let shape = ModelShape { layers: 1, ..ModelShape::preset("tiny-llama").unwrap() };
        let source: Arc<dyn ModelSource> =
            Arc::new(Synth::new(shape, "q4_k_m".parse().unwrap(), 3).source().unwrap());
        let floats = Dequantized::new(Arc::clone(&source)).unwrap();
        assert_eq!(floats.tensors().len(), source.tensors().len());
        let mut quantized = 0;
        for (before, info) in source.tensors().iter().zip(floats.tensors()) {
            assert_eq!((info.name(), info.dims(), info.dtype()), (before.name(), before.dims(), DType::F32));
            let (old, new) = (source.data(info.name()).unwrap(), floats.data(info.name()).unwrap());
            let old = quant::dequantize_to_vec(before.dtype(), (*old).as_ref(), before.elements()).unwrap();
            assert!(bytemuck::cast_slice::<f32, u8>(&old) == (*new).as_ref(), "{info}");
            quantized += usize::from(before.dtype() != DType::F32);
        }
        assert!(quantized > 0);
        assert_eq!(floats.data("nothing").err().unwrap().to_string(), "there is no tensor \"nothing\"");
        assert_eq!(floats.tensor("output_norm.weight").unwrap().dtype(), DType::F32);
    }
}
