//! Data types, block formats, the compute graph, its planner and its executor.

pub mod dtype;
pub mod sampling;

pub use dtype::{DType, DTypeError};
