//! Device memory. Every address is checked here before it is passed to a kernel, so that a graph with wrong
//! addresses is an error and never an illegal access.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::result;
use fulmen_core::{
    ALIGNMENT, AddressMap, BackendError, BulkImport, DType, DeviceMemory, Entry, Extent, LookUp, ReadTicket,
    SharedBytes, WeightReader, WeightSpec, timeline,
};

use crate::BACKEND;
use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::handles::{DeviceBlock, Stream};
use crate::kernels::supports_weight;
use crate::readback::{DeviceRead, ReadPool};
use crate::staging::{self, Destination, SLOT_BYTES};
use crate::upload::{SlotPool, SmallWrites, StreamCopies};

/// Padding after every allocation: kernels may read whole vectors at the end of a tensor.
const PADDING: usize = 256;

/// The largest write that goes through the [`SmallWrites`].
const SMALL_WRITE: usize = 256 << 10;

/// Bytes of a read that are copied through pinned memory at a time.
const READ_BYTES: usize = 16 << 20;

/// Weights of a bulk import share allocations of about this size: an allocation takes the driver 0.1 ms or
/// more, and a model has hundreds of weights.
const SLAB_BYTES: usize = 256 << 20;

/// From this size on, several threads copy within the host: one alone is slower than PCIe.
const PARALLEL_COPY: usize = 4 << 20;

/// The memory of graphs on a CUDA device.
pub struct CudaMemory {
    device: Arc<CudaDevice>,
    stream: Arc<Stream>,
    /// A block is shared by the weights of a slab.
    pub(crate) map: AddressMap<Arc<DeviceBlock>>,
    small_writes: SmallWrites,
    slots: SlotPool,
    reads: Arc<ReadPool>,
}

impl CudaMemory {
    /// No memory yet.
    pub(crate) fn new(device: &Arc<CudaDevice>, stream: &Arc<Stream>) -> CudaMemory {
        CudaMemory {
            device: Arc::clone(device),
            stream: Arc::clone(stream),
            map: AddressMap::default(),
            small_writes: SmallWrites::default(),
            slots: SlotPool::default(),
            reads: Arc::default(),
        }
    }

    /// Bytes in use, imports included.
    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    fn add(&mut self, bytes: usize, read_only: bool) -> Result<u64, CudaError> {
        let size = padded(bytes).ok_or_else(|| self.too_large(bytes))?;
        let data = Arc::new(DeviceBlock::new(&self.device.context, size, bytes as u64)?);
        Ok(self.map.insert(Entry { start: data.ptr(), bytes, read_only, data }))
    }

    fn too_large(&self, bytes: usize) -> CudaError {
        CudaError::OutOfMemory { needed: bytes as u64, free: self.device.free_bytes() }
    }

    /// Allocates weights, as one slab. Returns where each of them is copied to.
    fn add_slab(&mut self, weights: &[WeightSpec], first: usize) -> Result<Vec<Destination>, CudaError> {
        let needed = weights.iter().fold(0usize, |sum, weight| sum.saturating_add(weight.bytes));
        let size = weights.iter().try_fold(0usize, |sum, weight| sum.checked_add(padded(weight.bytes)?));
        let size = size.ok_or_else(|| self.too_large(needed))?;
        let data = Arc::new(DeviceBlock::new(&self.device.context, size, needed as u64)?);
        let mut ptr = data.ptr();
        let mut destinations = Vec::with_capacity(weights.len());
        for (item, &WeightSpec { bytes, dtype, .. }) in (first..).zip(weights) {
            destinations.push(Destination { item, ptr, bytes, unit: dtype.block_bytes() });
            self.map.insert(Entry { start: ptr, bytes, read_only: true, data: Arc::clone(&data) });
            ptr += padded(bytes).unwrap_or(0) as u64;
        }
        Ok(destinations)
    }

    /// Allocates weights and uploads what `reader` reads. The addresses of weights that were allocated are in
    /// `addresses`, also after an error. Returns `false` if the reader stopped it.
    fn upload_weights(
        &mut self,
        weights: &[WeightSpec],
        reader: &dyn WeightReader,
        progress: &mut dyn FnMut(u64),
        addresses: &mut Vec<u64>,
    ) -> Result<bool, CudaError> {
        let mut work = Vec::new();
        timeline::span("allocate weights", || {
            for slab in slabs(weights) {
                let destinations = self.add_slab(&weights[slab.clone()], slab.start)?;
                addresses.extend(destinations.iter().map(|destination| destination.ptr));
                work.extend(staging::pieces(&destinations, SLOT_BYTES));
            }
            Ok::<(), CudaError>(())
        })?;
        let read = |weight: usize, offset: usize, out: &mut [u8]| reader.read(weight, offset, out);
        let copies = StreamCopies::new(&self.device, &self.stream, &self.slots);
        staging::upload(&copies, &work, &read, progress)
    }

    /// Starts to read a range.
    pub(crate) fn start_copy(&self, ptr: u64, bytes: usize) -> Result<DeviceRead, BackendError> {
        self.map.look_up("read", ptr, bytes, 1, false)?;
        // SAFETY: the range is inside a live block, and `free` waits for the stream.
        Ok(unsafe { self.reads.start(&self.device.context, &self.stream, ptr, bytes)? })
    }

    /// Copies to a range that was checked.
    fn upload(&mut self, ptr: u64, data: &[u8]) -> Result<(), CudaError> {
        if data.len() > SMALL_WRITE {
            let read = |_, offset: usize, out: &mut [u8]| {
                out.copy_from_slice(&data[offset..offset + out.len()]);
                true
            };
            let all = Destination { item: 0, ptr, bytes: data.len(), unit: 1 };
            let pieces = staging::pieces(&[all], SLOT_BYTES);
            let copies = StreamCopies::new(&self.device, &self.stream, &self.slots);
            return staging::upload(&copies, &pieces, &read, &mut |_| ()).map(|_| ());
        }
        let from = self.small_writes.put(&self.device, &self.stream, data)?;
        self.device.context.bind()?;
        // SAFETY: the range is inside a live block, and the staging buffer is not written again before the
        // copy has finished.
        let copied = unsafe {
            let from = std::slice::from_raw_parts(from, data.len());
            result::memcpy_htod_async(ptr, from, self.stream.raw())
        };
        copied.map_err(|error| self.device.context.error("cuMemcpyHtoDAsync", error))
    }
}

/// The size of an allocation with its padding. `None` if it overflows.
fn padded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(PADDING)
}

/// Cuts a list of weights into slabs of about [`SLAB_BYTES`]. A larger weight has one of its own.
fn slabs(weights: &[WeightSpec]) -> Vec<Range<usize>> {
    let mut slabs: Vec<Range<usize>> = Vec::new();
    let mut room = 0;
    for (at, weight) in weights.iter().enumerate() {
        let size = padded(weight.bytes).unwrap_or(usize::MAX);
        match slabs.last_mut() {
            Some(slab) if size <= room => slab.end = at + 1,
            _ => {
                slabs.push(at..at + 1);
                room = SLAB_BYTES;
            }
        }
        room = room.saturating_sub(size);
    }
    slabs
}

impl LookUp for CudaMemory {
    fn look_up(
        &self,
        what: &'static str,
        ptr: u64,
        bytes: usize,
        align: usize,
        write: bool,
    ) -> Result<Extent, BackendError> {
        self.map.look_up(what, ptr, bytes, align, write)
    }

    /// Quantized blocks are read with 16-byte loads.
    fn alignment(&self, dtype: DType) -> usize {
        match dtype {
            DType::F32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            _ => 16,
        }
    }

    fn check_weight_type(&self, dtype: DType) -> Result<(), BackendError> {
        match supports_weight(dtype) {
            true => Ok(()),
            false => {
                let what = format!("matmuls and embeddings of {dtype}");
                Err(BackendError::Unsupported { backend: BACKEND, what })
            }
        }
    }
}

impl DeviceMemory for CudaMemory {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        Ok(self.add(bytes, false)?)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        let entry = self.map.remove(ptr)?;
        // Running kernels may use it.
        let done = self.stream.synchronize();
        drop(entry);
        Ok(done?)
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.map.look_up("write", ptr, data.len(), 1, true)?;
        Ok(self.upload(ptr, data)?)
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        Ok(ReadTicket::pending(self.start_copy(ptr, bytes)?, bytes))
    }

    /// In parts, so that little memory is pinned.
    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.map.look_up("read", ptr, out.len(), 1, false)?;
        let mut at = ptr;
        for part in out.chunks_mut(READ_BYTES) {
            self.start_read(at, part.len())?.wait_into(part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Uploads the bytes. The address is read-only.
    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        let data = (*bytes).as_ref();
        let ptr = self.add(data.len(), true)?;
        if let Err(error) = self.upload(ptr, data) {
            // The error of the upload is the one to report.
            let _ = self.free(ptr);
            return Err(error.into());
        }
        Ok(ptr)
    }

    /// Into slabs, through pinned memory that the reader fills.
    fn import_weights(
        &mut self,
        weights: &[WeightSpec],
        reader: &dyn WeightReader,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BulkImport, BackendError> {
        let mut addresses = Vec::with_capacity(weights.len());
        let uploaded = self.upload_weights(weights, reader, progress, &mut addresses);
        if matches!(uploaded, Ok(true)) {
            return Ok(BulkImport::Imported(addresses));
        }
        // Copies may be running. The error of the upload is the one to report.
        let _ = self.stream.synchronize();
        for ptr in addresses {
            let _ = self.map.remove(ptr);
        }
        Ok(uploaded.map(|_| BulkImport::Stopped)?)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.device.free_bytes()
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // Running kernels may use it. Errors are reported when results are read.
        let _ = self.stream.synchronize();
    }
}

/// Copies within the host, with several threads if it is large.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    let threads = if from.len() < PARALLEL_COPY {
        1
    } else {
        std::thread::available_parallelism().map_or(1, |n| n.get()).min(8)
    };
    if threads == 1 {
        to.copy_from_slice(from);
        return;
    }
    let part = from.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_share_slabs() {
        let weight = |bytes| WeightSpec { bytes, dtype: DType::F32, rows: 1, width: 1 };
        let slabs = |sizes: &[usize]| slabs(&sizes.iter().map(|&bytes| weight(bytes)).collect::<Vec<_>>());
        assert!(slabs(&[]).is_empty());
        assert_eq!(slabs(&[4, 0, 1 << 20]), std::slice::from_ref(&(0..3)));
        assert_eq!(slabs(&[1 << 30, 4, 8]), [0..1, 1..3]);
        assert_eq!(slabs(&[SLAB_BYTES / 2, SLAB_BYTES / 2, 4, usize::MAX, 4]), [0..1, 1..3, 3..4, 4..5]);
        assert_eq!((padded(0), padded(1), padded(257)), (Some(256), Some(512), Some(768)));
        assert_eq!(padded(usize::MAX - 300), None);
    }

    #[test]
    fn copies_are_complete_with_any_number_of_threads() {
        for len in [0, 1, 1000, PARALLEL_COPY - 1, PARALLEL_COPY, PARALLEL_COPY + 12_345] {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut to = vec![0xff; len];
            copy(&from, &mut to);
            assert!(from == to, "{len}");
        }
    }
}
