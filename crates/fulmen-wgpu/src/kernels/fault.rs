//! Faults that kernels report: a token, position or parameter in device memory that is out of range.
//!
//! Only kernels see such a value. They never use it: they write it to a record of [`FAULT_BYTES`] bytes
//! (`fault.wgsl`), which is one of their outputs and initially zero. The host checks the record
//! ([`fulmen_core::fault`]) when it reads data. The first fault is kept.

/// Bytes of the record: four words, the first of which is 0 if there is no fault.
pub const FAULT_BYTES: u64 = 16;

/// The WGSL element type of the binding `fault`.
pub(super) const ELEMENT: &str = "atomic<u32>";
