//! The device's memory: every address that a kernel gets is looked up here first, so that a graph with wrong addresses is
//! an error and never a wild access.

use std::sync::Arc;

use cudarc::driver::result;
use fulmen_core::{
    ALIGNMENT, AddressMap, BackendError, DType, DeviceMemory, Entry, Extent, LookUp, SharedBytes, Watch,
};

use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::handles::{DeviceBlock, Event, PinnedBlock, Stream};

/// Bytes behind every allocation that belong to nobody: kernels may read whole vectors at the end of a tensor.
const SPARE: usize = 256;

/// Bytes of a piece of pinned memory.
const PIECE: usize = 16 << 20;

/// Pieces that uploads take in turns.
const PIECES: usize = 3;

/// From this size on a copy within the host is shared by threads: one alone is slower than the bus.
const SHARED_COPY: usize = 4 << 20;

/// Memory that graphs on a CUDA device work in.
pub struct CudaMemory {
    device: Arc<CudaDevice>,
    stream: Arc<Stream>,
    map: AddressMap<DeviceBlock>,
    uploads: Uploads,
    /// What reads pass through.
    readback: Option<PinnedBlock>,
    /// Where operands are found while a program is captured.
    pub(crate) watch: Watch,
}

impl CudaMemory {
    /// No memory yet.
    pub(crate) fn new(device: &Arc<CudaDevice>, stream: &Arc<Stream>) -> CudaMemory {
        CudaMemory {
            device: Arc::clone(device),
            stream: Arc::clone(stream),
            map: AddressMap::default(),
            uploads: Uploads::default(),
            readback: None,
            watch: Watch::default(),
        }
    }

    /// Bytes in use, imports included.
    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    fn add(&mut self, bytes: usize, read_only: bool) -> Result<u64, CudaError> {
        let needed = bytes as u64;
        let size = bytes.checked_next_multiple_of(ALIGNMENT).and_then(|size| size.checked_add(SPARE));
        let size = size.ok_or(CudaError::OutOfMemory { needed, free: self.device.free_bytes() })?;
        let data = DeviceBlock::new(&self.device.context, size, needed)?;
        Ok(self.map.insert(Entry { start: data.ptr(), bytes, read_only, data }))
    }

    /// Copies to a range that was looked up.
    fn upload(&mut self, ptr: u64, data: &[u8]) -> Result<(), CudaError> {
        let mut at = ptr;
        for part in data.chunks(PIECE) {
            let from = self.uploads.put(&self.device, &self.stream, part)?;
            self.device.context.bind()?;
            // SAFETY: the range is inside a block that is alive, and the piece is not written again before the copy is
            // done.
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
        self.watch.note(&self.map, what, ptr, bytes)?;
        self.map.look_up(what, ptr, bytes, align, write)
    }

    /// Blocks are read in the widest pieces that their size allows.
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
        // Work in flight may use it.
        let done = self.stream.synchronize();
        drop(entry);
        Ok(done?)
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.map.look_up("write", ptr, data.len(), 1, true)?;
        Ok(self.upload(ptr, data)?)
    }

    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.map.look_up("read", ptr, out.len(), 1, false)?;
        if self.readback.is_none() {
            self.readback = Some(PinnedBlock::new(&self.device.context, PIECE)?);
        }
        let Some(piece) = &self.readback else { return Ok(()) };
        let mut at = ptr;
        for part in out.chunks_mut(piece.bytes()) {
            self.device.context.bind()?;
            // SAFETY: the range is inside a block that is alive, and the piece has room for it; the copy is waited for
            // before anything else touches the piece.
            unsafe {
                let to = std::slice::from_raw_parts_mut(piece.ptr(), part.len());
                let copied = result::memcpy_dtoh_async(to, at, self.stream.raw());
                copied.map_err(|error| self.device.context.error("cuMemcpyDtoHAsync", error))?;
            }
            self.stream.synchronize()?;
            // SAFETY: the copy is done.
            copy(unsafe { std::slice::from_raw_parts(piece.ptr(), part.len()) }, part);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// By an upload. The address is read-only.
    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        let data = (*bytes).as_ref();
        let ptr = self.add(data.len(), true)?;
        if let Err(error) = self.upload(ptr, data) {
            // The first error is the one to report.
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
        // Work in flight may use any of it. An error was or will be reported by who reads the results.
        let _ = self.stream.synchronize();
    }
}

/// Pinned memory that uploads pass through, so that they run at the speed of the bus and the caller's bytes are free at
/// once. A piece is filled from its start; the next is taken when it is full, after the copies from it are done.
#[derive(Default)]
struct Uploads {
    pieces: Vec<Piece>,
    current: usize,
}

struct Piece {
    memory: PinnedBlock,
    used: usize,
    /// Passed when every copy from it is done.
    copied: Event,
}

impl Uploads {
    /// Puts no more than [`PIECE`] bytes into pinned memory.
    fn put(&mut self, device: &CudaDevice, stream: &Stream, data: &[u8]) -> Result<*const u8, CudaError> {
        let full = |piece: &Piece| piece.used + data.len() > piece.memory.bytes();
        if self.pieces.get(self.current).is_some_and(full) {
            stream.record(&self.pieces[self.current].copied)?;
            self.current = (self.current + 1) % PIECES;
            if let Some(next) = self.pieces.get_mut(self.current) {
                next.copied.synchronize()?;
                next.used = 0;
            }
        }
        if self.current == self.pieces.len() {
            let memory = PinnedBlock::new(&device.context, PIECE)?;
            let copied = Event::new(&device.context, false)?;
            self.pieces.push(Piece { memory, used: 0, copied });
        }
        let piece = &mut self.pieces[self.current];
        // SAFETY: the piece has room from `used` on, and no copy reads there.
        let (to, target) = unsafe {
            let to = piece.memory.ptr().add(piece.used);
            (to, std::slice::from_raw_parts_mut(to, data.len()))
        };
        copy(data, target);
        piece.used = (piece.used + data.len()).next_multiple_of(64);
        Ok(to)
    }
}

/// Copies within the host, by several threads if it is much.
fn copy(from: &[u8], to: &mut [u8]) {
    let threads = if from.len() < SHARED_COPY {
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
    fn copies_are_whole_however_many_threads_share_them() {
        for len in [0, 1, 1000, SHARED_COPY - 1, SHARED_COPY, SHARED_COPY + 12_345] {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let mut to = vec![0xff; len];
            copy(&from, &mut to);
            assert!(from == to, "{len}");
        }
    }
}
