//! What kernels report: a token, a position or a parameter in device memory that is out of range.
//!
//! Only kernels see such a number. They never use it: they put it into a record of [`FAULT_BYTES`], which is an
//! output of theirs and zero at the start, and the host looks at it ([`fulmen_core::fault`]) when it reads something. The first one stays.

/// Bytes of the record: four words, the first of which is 0 where nothing was reported.
pub const FAULT_BYTES: u64 = 16;

/// `report(code, row, value, limit)` and the codes, for kernels that bind `fault`.
pub(super) const REPORT: &str = include_str!("fault.wgsl");

/// The type of the elements of `fault`.
pub(super) const ELEMENT: &str = "atomic<u32>";
