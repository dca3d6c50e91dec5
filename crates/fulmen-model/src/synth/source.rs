//! A model source that generates tensors on demand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use fulmen_core::SharedBytes;

use super::{Synth, SynthError, data};
use crate::gguf::Metadata;
use crate::source::{ModelSource, SourceError, TensorInfo};

/// A model with random weights that exists only in memory. A tensor that is still in use is shared, not
/// generated again, so a device that uses weights in place holds them once.
#[derive(Debug)]
pub struct SynthSource {
    synth: Synth,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    in_use: Mutex<HashMap<String, Weak<Vec<u8>>>>,
}

impl SynthSource {
    pub(super) fn new(synth: Synth) -> Result<SynthSource, SynthError> {
        let (metadata, tensors) = (synth.metadata(), synth.tensors()?);
        let index = tensors.iter().enumerate().map(|(at, info)| (info.name().to_owned(), at)).collect();
        Ok(SynthSource { synth, metadata, tensors, index, in_use: Mutex::default() })
    }
}

impl ModelSource for SynthSource {
    fn format(&self) -> String {
        format!("random weights, seed {}", self.synth.seed)
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        let in_use = || self.in_use.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(bytes) = in_use().get(name).and_then(Weak::upgrade) {
            return Ok(bytes);
        }
        let info = self.tensor(name).ok_or_else(|| SourceError::NoTensor { name: name.to_owned() })?;
        // Not under the lock: several threads may generate tensors.
        let bytes = data::data(&self.synth.shape, info, self.synth.seed)
            .map_err(|error| SourceError::Generate { name: name.to_owned(), error })?;
        let bytes = Arc::new(bytes);
        in_use().insert(name.to_owned(), Arc::downgrade(&bytes));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::ModelShape;

    #[test]
    fn tensors_match_the_file_and_are_generated_once_while_in_use() {
        let shape = ModelShape { layers: 1, ..ModelShape::preset("tiny-llama").unwrap() };
        let synth = Synth::new(shape, "q4_k_m".parse().unwrap(), 3);
        let (file, source) = (synth.file().unwrap(), synth.source().unwrap());
        assert_eq!(file.tensors(), source.tensors());
        for info in source.tensors() {
            let (a, b) = (file.data(info.name()).unwrap(), source.data(info.name()).unwrap());
            assert!((*a).as_ref() == (*b).as_ref(), "{info}");
        }
        let address = |bytes: &SharedBytes| (**bytes).as_ref().as_ptr();
        let first = source.data("output_norm.weight").unwrap();
        assert_eq!(address(&first), address(&source.data("output_norm.weight").unwrap()));
        let error = source.data("nothing").err().unwrap();
        assert_eq!(error.to_string(), "there is no tensor \"nothing\"");
    }
}
