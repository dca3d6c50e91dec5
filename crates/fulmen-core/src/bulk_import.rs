//! Imports of many weights at once ([`DeviceMemory::import_weights`](crate::DeviceMemory::import_weights)).

use crate::DType;

/// A weight matrix `[rows, width]` of a bulk import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Its size.
    pub bytes: usize,
    /// Its type.
    pub dtype: DType,
    /// Its rows.
    pub rows: u32,
    /// Elements per row.
    pub width: u32,
}

/// Reads the bytes of a bulk import.
pub trait WeightReader: Sync {
    /// Writes the bytes of weight number `weight` from `offset` on to `out`. Offset and length are whole
    /// blocks of its type. Called from several threads, once for each byte. Returning `false` stops the
    /// import; the reader keeps the reason. Bytes before those that were refused, in the order of the
    /// weights, are read all the same.
    fn read(&self, weight: usize, offset: usize, out: &mut [u8]) -> bool;
}

/// How a bulk import ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkImport {
    /// The address of each weight. Each is freed like any other allocation.
    Imported(Vec<u64>),
    /// The reader stopped it.
    Stopped,
    /// The device has no use for it: import each weight by itself. The reader was not called.
    Unsupported,
}
