//! A model whose tensors are made when they are asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use fulmen_core::SharedBytes;

use super::{Synth, SynthError, data};
use crate::gguf::Metadata;
use crate::source::{ModelSource, SourceError, TensorInfo};

/// A model with random weights that was never written anywhere. A tensor that somebody still holds is given again, not made
/// again: a device that uses weights where they are has them once.
#[derive(Debug)]
pub struct SynthSource {
    synth: Synth,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    places: HashMap<String, usize>,
    held: Mutex<HashMap<String, Weak<Vec<u8>>>>,
}

impl SynthSource {
    pub(super) fn new(synth: Synth) -> Result<SynthSource, SynthError> {
        let (metadata, tensors) = (synth.metadata(), synth.tensors()?);
        let places = tensors.iter().enumerate().map(|(at, info)| (info.name().to_owned(), at)).collect();
        Ok(SynthSource { synth, metadata, tensors, places, held: Mutex::default() })
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
        self.places.get(name).map(|&at| &self.tensors[at])
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        let held = || self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(bytes) = held().get(name).and_then(Weak::upgrade) {
            return Ok(bytes);
        }
        let info = self.tensor(name).ok_or_else(|| SourceError::NoTensor { name: name.to_owned() })?;
        // Not under the lock: several threads may make tensors.
        let bytes = data::data(&self.synth.shape, info, self.synth.seed)
            .map_err(|error| SourceError::Made { name: name.to_owned(), error })?;
        let bytes = Arc::new(bytes);
        held().insert(name.to_owned(), Arc::downgrade(&bytes));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::Shape;

    #[test]
    fn tensors_are_those_of_the_file_and_made_once_while_held() {
        let synth = Synth::new(Shape::preset("tiny-llama").unwrap(), "q4_k_m".parse().unwrap(), 3);
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
