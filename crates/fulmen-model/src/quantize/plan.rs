//! What quantizing a model will do, known before anything is written.

use std::collections::BTreeMap;

use fulmen_core::DType;

use super::recipe::{Choice, Recipe};
use super::run::QuantizeError;
use crate::gguf::Metadata;
use crate::source::{ModelSource, TensorInfo};
use crate::tokenizer::TokenizerParts;

/// Which type each tensor gets.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) metadata: Metadata,
    /// Bytes of all tensors before.
    pub before: u64,
    /// Bytes of all tensors after.
    pub after: u64,
    /// Elements that must be computed; the others are copied.
    pub work: u64,
    /// Tensors that could not have the type of the recipe, by what they should have had and what they get.
    pub other_types: BTreeMap<(DType, DType), usize>,
    /// Tensors that were quantized already, by their type. Quantizing them again loses more than the original would.
    pub again: BTreeMap<DType, usize>,
}

impl Plan {
    /// Looks at every tensor of a model.
    pub fn of(source: &dyn ModelSource, recipe: Recipe) -> Result<Plan, QuantizeError> {
        let layers = layers(source.tensors());
        let tied = source.tensor("output.weight").is_none();
        let mut plan = Plan {
            tensors: Vec::new(),
            metadata: metadata(source, recipe)?,
            before: 0,
            after: 0,
            work: 0,
            other_types: BTreeMap::new(),
            again: BTreeMap::new(),
        };
        for tensor in source.tensors() {
            let Choice { dtype, instead_of } = recipe.choose(tensor, layers, tied);
            let after = TensorInfo::new(tensor.name(), tensor.dims(), dtype);
            let after = after.map_err(|error| QuantizeError::tensor(tensor, error))?;
            plan.before = plan.before.saturating_add(count(tensor.bytes()));
            plan.after = plan.after.saturating_add(count(after.bytes()));
            if let Some(asked) = instead_of {
                *plan.other_types.entry((asked, dtype)).or_default() += 1;
            }
            if tensor.dtype() != dtype {
                plan.work = plan.work.saturating_add(count(tensor.elements()));
                if tensor.dtype().is_quantized() {
                    *plan.again.entry(tensor.dtype()).or_default() += 1;
                }
            }
            plan.tensors.push(after);
        }
        Ok(plan)
    }

    /// The tensors with the types that they will have.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
}

/// One more than the highest layer that a tensor's name has.
fn layers(tensors: &[TensorInfo]) -> usize {
    let layer = |tensor: &TensorInfo| -> Option<usize> {
        tensor.name().strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
    };
    tensors.iter().filter_map(layer).max().map_or(0, |last| last.saturating_add(1))
}

/// The metadata of the new file: those of the old one, with the new type, and in one file. A tokenizer that lies beside
/// the model goes into it.
fn metadata(source: &dyn ModelSource, recipe: Recipe) -> Result<Metadata, QuantizeError> {
    let mut metadata = source.metadata().clone();
    if metadata.get("tokenizer.ggml.model").is_none() {
        let rows = source.tensor("token_embd.weight").map_or(0, TensorInfo::rows);
        if let Some(parts) = TokenizerParts::beside(source)? {
            parts.describe(rows, &mut metadata);
        }
    }
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    metadata.set("general.file_type", recipe.file_type());
    if recipe.base().is_quantized() {
        metadata.set("general.quantization_version", 2u32);
    }
    Ok(metadata)
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
