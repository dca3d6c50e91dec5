//! What can be wrong with a GGUF file, as types.

use std::{fmt, io, path::PathBuf};

use fulmen_core::DTypeError;

use super::{MetadataError, parse::MAX_HEADER};

/// A GGUF file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct GgufError {
    /// The file. `memory` for bytes that came from no file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Box<GgufProblem>,
}

impl GgufError {
    pub(super) fn new(path: impl Into<PathBuf>, problem: GgufProblem) -> GgufError {
        GgufError { path: path.into(), problem: Box::new(problem) }
    }
}

/// What is wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// The operating system refused.
    #[error("cannot {call}: {error}")]
    Io {
        /// What was tried.
        call: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// A path that names something else than a regular file.
    #[error("is {found}, not a file")]
    NotAFile {
        /// What it is.
        found: &'static str,
    },
    /// No bytes at all.
    #[error("is empty")]
    Empty,
    /// The bytes end before what should be there.
    #[error("ends too early: {what} at byte {offset} needs {needed} bytes, {left} are left")]
    Truncated {
        /// What should be there.
        what: String,
        /// Where it starts.
        offset: u64,
        /// How many bytes it has.
        needed: u64,
        /// How many there are.
        left: u64,
    },
    /// The file does not start with `GGUF`.
    #[error("is not a GGUF file: it starts with \"{}\", not \"GGUF\"", found.escape_ascii())]
    Magic {
        /// Its first bytes.
        found: [u8; 4],
    },
    /// A version of the format that is not read.
    #[error("has GGUF version {version}: {}; versions 2 and 3 are read", version_words(*version))]
    Version {
        /// The version.
        version: u32,
    },
    /// A file for machines with the other byte order.
    #[error(
        "is big-endian (version {version} with its bytes swapped); only little-endian GGUF files are read"
    )]
    BigEndian {
        /// The version, in its own byte order.
        version: u32,
    },
    /// A header that no real model has.
    #[error("{what} would end at byte {end}; a header of more than {MAX_HEADER} bytes is refused")]
    HeaderSize {
        /// What is being read.
        what: String,
        /// Where it would end.
        end: u64,
    },
    /// A count that the bytes left cannot hold.
    #[error("{what} is {count}, each of at least {least} bytes, but only {left} bytes are left")]
    Count {
        /// What is counted.
        what: String,
        /// The count.
        count: u64,
        /// The smallest size of one.
        least: u64,
        /// How many bytes there are.
        left: u64,
    },
    /// A key or tensor name that is empty or too long.
    #[error("{what} has a name of {length} bytes; 1 to 65535 are allowed")]
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
        /// Where it starts.
        offset: u64,
    },
    /// The same name twice.
    #[error("{what} {name:?} is there twice")]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A number that is no type of metadata values.
    #[error("{what} has the unknown value type {found}; known are 0 to 12")]
    ValueType {
        /// Whose type it is.
        what: String,
        /// The number.
        found: u32,
    },
    /// A truth value that is neither 0 nor 1.
    #[error("{what} is a bool with the value {found}; 0 or 1 expected")]
    Bool {
        /// Which one.
        what: String,
        /// The byte.
        found: u8,
    },
    /// An array of arrays.
    #[error("key {key:?} is an array of arrays, which no model uses; it is refused")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// Metadata that the reader itself needs and that is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An alignment that is not usable.
    #[error("general.alignment is {found}; a power of two from 8 to 1048576 expected")]
    Alignment {
        /// The alignment.
        found: u32,
    },
    /// A tensor with too few or too many dimensions.
    #[error("tensor {tensor:?} has {found} dimensions; 1 to 4 are allowed")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// How many it says it has.
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
    /// More elements than a number can count.
    #[error("tensor {tensor:?}: the number of elements of {dims:?} overflows")]
    Elements {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A type that GGUF has but this library has not.
    #[error("tensor {tensor:?} has the type {name}, which is not supported")]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The type's name.
        name: &'static str,
    },
    /// A type that is unknown, or a size that does not fit it.
    #[error("tensor {tensor:?}: {error}")]
    Type {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        error: DTypeError,
    },
    /// Data that do not start at a multiple of the alignment.
    #[error("tensor {tensor:?}: its offset {offset} is not a multiple of the alignment {alignment}")]
    OffsetAlignment {
        /// The tensor.
        tensor: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Data outside the file.
    #[error(
        "tensor {tensor:?}: {bytes} bytes at offset {offset} of the data (which start at byte {start}) do not \
         lie inside the file of {file} bytes"
    )]
    Outside {
        /// The tensor.
        tensor: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// Where the data start.
        start: u64,
        /// The size of the file.
        file: u64,
    },
    /// Two tensors with bytes in common.
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
    },
    /// A file that got another size while it was open.
    #[error("changed while it was open: it had {expected} bytes and has {found} now")]
    Changed {
        /// Its size when it was opened.
        expected: u64,
        /// Its size now.
        found: u64,
    },
    /// A tensor that is not there.
    #[error("has no tensor {0:?}")]
    NoTensor(String),
    /// Something is wrong with a file in several parts.
    #[error(transparent)]
    Split(#[from] SplitProblem),
}

/// What is wrong with a model in several files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SplitProblem {
    /// A part that came without its file name, so that the others cannot be found.
    #[error("is part {part} of {count}; a model in parts must be opened by its path")]
    NoPath {
        /// Its number, from 1.
        part: u64,
        /// How many there are.
        count: u64,
    },
    /// A part whose name does not say where the others are.
    #[error("is part {part} of {count}, but its name does not end in \"-{part:05}-of-{count:05}.gguf\"")]
    Name {
        /// Its number, from 1.
        part: u64,
        /// How many there are.
        count: u64,
    },
    /// A part that is not there.
    #[error("part {part} of {count} is missing: {error}")]
    Missing {
        /// Its number, from 1.
        part: u64,
        /// How many there are.
        count: u64,
        /// What the system says.
        error: io::Error,
    },
    /// A part that says something else of itself than its name or the first part.
    #[error("{key} is {found}, {expected} expected")]
    Mismatch {
        /// The metadata key.
        key: &'static str,
        /// What it should be.
        expected: u64,
        /// What it is.
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

fn version_words(version: u32) -> &'static str {
    match version {
        0 => "there is no such version",
        1 => "too old, convert it with a current tool",
        _ => "made by a newer tool than this one",
    }
}
