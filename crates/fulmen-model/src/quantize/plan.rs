//! What quantizing a model will do, computed before anything is written.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use fulmen_core::{DType, quant};

use super::importance::Importance;
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
    /// The importance of the elements of those tensors whose errors are weighted.
    importance: HashMap<String, Arc<Vec<f32>>>,
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
    /// The tensors that an importance matrix could help and has no entry for.
    pub without_importance: Vec<String>,
    /// The entries of the importance matrix for which the model has no tensor.
    pub unused_importance: Vec<String>,
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
            importance: HashMap::new(),
            before: 0,
            after: 0,
            work: 0,
            other_types: BTreeMap::new(),
            requantized: BTreeMap::new(),
            without_importance: Vec::new(),
            unused_importance: Vec::new(),
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

    /// Weights the errors of the tensors that are converted by an importance matrix, where it has an entry
    /// for them and [their type uses it](quant::uses_importance). An entry must have a value for each column
    /// of its tensor, or one for each column of each of its matrices.
    pub fn with_importance(
        mut self,
        source: &dyn ModelSource,
        importance: &Importance,
    ) -> Result<QuantizePlan, QuantizeError> {
        (self.importance, self.without_importance) = (HashMap::new(), Vec::new());
        for after in &self.tensors {
            let values = importance.get(after.name());
            if let Some(values) = values {
                check_importance(after, values.len())?;
            }
            let converted = source.tensor(after.name()).is_some_and(|before| before.dtype() != after.dtype());
            match values {
                _ if !converted || !quant::uses_importance(after.dtype()) => {}
                Some(values) => _ = self.importance.insert(after.name().to_owned(), values.clone()),
                None => self.without_importance.push(after.name().to_owned()),
            }
        }
        let names = importance.entries().map(|(name, _)| name);
        let unused = names.filter(|name| source.tensor(name).is_none());
        self.unused_importance = unused.map(str::to_owned).collect();
        describe(importance, &mut self.metadata);
        Ok(self)
    }

    /// Whether errors of this tensor are weighted by an importance matrix.
    pub fn uses_importance(&self, name: &str) -> bool {
        self.importance.contains_key(name)
    }

    pub(super) fn importance(&self, name: &str) -> Option<&[f32]> {
        self.importance.get(name).map(|values| values.as_slice())
    }

    /// The tensors of the new file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
}

/// The number of matrices of a tensor: the experts, if it has some.
pub(super) fn matrices(tensor: &TensorInfo) -> usize {
    tensor.dims().get(2..).unwrap_or_default().iter().product()
}

fn check_importance(tensor: &TensorInfo, values: usize) -> Result<(), QuantizeError> {
    let (width, matrices) = (tensor.width(), matrices(tensor));
    match values == width || Some(values) == width.checked_mul(matrices) {
        true => Ok(()),
        false => Err(QuantizeError::Importance { tensor: tensor.to_string(), values, width, matrices }),
    }
}

/// What llama.cpp writes of the importance matrix. Of its path only the name of the file, because folders of
/// one machine say nothing on another.
fn describe(importance: &Importance, metadata: &mut Metadata) {
    let path = importance.path();
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    metadata.set("quantize.imatrix.file", &*file);
    match importance.datasets().first() {
        Some(dataset) => metadata.set("quantize.imatrix.dataset", dataset.as_str()),
        None => _ = metadata.remove("quantize.imatrix.dataset"),
    }
    let entries = u32::try_from(importance.entries().len()).unwrap_or(u32::MAX);
    metadata.set("quantize.imatrix.entries_count", entries);
    match importance.chunks() {
        Some(chunks) => metadata.set("quantize.imatrix.chunks_count", chunks),
        None => _ = metadata.remove("quantize.imatrix.chunks_count"),
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
