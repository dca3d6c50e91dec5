//! GGUF, the file format of llama.cpp: key-value metadata, then tensors.
//!
//! - **Nothing is trusted.** Every count is compared with the remaining bytes before anything is allocated,
//!   all arithmetic is checked, and every tensor must lie inside the file without overlapping another. An
//!   open [`GgufFile`] is well-formed; whether its values describe a valid model is checked when the model is
//!   built.
//! - **The header is copied, the tensor data is memory-mapped.** Metadata arrays keep the copied bytes and
//!   decode items on access.
//! - Versions 2 and 3, little-endian. A model split into several files (shards) appears as one.

mod array;
mod error;
mod file;
mod header;
mod metadata;
mod parse;
mod split;
pub(crate) mod storage;
mod value;
mod write;

pub use array::{Array, Number, Numbers, Strings};
pub use error::{Found, GgufError, GgufProblem, SplitProblem};
pub use file::{GgufFile, read_header};
pub use metadata::{Metadata, MetadataError};
pub use storage::TensorData;
pub use value::{Value, ValueType};
pub use write::{GgufWriteError, GgufWriter, NewFile};
