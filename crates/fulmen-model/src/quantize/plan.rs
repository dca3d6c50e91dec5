//! What quantizing a model will do, computed before anything is written.

use std::collections::BTreeMap;

use fulmen_core::DType;

use super::recipe::{Choice, Recipe, is_matrix};
use super::run::QuantizeError;
use crate::gguf::Metadata;
use crate::source::{ModelSource, TensorInfo};
use crate::tokenizer::TokenizerSpec;

/// The data type of each tensor of the new file, and the totals.
#[derive(Clone, Debug)]
pub struct QuantizePlan {
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) metadata: Metadata,
    /// Total bytes before.
    pub before: u64,
    /// Total bytes after.
    pub after: u64,
    /// Elements to convert; the others are copied.
    pub work: u64,
    /// Number of tensors that cannot have the recipe's type, by (recipe's type, actual type).
    pub other_types: BTreeMap<(DType, DType), usize>,
    /// Number of tensors that are already quantized, by their type. Requantizing loses more precision than
    /// quantizing the original.
    pub requantized: BTreeMap<DType, usize>,
}

impl QuantizePlan {
    /// Plans the conversion of every tensor of a model.
    pub fn of(source: &dyn ModelSource, recipe: Recipe) -> Result<QuantizePlan, QuantizeError> {
        QuantizePlan::with_types(source, recipe, &[])
    }

    /// As [`of`](QuantizePlan::of), with types for matrices whose name has a text in it; the first that
    /// matches is used. Every text must match a matrix.
    pub fn with_types(
        source: &dyn ModelSource,
        recipe: Recipe,
        types: &[(String, DType)],
    ) -> Result<QuantizePlan, QuantizeError> {
        let mut matched = vec![false; types.len()];
        let layers = layers(source.tensors());
        let tied = source.tensor("output.weight").is_none();
        let mut plan = QuantizePlan {
            tensors: Vec::new(),
            metadata: metadata(source, recipe)?,
            before: 0,
            after: 0,
            work: 0,
            other_types: BTreeMap::new(),
            requantized: BTreeMap::new(),
        };
        for tensor in source.tensors() {
            let mut choice = recipe.choose(tensor, layers, tied);
            let own = types.iter().position(|(text, _)| tensor.name().contains(text.as_str()));
            if let Some(own) = own.filter(|_| is_matrix(tensor)) {
                matched[own] = true;
                choice = Choice::of(tensor, types[own].1);
            }
            let Choice { dtype, instead_of } = choice;
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
                    *plan.requantized.entry(tensor.dtype()).or_default() += 1;
                }
            }
            plan.tensors.push(after);
        }
        match matched.iter().position(|matched| !matched) {
            Some(at) => Err(QuantizeError::NoMatch { text: types[at].0.clone() }),
            None => Ok(plan),
        }
    }

    /// The tensors of the new file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
}

/// The number of layers, from the highest layer index in a tensor name.
fn layers(tensors: &[TensorInfo]) -> usize {
    let layer = |tensor: &TensorInfo| -> Option<usize> {
        tensor.name().strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
    };
    tensors.iter().filter_map(layer).max().map_or(0, |last| last.saturating_add(1))
}

/// The metadata of the new file: the old metadata with the new file type, without split keys, and with the
/// tokenizer of a `tokenizer.json` next to the model.
fn metadata(source: &dyn ModelSource, recipe: Recipe) -> Result<Metadata, QuantizeError> {
    let mut metadata = source.metadata().clone();
    if metadata.get("tokenizer.ggml.model").is_none() {
        let rows = source.tensor("token_embd.weight").map_or(0, TensorInfo::rows);
        if let Some(spec) = TokenizerSpec::beside(source)? {
            spec.describe(rows, &mut metadata);
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
