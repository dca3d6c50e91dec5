//! Data types, block formats, the compute graph, its planner and its executor.

pub mod device;
pub mod dtype;

pub use device::{BackendKind, BackendReport, DeviceInfo, DeviceKind, DeviceSelector};
pub use dtype::{DType, DTypeError};
