//! Importance matrices in llama.cpp's formats: how much each column of a matrix contributes to its results.
//!
//! An entry has the mean square of the activations that each column was multiplied by, over the tokens of
//! some text. There are two formats:
//!
//! - A GGUF file with `general.type` = `imatrix`. For a matrix `NAME` it has the tensors `NAME.in_sum2`
//!   (`[columns, matrices]`, sums of squares) and `NAME.counts` (`[1, matrices]`, rows that were summed),
//!   both F32. Tensors with other endings are other statistics, which quantizing does not need.
//! - The older one, often named `.dat`, little endian: the number of entries (`i32`); for each its name (an
//!   `i32` length and text), the number of sums that were added (`i32`), the number of values (`i32`) and the
//!   sums (`f32`); then, if present, the number of chunks of the text (`i32`) and its name.
//!
//! The experts of a mixture have values each, one after the other.

mod error;
mod legacy;

use std::{collections::BTreeMap, collections::btree_map, io, path::Path, path::PathBuf, sync::Arc};

use fulmen_core::{DType, SharedBytes};

pub use error::{ImportanceError, ImportanceProblem};

use crate::gguf::{GgufError, GgufFile, GgufProblem, MetadataError};
use crate::mapping::OpenFile;
use crate::memory;
use crate::source::TensorInfo;

/// An importance matrix: the values of each entry are finite and at least 0.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fulmen_model::quantize::{Importance, QuantizePlan};
/// let source = fulmen_model::source::open("model-f16.gguf")?;
/// let importance = Importance::open("imatrix.gguf")?;
/// let plan = QuantizePlan::of(&*source, "q4_k_m".parse()?)?.with_importance(&*source, &importance)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Importance {
    path: PathBuf,
    datasets: Vec<String>,
    chunks: Option<u32>,
    entries: BTreeMap<String, Arc<Vec<f32>>>,
}

/// The path reported for bytes in memory.
const MEMORY: &str = "memory";

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

impl Importance {
    /// Reads a file of either format.
    pub fn open(path: impl AsRef<Path>) -> Result<Importance, ImportanceError> {
        let path = path.as_ref();
        let at = |problem| ImportanceError::new(path, problem);
        let file = OpenFile::open(path).map_err(|problem| at(problem.into()))?;
        if is_gguf(&file.file).map_err(|error| at(error.into()))? {
            return Importance::of_gguf(&GgufFile::open(path)?, path);
        }
        // Opened again, to begin at the start.
        let file = OpenFile::open(path).map_err(|problem| at(problem.into()))?;
        legacy::read(io::BufReader::new(&file.file), file.size, path).map_err(at)
    }

    /// Reads a file held in memory.
    pub fn from_bytes(bytes: SharedBytes) -> Result<Importance, ImportanceError> {
        let path = Path::new(MEMORY);
        let content = (*bytes).as_ref();
        if content.starts_with(b"GGUF") {
            return Importance::of_gguf(&GgufFile::from_bytes(bytes)?, path);
        }
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        legacy::read(content, size, path).map_err(|problem| ImportanceError::new(path, problem))
    }

    /// The file it was read from; `memory` for bytes in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The texts it was computed from, as far as the file names them.
    pub fn datasets(&self) -> &[String] {
        &self.datasets
    }

    /// The chunks of text it was computed from, if the file says so.
    pub fn chunks(&self) -> Option<u32> {
        self.chunks
    }

    /// The names and values of the entries, by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, &[f32])> {
        self.entries.iter().map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// The values for the tensor with this name.
    pub(super) fn get(&self, name: &str) -> Option<&Arc<Vec<f32>>> {
        self.entries.get(name)
    }

    fn of_gguf(file: &GgufFile, path: &Path) -> Result<Importance, ImportanceError> {
        let read = read_gguf(file, path);
        // What was read from a file that changed meanwhile is worth nothing, and neither is its error.
        file.check_unchanged()?;
        read
    }

    fn new(path: &Path) -> Importance {
        let entries = BTreeMap::new();
        Importance { path: path.to_owned(), datasets: Vec::new(), chunks: None, entries }
    }

    fn insert(&mut self, name: String, values: Vec<f32>) -> Result<(), ImportanceProblem> {
        match self.entries.entry(name) {
            btree_map::Entry::Occupied(entry) => {
                Err(ImportanceProblem::Duplicate { entry: entry.key().clone() })
            }
            btree_map::Entry::Vacant(entry) => {
                entry.insert(Arc::new(values));
                Ok(())
            }
        }
    }
}

fn is_gguf(mut file: impl io::Read) -> Result<bool, io::Error> {
    let mut magic = [0; 4];
    match file.read_exact(&mut magic) {
        Ok(()) => Ok(magic == *b"GGUF"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn read_gguf(file: &GgufFile, path: &Path) -> Result<Importance, ImportanceError> {
    let at = |problem| ImportanceError::new(path, problem);
    let metadata = |error: MetadataError| at(GgufProblem::from(error).into());
    let keys = file.metadata();
    let found = keys.opt_string("general.type").map_err(metadata)?;
    if found != Some("imatrix") {
        return Err(at(ImportanceProblem::NotImportance { found: found.map(str::to_owned) }));
    }
    let mut importance = Importance::new(path);
    let datasets = keys.opt_strings("imatrix.datasets").map_err(metadata)?;
    importance.datasets = datasets.into_iter().flatten().map(str::to_owned).collect();
    importance.chunks = keys.opt_u32("imatrix.chunk_count").map_err(metadata)?;
    for sums in file.tensors() {
        if let Some(entry) = sums.name().strip_suffix(COUNTS)
            && file.tensor(&format!("{entry}{SUMS}")).is_none()
        {
            return Err(at(ImportanceProblem::Half { entry: entry.to_owned(), missing: SUMS }));
        }
        let Some(entry) = sums.name().strip_suffix(SUMS) else { continue };
        let half = || at(ImportanceProblem::Half { entry: entry.to_owned(), missing: COUNTS });
        let counts = file.tensor(&format!("{entry}{COUNTS}")).ok_or_else(half)?;
        check_shapes(entry, sums, counts).map_err(at)?;
        let (sum, count) = (file.data(sums.name())?, file.data(counts.name())?);
        let values = mean_squares(entry, sums.width(), &sum, &count).map_err(at)?;
        importance.insert(entry.to_owned(), values).map_err(at)?;
    }
    match importance.entries.is_empty() {
        true => Err(at(ImportanceProblem::Empty)),
        false => Ok(importance),
    }
}

/// A count for each matrix, both as F32.
fn check_shapes(entry: &str, sums: &TensorInfo, counts: &TensorInfo) -> Result<(), ImportanceProblem> {
    for tensor in [sums, counts] {
        if tensor.dtype() != DType::F32 {
            return Err(ImportanceProblem::Type { tensor: tensor.name().to_owned(), found: tensor.dtype() });
        }
    }
    match counts.width() == 1 && counts.rows() == sums.rows() {
        true => Ok(()),
        false => Err(ImportanceProblem::Shape {
            entry: entry.to_owned(),
            sums: sums.dims().to_vec(),
            counts: counts.dims().to_vec(),
        }),
    }
}

/// The sums divided by the counts; 1 where nothing was counted, as of an expert that no token used.
fn mean_squares(
    entry: &str,
    width: usize,
    sums: &[u8],
    counts: &[u8],
) -> Result<Vec<f32>, ImportanceProblem> {
    let mut values = memory::collect(floats(sums)).map_err(ImportanceProblem::memory)?;
    for (matrix, (values, count)) in values.chunks_mut(width).zip(floats(counts)).enumerate() {
        if !(count.is_finite() && count >= 0.0) {
            let (entry, found) = (entry.to_owned(), count);
            return Err(ImportanceProblem::Count { entry, index: matrix, found });
        }
        check_values(entry, matrix * width, values)?;
        values.iter_mut().for_each(|value| *value = if count > 0.0 { *value / count } else { 1.0 });
        // A count far below 1 can make them infinite.
        check_values(entry, matrix * width, values)?;
    }
    Ok(values)
}

fn floats(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// Squares are not negative.
fn check_values(entry: &str, from: usize, values: &[f32]) -> Result<(), ImportanceProblem> {
    let bad = values.iter().position(|value| !(value.is_finite() && *value >= 0.0));
    match bad {
        None => Ok(()),
        Some(at) => {
            let (entry, index) = (entry.to_owned(), from.saturating_add(at));
            Err(ImportanceProblem::Value { entry, index, found: values[at] })
        }
    }
}

impl From<GgufError> for ImportanceError {
    fn from(error: GgufError) -> ImportanceError {
        ImportanceError { path: error.path, problem: ImportanceProblem::Gguf(error.problem).into() }
    }
}
