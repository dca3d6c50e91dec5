//! Where models come from: metadata and tensors, whatever the file format.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use fulmen_core::{DType, DTypeError, SharedBytes};

use crate::gguf::{GgufError, GgufFile, Metadata};
use crate::safetensors::{SafetensorsError, SafetensorsFolder};

/// A model's metadata (with GGUF's keys) and tensors (with GGUF's names), read and checked, with the data at hand.
pub trait ModelSource: Send + Sync {
    /// The format, for people: `GGUF version 3`.
    fn format(&self) -> String {
        "memory".to_owned()
    }

    /// The files it came from and their sizes.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        Vec::new()
    }

    /// What the model says of itself, by GGUF's keys.
    fn metadata(&self) -> &Metadata;

    /// Its tensors in the order of the file.
    fn tensors(&self) -> &[TensorInfo];

    /// One tensor by its name.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// The bytes of one tensor, [`TensorInfo::bytes`] of them. They stay valid as long as they are held, whatever
    /// happens to this source, and can be imported into a device.
    fn data(&self, name: &str) -> Result<SharedBytes, SourceError>;

    /// The file of the tokenizer, where it is not in the metadata.
    fn tokenizer_json(&self) -> Option<PathBuf> {
        None
    }
}

/// Opens a model: a GGUF file, or a folder with `config.json` and safetensors files.
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn ModelSource>, SourceError> {
    let path = path.as_ref();
    if path.join("config.json").is_file() {
        return Ok(Box::new(SafetensorsFolder::open(path)?));
    }
    if path.is_dir() {
        return Err(SourceError::Folder { path: path.to_owned() });
    }
    Ok(Box::new(GgufFile::open(path)?))
}

/// A GGUF file that lies in memory. It is copied only if its address is no multiple of 16.
pub fn from_bytes(bytes: SharedBytes) -> Result<Box<dyn ModelSource>, SourceError> {
    Ok(Box::new(GgufFile::from_bytes(aligned(bytes))?))
}

/// The bytes at an address that every type of number can have. Offsets in a GGUF file are multiples of its alignment, so it is
/// the begin that matters.
fn aligned(bytes: SharedBytes) -> SharedBytes {
    const ALIGNMENT: usize = align_of::<u128>();
    let data = (*bytes).as_ref();
    if data.as_ptr().addr().is_multiple_of(ALIGNMENT) {
        return bytes;
    }
    struct Aligned(Vec<u128>, usize);
    impl AsRef<[u8]> for Aligned {
        fn as_ref(&self) -> &[u8] {
            &bytemuck::cast_slice(&self.0)[..self.1]
        }
    }
    let mut copy = vec![0u128; data.len().div_ceil(ALIGNMENT)];
    bytemuck::cast_slice_mut(&mut copy)[..data.len()].copy_from_slice(data);
    Arc::new(Aligned(copy, data.len()))
}

/// Why a model cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A folder that holds no model.
    #[error("{}: is a directory, not a file, and has no config.json; a model is a GGUF file, or a folder with config.json and safetensors files", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// A GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A folder of safetensors files.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A tensor that was asked for by a name that no tensor has.
    #[error("there is no tensor {name:?}")]
    NoTensor {
        /// The name.
        name: String,
    },
    /// A tensor that could not be made.
    #[error("tensor {name:?} could not be made: {error}")]
    Made {
        /// Its name.
        name: String,
        /// Why.
        error: DTypeError,
    },
}

/// What is known of a tensor: its name, its size and its type. A value of this type is always well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dims: Vec<usize>,
    dtype: DType,
    bytes: usize,
}

impl TensorInfo {
    /// A tensor with GGUF's order of dimensions: `dims[0]` is the width of a row. Refused if a row is not a whole
    /// number of blocks or if the size overflows.
    ///
    /// # Panics
    /// If there are no dimensions, more than four, or one of them is 0.
    pub fn new(name: impl Into<String>, dims: &[usize], dtype: DType) -> Result<TensorInfo, DTypeError> {
        assert!((1..=4).contains(&dims.len()), "TensorInfo::new: {} dimensions", dims.len());
        assert!(!dims.contains(&0), "TensorInfo::new: a dimension of {dims:?} is 0");
        // A row is a whole number of blocks; then all rows are.
        dtype.bytes(dims[0])?;
        let elements = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        let elements = elements.ok_or(DTypeError::Overflow { dtype, elements: usize::MAX })?;
        Ok(TensorInfo { name: name.into(), dims: dims.to_vec(), dtype, bytes: dtype.bytes(elements)? })
    }

    /// Its name, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One to four sizes, none of them 0; the first is the width of a row.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.dims[0]
    }

    /// How many rows there are; 1 for a tensor of one dimension.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product()
    }

    /// How many elements there are.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// How they are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        write!(f, "{} [{}] {}", self.name, dims.join(", "), self.dtype)
    }
}
