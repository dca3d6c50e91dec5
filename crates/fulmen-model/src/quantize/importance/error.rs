//! Errors of importance matrices.

use std::{collections::TryReserveError, io, path::PathBuf};

use fulmen_core::DType;

use crate::gguf::GgufProblem;

/// Why an importance matrix cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ImportanceError {
    /// The file; `memory` for bytes in memory.
    pub path: PathBuf,
    /// The problem.
    pub problem: Box<ImportanceProblem>,
}

impl ImportanceError {
    pub(super) fn new(path: impl Into<PathBuf>, problem: ImportanceProblem) -> ImportanceError {
        ImportanceError { path: path.into(), problem: Box::new(problem) }
    }
}

/// A problem with an importance matrix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportanceProblem {
    /// The file cannot be opened, or is a GGUF file with a problem.
    #[error(transparent)]
    Gguf(Box<GgufProblem>),
    /// The file cannot be read, or there is not enough memory for it.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// A GGUF file of another kind.
    #[error(
        "is not an importance matrix: general.type is {}, expected \"imatrix\"",
        found.as_ref().map_or("missing".to_owned(), |found| format!("{found:?}"))
    )]
    NotImportance {
        /// Its kind.
        found: Option<String>,
    },
    /// A file without entries.
    #[error("has no entries")]
    Empty,
    /// A number of entries that the file has no room for: it is damaged, or of another format.
    #[error("is not an importance matrix, or damaged: it would have {count} entries in {left} bytes")]
    Entries {
        /// The number of entries.
        count: i32,
        /// The bytes that are left for them.
        left: u64,
    },
    /// The file ends too early.
    #[error("is truncated or damaged: {what} at byte {offset} needs {needed} bytes, {left} left")]
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
    /// A length, a number of values or a number of sums that cannot be.
    #[error("{what} is {found}; expected at least {least}")]
    Number {
        /// Which number.
        what: String,
        /// The number.
        found: i32,
        /// The least that makes sense.
        least: i32,
    },
    /// A name that is too long.
    #[error("{what} has {length} bytes; expected at most 65535")]
    NameLength {
        /// Which one.
        what: String,
        /// Its length.
        length: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// Which text.
        what: String,
    },
    /// Two entries with the same name.
    #[error("duplicate entry {entry:?}")]
    Duplicate {
        /// The name.
        entry: String,
    },
    /// Bytes after the end.
    #[error("has {bytes} bytes after its end")]
    Rest {
        /// How many.
        bytes: u64,
    },
    /// An entry has sums without counts, or counts without sums.
    #[error("entry {entry:?} has no tensor {entry}{missing}")]
    Half {
        /// The entry.
        entry: String,
        /// The end of the name of the tensor that is missing.
        missing: &'static str,
    },
    /// A tensor that is not F32.
    #[error("tensor {tensor:?} must be F32, is {found}")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: DType,
    },
    /// Sums and counts whose shapes do not go together.
    #[error("entry {entry:?} has sums of shape {sums:?} and counts of shape {counts:?}")]
    Shape {
        /// The entry.
        entry: String,
        /// The shape of the sums.
        sums: Vec<usize>,
        /// The shape of the counts, which should be one for each row of the sums.
        counts: Vec<usize>,
    },
    /// A count that is negative or not finite.
    #[error("entry {entry:?}: count {index} is {found}; expected a finite number of at least 0")]
    Count {
        /// The entry.
        entry: String,
        /// Which count, from 0.
        index: usize,
        /// The count.
        found: f32,
    },
    /// A value that is negative or not finite.
    #[error("entry {entry:?}: value {index} is {found}; expected a finite number of at least 0")]
    Value {
        /// The entry.
        entry: String,
        /// Which value, from 0.
        index: usize,
        /// The value.
        found: f32,
    },
}

impl ImportanceProblem {
    pub(super) fn memory(error: TryReserveError) -> ImportanceProblem {
        ImportanceProblem::Io(error.into())
    }
}

impl From<GgufProblem> for ImportanceProblem {
    fn from(problem: GgufProblem) -> ImportanceProblem {
        ImportanceProblem::Gguf(Box::new(problem))
    }
}
