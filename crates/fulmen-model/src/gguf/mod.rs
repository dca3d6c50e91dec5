//! GGUF, the file format of llama.cpp's models: metadata as keys with values, then tensors.
//!
//! - **Nothing is trusted.** Every count is compared with the bytes that are left before anything is allocated, all
//!   arithmetic is checked, every tensor lies inside the file and apart from the others. A [`GgufFile`] that opened is
//!   well-formed; whether its numbers make a model is checked by whoever builds one.
//! - **The header is copied, the data are mapped.** Arrays of the metadata keep the copied bytes and decode their items
//!   when asked.
//! - Versions 2 and 3, little endian. Models in several files look like one.

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
pub use file::GgufFile;
pub use metadata::{Metadata, MetadataError};
pub use storage::TensorData;
pub use value::{Value, ValueType};
pub use write::{GgufWriteError, GgufWriter, NewFile};
