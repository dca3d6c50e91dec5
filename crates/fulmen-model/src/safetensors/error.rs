//! Errors of safetensors folders.

use std::{io, path::PathBuf};

use fulmen_core::DTypeError;

use super::header::MAX_HEADER;
use crate::gguf::GgufProblem;

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct SafetensorsError {
    /// The folder, or a file in it.
    pub path: PathBuf,
    /// The problem.
    pub problem: Box<SafetensorsProblem>,
}

impl SafetensorsError {
    pub(super) fn new(path: impl Into<PathBuf>, problem: SafetensorsProblem) -> SafetensorsError {
        SafetensorsError { path: path.into(), problem: Box::new(problem) }
    }
}

/// A problem with a safetensors folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsProblem {
    /// A file that could not be opened, mapped or read.
    #[error(transparent)]
    File(GgufProblem),
    /// An I/O error.
    #[error("cannot {call}: {error}")]
    Io {
        /// What was attempted.
        call: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// A JSON file that is too large.
    #[error("is too large: {bytes} bytes, limit {limit}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The size limit.
        limit: u64,
    },
    /// Invalid JSON, or JSON with unexpected content.
    #[error("cannot be parsed: {0}")]
    Json(#[from] serde_json::Error),
    /// A folder without weights.
    #[error("has neither model.safetensors nor model.safetensors.index.json")]
    NoWeights,
    /// An impossible header length.
    #[error("has an invalid header length of {length} bytes (file size {file}, limit {MAX_HEADER})")]
    HeaderLength {
        /// The header length.
        length: u64,
        /// The size of the file.
        file: u64,
    },
    /// A duplicate tensor.
    #[error("duplicate tensor {0:?}")]
    Duplicate(String),
    /// A tensor of an unsupported type.
    #[error("tensor {tensor:?} has type {dtype}, which is not supported (supported: F32, F16, BF16)")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A tensor with an invalid shape.
    #[error("tensor {tensor:?} has the shape {shape:?}; expected 1 to 4 dimensions, none of them 0")]
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
        /// The problem.
        error: DTypeError,
    },
    /// Offsets that do not match the tensor size or the file.
    #[error(
        "tensor {tensor:?} has the data offsets {start}..{end}; expected {needed} bytes within the {data} \
         bytes of data in the file"
    )]
    Offsets {
        /// The tensor.
        tensor: String,
        /// The start offset.
        start: u64,
        /// The end offset.
        end: u64,
        /// The bytes it needs.
        needed: u64,
        /// The bytes of data in the file.
        data: u64,
    },
    /// Two tensors overlap.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
    /// The index refers to a file outside the folder.
    #[error("refers to the file {0:?}; expected a plain file name")]
    FileName(String),
    /// The index lists a tensor that its file does not have.
    #[error("lists tensor {tensor:?} in {file:?}, which does not contain it")]
    NotInFile {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
    },
    /// A tensor with an unknown name.
    #[error("has the tensor {0:?}, which no supported architecture uses")]
    UnknownTensor(String),
    /// A tensor whose rows do not match the number of heads.
    #[error("tensor {tensor:?} has {found} rows; {heads} heads need an even number of rows each")]
    Heads {
        /// The tensor.
        tensor: String,
        /// Its rows.
        found: usize,
        /// The heads.
        heads: usize,
    },
    /// A tensor with another number of value heads than the configuration says.
    #[error("tensor {tensor:?} has {found} {what}; the value heads of a delta net need {expected}")]
    ValueHeads {
        /// The tensor.
        tensor: String,
        /// Rows or columns.
        what: &'static str,
        /// As many as it has.
        found: usize,
        /// As many as the configuration says.
        expected: usize,
    },
    /// A tensor with gate and up of all experts that cannot be halved.
    #[error("tensor {tensor:?} has the shape {shape:?}; gate and up of all experts need {expected}")]
    GateUp {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// What is expected.
        expected: &'static str,
    },
    /// An expert that the configuration does not have.
    #[error("tensor {tensor:?} belongs to an expert that does not exist: num_experts is {experts}")]
    ExtraExpert {
        /// The tensor.
        tensor: String,
        /// Experts of a layer.
        experts: usize,
    },
    /// The weight of an expert is missing.
    #[error("the weight of expert {expert} of {experts} is missing in {tensor:?}")]
    MissingExpert {
        /// The GGUF name of the weights of all experts.
        tensor: String,
        /// The expert.
        expert: usize,
        /// Experts of a layer.
        experts: usize,
    },
    /// The weights of two experts differ in shape or type.
    #[error("tensor {tensor:?} is {found}; those of the other experts are {expected}")]
    ExpertShape {
        /// The tensor.
        tensor: String,
        /// Its shape and type.
        found: String,
        /// Shape and type of the others.
        expected: String,
    },
    /// A configuration value that is not supported.
    #[error("{key} is {found}, which is not supported (supported: {expected})")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is supported.
        expected: &'static str,
    },
    /// There is no such tensor.
    #[error("has no tensor {0:?}")]
    NoTensor(String),
}
