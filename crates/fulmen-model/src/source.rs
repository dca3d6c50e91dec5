//! Model sources: metadata and tensors, independent of the file format.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use fulmen_core::{DType, DTypeError, SharedBytes};

pub use crate::dequantized::Dequantized;
use crate::gguf::{GgufError, GgufFile, Metadata};
use crate::safetensors::{SafetensorsError, SafetensorsFolder};

/// A model's metadata (GGUF keys) and tensors (GGUF names), validated, with access to the data.
pub trait ModelSource: Send + Sync {
    /// The format, for display: `GGUF version 3`.
    fn format(&self) -> String {
        "memory".to_owned()
    }

    /// The files it was read from and their sizes in bytes.
    fn files(&self) -> Vec<(PathBuf, u64)> {
        Vec::new()
    }

    /// The metadata, with GGUF keys.
    fn metadata(&self) -> &Metadata;

    /// The tensors in file order.
    fn tensors(&self) -> &[TensorInfo];

    /// The tensor with this name.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// The data of one tensor, [`TensorInfo::bytes`] bytes. They stay valid while they are held, even after
    /// this source is dropped, and can be imported into a device. Whoever computes something from them calls
    /// [`check_unchanged`](ModelSource::check_unchanged) afterwards.
    fn data(&self, name: &str) -> Result<SharedBytes, SourceError>;

    /// Reads a part of the data of one tensor, from byte `offset` on, into `out`. A file is read where it
    /// lies in the page cache, which is faster than mapping its pages for one use. Returns `false` if this
    /// tensor is available only as a whole ([`data`](ModelSource::data)). Whoever computes something from the
    /// bytes calls [`check_unchanged`](ModelSource::check_unchanged) afterwards.
    fn read_at(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<bool, SourceError> {
        let _ = (name, offset, out);
        Ok(false)
    }

    /// Fails if the data was changed since the source was opened: by somebody who truncated or overwrote a
    /// file. What was computed from it must then be discarded.
    fn check_unchanged(&self) -> Result<(), SourceError> {
        Ok(())
    }

    /// The tokenizer file, if the tokenizer is not part of the metadata.
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

/// Opens a GGUF file held in memory. It is copied only if its address is not a multiple of 16.
pub fn from_bytes(bytes: SharedBytes) -> Result<Box<dyn ModelSource>, SourceError> {
    Ok(Box::new(GgufFile::from_bytes(aligned(bytes))?))
}

/// The bytes at an address aligned for every numeric type. Offsets in a GGUF file are multiples of its
/// alignment, so aligning the start aligns every tensor.
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

/// A result that was computed from the data of `source`, unless the data was changed meanwhile: that is then
/// the error, whatever the result.
pub fn unless_changed<T, E: From<SourceError>>(
    source: &dyn ModelSource,
    result: Result<T, E>,
) -> Result<T, E> {
    source.check_unchanged()?;
    result
}

/// What remains of a source after its weights were copied to a device: everything but the data.
pub struct Description {
    format: String,
    files: Vec<(PathBuf, u64)>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    tokenizer_json: Option<PathBuf>,
}

impl Description {
    /// Copies all but the data.
    pub fn of(source: &dyn ModelSource) -> Description {
        let tensors = source.tensors().to_vec();
        Description {
            format: source.format(),
            files: source.files(),
            metadata: source.metadata().clone(),
            by_name: tensors.iter().enumerate().map(|(at, info)| (info.name().to_owned(), at)).collect(),
            tensors,
            tokenizer_json: source.tokenizer_json(),
        }
    }
}

impl ModelSource for Description {
    fn format(&self) -> String {
        self.format.clone()
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.files.clone()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&at| &self.tensors[at])
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        Err(SourceError::Released { name: name.to_owned() })
    }

    fn tokenizer_json(&self) -> Option<PathBuf> {
        self.tokenizer_json.clone()
    }
}

/// Why a model cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A folder that contains no model.
    #[error(
        "{}: is a directory, not a file, and has no config.json; a model is a GGUF file or a folder with \
         config.json and safetensors files",
        path.display()
    )]
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
    /// There is no tensor with the requested name.
    #[error("there is no tensor {name:?}")]
    NoTensor {
        /// The name.
        name: String,
    },
    /// The data of a tensor of a model whose weights were copied to a device.
    #[error("the data of tensor {name:?} was released when the model was loaded onto the device")]
    Released {
        /// The name.
        name: String,
    },
    /// A synthetic tensor could not be generated.
    #[error("cannot generate tensor {name:?}: {error}")]
    Generate {
        /// Its name.
        name: String,
        /// Why.
        error: DTypeError,
    },
    /// A tensor could not be converted to F32.
    #[error("cannot dequantize tensor {name:?}: {error}")]
    Dequantize {
        /// Its name.
        name: String,
        /// Why.
        error: DTypeError,
    },
}

/// Name, dimensions and type of a tensor. A value of this type is always well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dims: Vec<usize>,
    dtype: DType,
    bytes: usize,
}

impl TensorInfo {
    /// A tensor with dimensions in GGUF order: `dims[0]` is the row width. Fails if a row is not a whole
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

    /// One to four dimensions, none of them 0; the first is the row width.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Elements per row.
    pub fn width(&self) -> usize {
        self.dims[0]
    }

    /// Number of rows; 1 for a one-dimensional tensor.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The data type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Size in bytes.
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
