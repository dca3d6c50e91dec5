//! Errors of GGUF files.

use std::{fmt, io, path::PathBuf};

use fulmen_core::DTypeError;

use super::{MetadataError, parse::MAX_HEADER};

/// Why a GGUF file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct GgufError {
    /// The file; `memory` for bytes in memory.
    pub path: PathBuf,
    /// The problem.
    pub problem: Box<GgufProblem>,
}

impl GgufError {
    pub(super) fn new(path: impl Into<PathBuf>, problem: GgufProblem) -> GgufError {
        GgufError { path: path.into(), problem: Box::new(problem) }
    }
}

/// A problem with a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// An I/O error.
    #[error("cannot {call}: {error}")]
    Io {
        /// What was attempted.
        call: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The path is not a regular file.
    #[error("is {found}, not a file")]
    NotAFile {
        /// The actual value.
        found: &'static str,
    },
    /// The file is empty.
    #[error("is empty")]
    Empty,
    /// The file is too short.
    #[error("is truncated: {what} at byte {offset} needs {needed} bytes, {left} left")]
    Truncated {
        /// What is being read.
        what: String,
        /// Its offset.
        offset: u64,
        /// The bytes it needs.
        needed: u64,
        /// The bytes left.
        left: u64,
    },
    /// The file does not start with `GGUF`.
    #[error("is not a GGUF file: it starts with \"{}\", not \"GGUF\"", found.escape_ascii())]
    Magic {
        /// Its first bytes.
        found: [u8; 4],
    },
    /// An unsupported version of the format.
    #[error("has GGUF version {version} ({}); versions 2 and 3 are supported", version_words(*version))]
    Version {
        /// The version.
        version: u32,
    },
    /// A big-endian file.
    #[error("is big-endian (version {version} byte-swapped); only little-endian GGUF files are supported")]
    BigEndian {
        /// The version, byte-swapped.
        version: u32,
    },
    /// A header larger than any real model's.
    #[error("{what} would end at byte {end}; headers of more than {MAX_HEADER} bytes are rejected")]
    HeaderSize {
        /// What is being read.
        what: String,
        /// Where it would end.
        end: u64,
    },
    /// A count that needs more than the remaining bytes.
    #[error("{what} is {count}, at least {least} {} each, but only {left} bytes are left", plural(*least))]
    Count {
        /// What is counted.
        what: String,
        /// The count.
        count: u64,
        /// The minimum size of one, in bytes.
        least: u64,
        /// How many bytes there are.
        left: u64,
    },
    /// A key or tensor name that is empty or too long.
    #[error("{what} has a name of {length} bytes; names must have 1 to 65535 bytes")]
    NameLength {
        /// Which one.
        what: String,
        /// Its length.
        length: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} at byte {offset} is not UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
        /// Its offset.
        offset: u64,
    },
    /// A duplicate name.
    #[error("duplicate {what} {name:?}")]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An unknown metadata value type.
    #[error("{what} has the unknown value type {found}; expected 0 to 12")]
    ValueType {
        /// Whose type it is.
        what: String,
        /// The number.
        found: u32,
    },
    /// A bool that is neither 0 nor 1.
    #[error("{what} is a bool with the value {found}; expected 0 or 1")]
    Bool {
        /// Which one.
        what: String,
        /// The byte.
        found: u8,
    },
    /// An array of arrays.
    #[error("key {key:?} is an array of arrays, which is not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// Metadata that the reader needs is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An invalid alignment.
    #[error("general.alignment is {found}; expected a power of two from 8 to 1048576")]
    Alignment {
        /// The alignment.
        found: u32,
    },
    /// A tensor with too few or too many dimensions.
    #[error("tensor {tensor:?} has {found} dimensions; expected 1 to 4")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// The number of dimensions.
        found: u32,
    },
    /// A dimension of 0.
    #[error("tensor {tensor:?}: dimension {dimension} is 0")]
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// Which dimension, from 0.
        dimension: usize,
    },
    /// The number of elements overflows.
    #[error("tensor {tensor:?}: the number of elements of shape {dims:?} overflows")]
    Elements {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A GGUF type that this library does not support.
    #[error("tensor {tensor:?} has the type {name}, which is not supported")]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The type's name.
        name: &'static str,
    },
    /// An unknown type, or dimensions that do not match its block size.
    #[error("tensor {tensor:?}: {error}")]
    Type {
        /// The tensor.
        tensor: String,
        /// The problem.
        error: DTypeError,
    },
    /// Misaligned tensor data.
    #[error("tensor {tensor:?}: offset {offset} is not a multiple of the alignment {alignment}")]
    OffsetAlignment {
        /// The tensor.
        tensor: String,
        /// Its offset from the start of the data section.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Tensor data outside the file.
    #[error(
        "tensor {tensor:?}: {bytes} bytes at offset {offset} of the data section (which starts at byte \
         {start}) are outside the file of {file} bytes"
    )]
    Outside {
        /// The tensor.
        tensor: String,
        /// Its offset from the start of the data section.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The start of the data section.
        start: u64,
        /// The size of the file.
        file: u64,
    },
    /// Two tensors overlap.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
    /// The file size changed while the file was open.
    #[error("changed while it was open: expected {expected} bytes, found {found}")]
    Changed {
        /// Its size when it was opened.
        expected: u64,
        /// Its current size.
        found: u64,
    },
    /// The file was written to while it was open.
    #[error("was modified while it was open: its weights may be those of two different models")]
    Modified,
    /// A part of a mapped file could not be read.
    #[error("a part of it could not be read: it was changed while it was open, or the disk failed")]
    PageLost,
    /// There is no such tensor.
    #[error("has no tensor {0:?}")]
    NoTensor(String),
    /// A problem with a model in several shards.
    #[error(transparent)]
    Split(#[from] SplitProblem),
}

/// A problem with a model in several shards.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SplitProblem {
    /// A shard without a path, so that the others cannot be found.
    #[error("is shard {shard} of {count}; a split model must be opened by its path")]
    NoPath {
        /// Its number, from 1.
        shard: u64,
        /// Number of shards.
        count: u64,
    },
    /// A shard whose file name does not follow the naming scheme.
    #[error(
        "is shard {shard} of {count} of a split model, but its name does not end in \
         \"-{shard:05}-of-{count:05}.gguf\"; the shards are found by their names, in one folder"
    )]
    Name {
        /// Its number, from 1.
        shard: u64,
        /// Number of shards.
        count: u64,
    },
    /// Missing shards.
    #[error(
        "is shard {shard} of {count} of a split model, and {} missing: {}; put all shards into one folder \
         and pass any of them",
        if missing.len() == 1 { "one is" } else { "others are" },
        name_list(missing)
    )]
    Missing {
        /// The number of the shard that was opened, from 1.
        shard: u64,
        /// Number of shards.
        count: u64,
        /// The file names that are missing; not all of them if there are very many.
        missing: Vec<String>,
    },
    /// A shard whose metadata contradicts its name or the other shards.
    #[error("{key} must be {expected}, is {found}")]
    Mismatch {
        /// The metadata key.
        key: &'static str,
        /// The expected value.
        expected: u64,
        /// The actual value.
        found: Found,
    },
}

/// A number that may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found(pub Option<u64>);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "{number}"),
            None => f.write_str("missing"),
        }
    }
}

/// The first names of a list.
fn name_list(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let more = if names.len() > SHOWN { ", …" } else { "" };
    names[..names.len().min(SHOWN)].join(", ") + more
}

fn version_words(version: u32) -> &'static str {
    match version {
        0 => "which does not exist",
        1 => "too old; convert it with a current tool",
        _ => "newer than this reader",
    }
}

fn plural(bytes: u64) -> &'static str {
    if bytes == 1 { "byte" } else { "bytes" }
}
