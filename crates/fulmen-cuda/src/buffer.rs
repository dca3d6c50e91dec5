//! Device memory. Every address is checked here before it is passed to a kernel, so that a graph with wrong
//! addresses is an error and never an illegal access.

use std::sync::Arc;

use cudarc::driver::result;
use fulmen_core::{
    ALIGNMENT, AddressMap, BackendError, DType, DeviceMemory, Entry, Extent, LookUp, ReadTicket, SharedBytes,
};

use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::handles::{DeviceBlock, Event, PinnedBlock, Stream};
use crate::readback::{DeviceRead, ReadPool};

/// Padding after every allocation: kernels may read whole vectors at the end of a tensor.
const PADDING: usize = 256;

/// Bytes of a staging buffer in pinned memory.
const STAGING_BYTES: usize = 16 << 20;

/// Staging buffers that uploads alternate between.
const STAGING_BUFFERS: usize = 3;

/// From this size on, several threads copy within the host: one alone is slower than PCIe.
const PARALLEL_COPY: usize = 4 << 20;

/// The memory of graphs on a CUDA device.
pub struct CudaMemory {
    device: Arc<CudaDevice>,
    stream: Arc<Stream>,
    pub(crate) map: AddressMap<DeviceBlock>,
    uploads: Uploads,
    reads: Arc<ReadPool>,
}

impl CudaMemory {
    /// No memory yet.
    pub(crate) fn new(device: &Arc<CudaDevice>, stream: &Arc<Stream>) -> CudaMemory {
        CudaMemory {
            device: Arc::clone(device),
            stream: Arc::clone(stream),
            map: AddressMap::default(),
            uploads: Uploads::default(),
            reads: Arc::default(),
        }
    }

    /// Bytes in use, imports included.
    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    fn add(&mut self, bytes: usize, read_only: bool) -> Result<u64, CudaError> {
        let needed = bytes as u64;
        let size = bytes.checked_next_multiple_of(ALIGNMENT).and_then(|size| size.checked_add(PADDING));
        let size = size.ok_or(CudaError::OutOfMemory { needed, free: self.device.free_bytes() })?;
        let data = DeviceBlock::new(&self.device.context, size, needed)?;
        Ok(self.map.insert(Entry { start: data.ptr(), bytes, read_only, data }))
    }

    /// Starts to read a range.
    pub(crate) fn start_copy(&self, ptr: u64, bytes: usize) -> Result<DeviceRead, BackendError> {
        self.map.look_up("read", ptr, bytes, 1, false)?;
        // SAFETY: the range is inside a live block, and `free` waits for the stream.
        Ok(unsafe { self.reads.start(&self.device.context, &self.stream, ptr, bytes)? })
    }

    /// Copies to a range that was checked.
    fn upload(&mut self, ptr: u64, data: &[u8]) -> Result<(), CudaError> {
        let mut at = ptr;
        for part in data.chunks(STAGING_BYTES) {
            let from = self.uploads.put(&self.device, &self.stream, part)?;
            self.device.context.bind()?;
            // SAFETY: the range is inside a live block, and the staging buffer is not written again before
            // the copy has finished.
            let copied = unsafe {
                let from = std::slice::from_raw_parts(from, part.len());
                result::memcpy_htod_async(at, from, self.stream.raw())
            };
            copied.map_err(|error| self.device.context.error("cuMemcpyHtoDAsync", error))?;
            at += part.len() as u64;
        }
        Ok(())
    }
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
        for part in out.chunks_mut(STAGING_BYTES) {
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

/// The staging buffers of uploads, in pinned memory: uploads run at the speed of PCIe, and the caller can
/// reuse its bytes at once. When a buffer is full, the next one is used, after the copies from it have
/// finished.
#[derive(Default)]
struct Uploads {
    buffers: Vec<StagingBuffer>,
    current: usize,
}

struct StagingBuffer {
    memory: PinnedBlock,
    used: usize,
    /// Recorded after the last copy from it.
    copied: Event,
}

impl Uploads {
    /// Copies at most [`STAGING_BYTES`] to a staging buffer.
    fn put(&mut self, device: &CudaDevice, stream: &Stream, data: &[u8]) -> Result<*const u8, CudaError> {
        let full = |buffer: &StagingBuffer| buffer.used + data.len() > buffer.memory.bytes();
        if self.buffers.get(self.current).is_some_and(full) {
            stream.record(&self.buffers[self.current].copied)?;
            self.current = (self.current + 1) % STAGING_BUFFERS;
            if let Some(next) = self.buffers.get_mut(self.current) {
                next.copied.synchronize()?;
                next.used = 0;
            }
        }
        if self.current == self.buffers.len() {
            let memory = PinnedBlock::new(&device.context, STAGING_BYTES)?;
            let copied = Event::new(&device.context, false)?;
            self.buffers.push(StagingBuffer { memory, used: 0, copied });
        }
        let buffer = &mut self.buffers[self.current];
        // SAFETY: the buffer has space from `used` on, and no copy reads from there.
        let (to, target) = unsafe {
            let to = buffer.memory.ptr().add(buffer.used);
            (to, std::slice::from_raw_parts_mut(to, data.len()))
        };
        copy(data, target);
        buffer.used = (buffer.used + data.len()).next_multiple_of(64);
        Ok(to)
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
    fn copies_are_complete_with_any_number_of_threads() {
        for len in [0, 1, 1000, PARALLEL_COPY - 1, PARALLEL_COPY, PARALLEL_COPY + 12_345] {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut to = vec![0xff; len];
            copy(&from, &mut to);
            assert!(from == to, "{len}");
        }
    }
}
