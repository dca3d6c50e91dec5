//! What can be wrong with a folder of safetensors files, as types.

use std::{io, path::PathBuf};

use fulmen_core::DTypeError;

use super::header::MAX_HEADER;
use crate::gguf::GgufProblem;

/// A folder that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct SafetensorsError {
    /// The folder or the file in it.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Box<SafetensorsProblem>,
}

impl SafetensorsError {
    pub(super) fn new(path: impl Into<PathBuf>, problem: SafetensorsProblem) -> SafetensorsError {
        SafetensorsError { path: path.into(), problem: Box::new(problem) }
    }
}

/// What is wrong with a folder of safetensors files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsProblem {
    /// A file that could not be opened, mapped or read.
    #[error(transparent)]
    File(GgufProblem),
    /// The operating system refused.
    #[error("cannot {call}: {error}")]
    Io {
        /// What was tried.
        call: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// A JSON file that is too large to be what it should be.
    #[error("has {bytes} bytes; more than {most} are refused")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The most that is read.
        most: u64,
    },
    /// JSON that is not well-formed, or not what it should be.
    #[error("is not as expected: {0}")]
    Json(#[from] serde_json::Error),
    /// A folder without weights.
    #[error("has neither model.safetensors nor model.safetensors.index.json")]
    NoWeights,
    /// A header whose length cannot be right.
    #[error("has a header of {length} bytes; the file has {file}, and more than {MAX_HEADER} are refused")]
    HeaderLength {
        /// The length it says.
        length: u64,
        /// The size of the file.
        file: u64,
    },
    /// The same tensor twice.
    #[error("tensor {0:?} is there twice")]
    Duplicate(String),
    /// A tensor of a type that is not supported.
    #[error("tensor {tensor:?} has the type {dtype}, which is not supported; F32, F16 and BF16 are")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A tensor with too few or too many dimensions, or one of 0.
    #[error("tensor {tensor:?} has the shape {shape:?}; 1 to 4 dimensions, none of them 0, are allowed")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A size that overflows.
    #[error("tensor {tensor:?}: {error}")]
    Size {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        error: DTypeError,
    },
    /// Offsets that do not fit the tensor or the file.
    #[error(
        "tensor {tensor:?} lies at {start}..{end} of the data; {needed} bytes inside the {data} of the file expected"
    )]
    Offsets {
        /// The tensor.
        tensor: String,
        /// Where it starts.
        start: u64,
        /// Where it ends.
        end: u64,
        /// The bytes it needs.
        needed: u64,
        /// The bytes of data in the file.
        data: u64,
    },
    /// Two tensors with bytes in common.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
    /// An index that names a file outside the folder.
    #[error("names the file {0:?}; a plain file name expected")]
    FileName(String),
    /// An index that names a tensor that its file does not have.
    #[error("says that tensor {tensor:?} is in {file:?}, but it is not")]
    NotInFile {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A tensor whose name this library does not know.
    #[error("has the tensor {0:?}, which no supported architecture has")]
    UnknownTensor(String),
    /// A tensor with other sizes than the configuration says.
    #[error("tensor {tensor:?} has {found} rows, but {heads} heads need an even number of rows each")]
    Heads {
        /// The tensor.
        tensor: String,
        /// Its rows.
        found: usize,
        /// The heads.
        heads: usize,
    },
    /// A configuration that asks for something that is not supported.
    #[error("{key} is {found}, which is not supported; {expected}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is supported.
        expected: &'static str,
    },
    /// A tensor that is not there.
    #[error("has no tensor {0:?}")]
    NoTensor(String),
}
