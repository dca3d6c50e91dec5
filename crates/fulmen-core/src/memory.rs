//! Device memory: the interface that the planner, the tests and the models use.

use std::sync::Arc;

use crate::{BackendError, BulkImport, DType, KernelDispatch, ReadTicket, WeightReader, WeightSpec};

/// Every allocation and every planned tensor starts at a multiple of this many bytes: enough for the widest
/// vector loads, for CUDA's coalescing and for wgpu's binding offsets.
pub const ALIGNMENT: usize = 256;

/// Bytes that can be imported into a device and stay alive as long as the device uses them: a mapped file, a
/// `Vec`.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Memory of one device. Addresses are never null and are aligned to [`ALIGNMENT`]; ranges inside an
/// allocation are addressed by adding to its address.
pub trait DeviceMemory {
    /// Allocates memory with undefined contents.
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError>;

    /// Frees an allocation or an import, given the address that `alloc` or `import` returned.
    fn free(&mut self, ptr: u64) -> Result<(), BackendError>;

    /// Copies `data` to `ptr`. Waits for work that uses the old contents.
    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError>;

    /// Starts to read `bytes` bytes at `ptr`, as the work given to the device so far leaves them. Does not
    /// wait for the device: the ticket does, or tells when they have arrived. Later writes do not change
    /// them.
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError>;

    /// Copies from `ptr` into `out`. Waits for work that writes there.
    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.start_read(ptr, out.len())?.wait_into(out)
    }

    /// Makes `bytes` readable by kernels and returns their address: without a copy where the device can read
    /// host memory, otherwise by an upload. Kernels must not write there.
    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        let bytes = (*bytes).as_ref();
        let ptr = self.alloc(bytes.len())?;
        self.write(ptr, bytes)?;
        Ok(ptr)
    }

    /// Imports a weight matrix `[rows, width]` of `dtype`, row-major. A backend may repack it, so the address
    /// may only be used as a weight or embedding table of this type and shape, and reading it back may be
    /// refused. It is freed like any other allocation. A backend that copies keeps no reference to `bytes`.
    fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        let _ = (dtype, rows, width);
        self.import(bytes)
    }

    /// Whether the device has kernels for weights of this type. Calls with others are
    /// [`BackendError::Unsupported`].
    fn supports_weight(&self, dtype: DType) -> bool {
        let _ = dtype;
        true
    }

    /// Bytes that a weight of this type and shape takes when it is imported: more than those of its blocks
    /// where a backend converts them to another type.
    fn weight_bytes(&self, dtype: DType, rows: u32, width: u32) -> u64 {
        let elements = (rows as usize).saturating_mul(width as usize);
        dtype.bytes(elements).map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// Imports many weights at once, as [`import_weight`](DeviceMemory::import_weight) does each of them, if
    /// the device copies faster from memory of its own that `reader` fills than from the caller's. The reader
    /// is called from several threads, and `progress` on this one with the bytes read so far. Unless
    /// [`BulkImport::Imported`] is returned, nothing is left on the device.
    fn import_weights(
        &mut self,
        weights: &[WeightSpec],
        reader: &dyn WeightReader,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BulkImport, BackendError> {
        let _ = (weights, reader, progress);
        Ok(BulkImport::Unsupported)
    }

    /// Whether kernels read imported bytes where they lie, so that they must not change for as long as they
    /// are imported. Otherwise an import is a copy.
    fn reads_imports_in_place(&self) -> bool {
        false
    }

    /// Bytes that can still be allocated, if the device reports them.
    fn available_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of the largest state that kernels can reach, if that is less than can be allocated.
    fn largest_state(&self) -> Option<u64> {
        None
    }
}

/// A device that runs graphs: its kernels and its memory.
pub trait Backend: KernelDispatch + DeviceMemory {}

impl<T: KernelDispatch + DeviceMemory + ?Sized> Backend for T {}
