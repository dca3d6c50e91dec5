//! Device memory of graphs.
//!
//! WebGPU has buffers but no addresses, so graph addresses are virtual: each allocation gets an address
//! range of its own that is never reused, and every operand is looked up before a kernel binds it. A
//! graph with wrong addresses gets an error that names the operand.
//!
//! Block-quantized weights are repacked into the layout that kernels read. Weights that come through
//! `import_weight` are repacked at once, into several buffers where one does not hold them. Quantized
//! blocks in plain memory are repacked when a matmul first uses them, and again after they were
//! rewritten.

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::{
    ALIGNMENT, AddressMap, BackendError, DType, Entry, Extent, LookUp, SharedBytes, WeightArg,
};

use crate::{
    BACKEND,
    buffer::{BufferSlice, GpuBuffer},
    device::GpuDevice,
    error::GpuError,
    weight::{DeviceWeight, NewWeight},
};

/// The first address: above every small number that a host might pass by mistake.
const FIRST: u64 = 1 << 32;

/// What an address range holds.
pub(crate) enum Held {
    /// Bytes as written; of an import also the host's bytes.
    Plain { buffer: GpuBuffer, host: Option<SharedBytes> },
    /// A repacked weight, which cannot be read back.
    Weight(Arc<DeviceWeight>),
}

/// A repacked copy of quantized blocks in plain memory.
struct RepackedCopy {
    at: usize,
    dtype: DType,
    rows: u32,
    k: u32,
    weight: Arc<DeviceWeight>,
}

/// Allocations, imports and weights of one dispatcher.
pub struct WgpuMemory {
    gpu: GpuDevice,
    pub(crate) map: AddressMap<Held>,
    next: u64,
    /// By the address of the entry they were repacked from.
    repacked: HashMap<u64, Vec<RepackedCopy>>,
}

impl WgpuMemory {
    /// Without allocations.
    pub(crate) fn new(gpu: &GpuDevice) -> WgpuMemory {
        WgpuMemory { gpu: gpu.clone(), map: AddressMap::default(), next: FIRST, repacked: HashMap::new() }
    }

    /// Bytes in use, imports included.
    pub fn bytes(&self) -> usize {
        self.map.bytes()
    }

    /// Bytes that can still be allocated, where the driver reports it.
    pub(crate) fn available_bytes(&self) -> Option<u64> {
        self.gpu.memory().map(|memory| memory.available)
    }

    /// Bytes of the largest binding.
    pub(crate) fn largest_binding(&self) -> u64 {
        self.gpu.caps().max_binding
    }

    fn check_room(&self, needed: u64) -> Result<(), BackendError> {
        match self.available_bytes() {
            Some(free) if needed > free => Err(BackendError::OutOfMemory { needed, available: Some(free) }),
            _ => Ok(()),
        }
    }

    fn insert(&mut self, bytes: usize, read_only: bool, data: Held) -> Result<u64, BackendError> {
        let start = self.next;
        // A gap, so that a range that overruns one entry never ends in the next.
        let next = (bytes as u64)
            .checked_next_multiple_of(ALIGNMENT as u64)
            .and_then(|size| start.checked_add(size)?.checked_add(ALIGNMENT as u64));
        self.next = next.ok_or(BackendError::OutOfMemory { needed: bytes as u64, available: None })?;
        Ok(self.map.insert(Entry { start, bytes, read_only, data }))
    }

    /// Memory with undefined contents. One allocation is one buffer.
    pub(crate) fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.check_room(bytes as u64)?;
        let buffer = self.gpu.create_buffer("alloc", bytes as u64)?;
        self.insert(bytes, false, Held::Plain { buffer, host: None })
    }

    /// A copy of the host's bytes, read-only for kernels.
    pub(crate) fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        self.upload((*bytes).as_ref(), Some(Arc::clone(&bytes)))
    }

    fn upload(&mut self, data: &[u8], host: Option<SharedBytes>) -> Result<u64, BackendError> {
        self.check_room(data.len() as u64)?;
        let buffer = self.gpu.create_buffer("import", data.len() as u64)?;
        self.gpu.upload("import", &buffer, 0, data)?;
        self.insert(data.len(), true, Held::Plain { buffer, host })
    }

    /// A weight, repacked if it is block-quantized. Unquantized weights that fit one buffer are stored
    /// as they are, so that any range of them can be read.
    pub(crate) fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        let len = (*bytes).as_ref().len();
        let plain = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::U32);
        if rows == 0 || width == 0 || plain && len as u64 <= self.gpu.caps().max_buffer {
            return self.upload((*bytes).as_ref(), None);
        }
        let weight = self.pack("import_weight", dtype, (*bytes).as_ref(), rows, width)?;
        self.insert(len, true, Held::Weight(Arc::new(weight)))
    }

    fn pack(
        &self,
        call: &'static str,
        dtype: DType,
        bytes: &[u8],
        rows: u32,
        width: u32,
    ) -> Result<DeviceWeight, BackendError> {
        let name = format!("{dtype} [{rows}, {width}]");
        let upcast = crate::weight::upcast(dtype, bytes).map_err(|error| BackendError::Device {
            backend: BACKEND,
            call,
            source: Box::new(error),
        })?;
        let (stored, bytes) = match &upcast {
            Some((stored, bytes)) => (*stored, bytes.as_slice()),
            None => (dtype, bytes),
        };
        let new = NewWeight::check(&self.gpu, call, &name, stored, bytes, rows as usize, width as usize)?;
        self.check_room(new.needed())?;
        Ok(DeviceWeight { dtype, ..new.upload(&self.gpu)? })
    }

    /// Frees an allocation, an import or a weight. The device keeps what work in flight needs.
    pub(crate) fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.map.remove(ptr)?;
        self.repacked.remove(&ptr);
        Ok(())
    }

    /// The buffer range of a range of plain memory.
    pub(crate) fn slice(
        &self,
        what: &'static str,
        ptr: u64,
        bytes: usize,
    ) -> Result<BufferSlice, BackendError> {
        let (entry, at) = self.map.find(what, ptr, bytes)?;
        match &entry.data {
            Held::Plain { buffer, .. } => {
                Ok(BufferSlice { buffer: buffer.clone(), offset: at as u64, size: bytes as u64 })
            }
            Held::Weight(weight) => Err(BackendError::Unsupported {
                backend: BACKEND,
                what: format!("{what} at {ptr:#x}: a repacked weight of {}", weight.dtype),
            }),
        }
    }

    /// Notes a write to an address. Returns the entry whose repacked copies are dropped by that, if any.
    pub(crate) fn written(&mut self, ptr: u64) -> Option<u64> {
        if self.repacked.is_empty() {
            return None;
        }
        let start = self.map.find("write", ptr, 0).ok()?.0.start;
        self.repacked.remove(&start).map(|_| start)
    }

    /// The weight of a matmul or the table of an embedding. Quantized blocks in plain memory are read
    /// back for repacking unless the host's bytes are available, so no pending dispatch may write them.
    pub(crate) fn weight(
        &mut self,
        what: &'static str,
        arg: &WeightArg,
        k: u32,
    ) -> Result<Arc<DeviceWeight>, BackendError> {
        let &WeightArg { ptr, dtype, rows, .. } = arg;
        let bytes = self.weight_bytes(dtype, rows, k)?;
        let (entry, at) = self.map.find(what, ptr, bytes)?;
        let start = entry.start;
        let (buffer, host) = match &entry.data {
            Held::Weight(weight) => {
                if at == 0 && (weight.dtype, weight.n, weight.k) == (dtype, rows, k) {
                    return Ok(Arc::clone(weight));
                }
                let held = format!("{} [{}, {}]", weight.dtype, weight.n, weight.k);
                let what = format!("{what} as {dtype} [{rows}, {k}]: it was imported as {held}");
                return Err(BackendError::Unsupported { backend: BACKEND, what });
            }
            Held::Plain { buffer, host } => (buffer.clone(), host.clone()),
        };
        let slice = BufferSlice { buffer, offset: at as u64, size: bytes as u64 };
        if let Some(view) = DeviceWeight::view(&self.gpu, what, dtype, rows, k, &slice)? {
            return Ok(Arc::new(view));
        }
        let same = |p: &&RepackedCopy| (p.at, p.dtype, p.rows, p.k) == (at, dtype, rows, k);
        if let Some(found) = self.repacked.get(&start).and_then(|all| all.iter().find(same)) {
            return Ok(Arc::clone(&found.weight));
        }
        let weight = match &host {
            Some(host) => self.pack(what, dtype, &(**host).as_ref()[at..at + bytes], rows, k)?,
            None => self.pack(what, dtype, &self.read_bytes(&slice)?, rows, k)?,
        };
        let weight = Arc::new(weight);
        let packed = RepackedCopy { at, dtype, rows, k, weight: Arc::clone(&weight) };
        self.repacked.entry(start).or_default().push(packed);
        Ok(weight)
    }

    /// Whether [`weight`](WgpuMemory::weight) reads the bytes back from the device.
    pub(crate) fn needs_readback(&self, arg: &WeightArg, k: u32) -> bool {
        let Ok((entry, at)) = self.map.find("the weight", arg.ptr, 0) else { return false };
        let plain = matches!(entry.data, Held::Plain { host: None, .. });
        let same = |p: &RepackedCopy| (p.at, p.dtype, p.rows, p.k) == (at, arg.dtype, arg.rows, k);
        plain
            && !self.repacked.get(&entry.start).is_some_and(|all| all.iter().any(same))
            && !(matches!(arg.dtype, DType::F32 | DType::F16 | DType::BF16)
                && arg.ptr.is_multiple_of(u64::from(self.gpu.caps().binding_alignment.max(16))))
    }

    fn weight_bytes(&self, dtype: DType, rows: u32, k: u32) -> Result<usize, BackendError> {
        let row = dtype.bytes(k as usize).map_err(|error| BackendError::Device {
            backend: BACKEND,
            call: "the size of a row",
            source: Box::new(error),
        })?;
        Ok(row.saturating_mul(rows as usize))
    }

    fn read_bytes(&self, slice: &BufferSlice) -> Result<Vec<u8>, BackendError> {
        let (words, skip) = words_around(slice);
        let mut data = self.gpu.read_many(&[words])?.pop().unwrap_or_default();
        data.drain(..skip);
        data.truncate(slice.size as usize);
        Ok(data)
    }

    /// Writes bytes to plain memory at any offset, after all work submitted before.
    pub(crate) fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.map.look_up("write", ptr, data.len(), 1, true)?;
        if data.is_empty() {
            return Ok(());
        }
        let slice = self.slice("write", ptr, data.len())?;
        let (words, skip) = words_around(&slice);
        if skip == 0 && data.len().is_multiple_of(4) {
            self.gpu.upload("write", &slice.buffer, slice.offset, data)?;
            return Ok(());
        }
        // The first and the last word also hold bytes of others.
        let mut bytes = self.gpu.read_many(std::slice::from_ref(&words))?.pop().unwrap_or_default();
        bytes[skip..skip + data.len()].copy_from_slice(data);
        self.gpu.upload("write", &words.buffer, words.offset, &bytes)?;
        Ok(())
    }
}

/// The whole words that contain a range, and the byte offset of the range in the first of them.
pub(crate) fn words_around(slice: &BufferSlice) -> (BufferSlice, usize) {
    let start = slice.offset & !3;
    let end = (slice.offset + slice.size).next_multiple_of(4);
    (slice.buffer.slice(start..end), (slice.offset - start) as usize)
}

impl LookUp for WgpuMemory {
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

    fn alignment(&self, dtype: DType) -> usize {
        match dtype {
            DType::F32 | DType::U32 => 4,
            _ => 2,
        }
    }
}

impl std::fmt::Debug for WgpuMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WgpuMemory").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl From<GpuError> for BackendError {
    fn from(error: GpuError) -> BackendError {
        match error {
            GpuError::OutOfMemory { needed: Some(needed), available, .. } => {
                BackendError::OutOfMemory { needed, available }
            }
            error => BackendError::Device { backend: BACKEND, call: error.call(), source: Box::new(error) },
        }
    }
}
