//! Device buffers, counted in the device's statistics, and ranges of them.

use std::{ops::Range, sync::Arc, sync::atomic::Ordering};

use wgpu::BufferUsages;

use crate::{
    device::{Counters, GpuDevice, count},
    error::GpuError,
};

/// The usages of this crate's storage buffers.
pub const STORAGE: BufferUsages =
    BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);

/// Sizes are rounded up to this many bytes, so that a kernel can bind any buffer as an array of `vec4`.
const ROUNDING: u64 = 16;

/// A buffer on a device. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct GpuBuffer {
    raw: wgpu::Buffer,
    device: u64,
    // `None` for a buffer of the caller's.
    _live_bytes: Option<Arc<LiveBytes>>,
}

/// Subtracts a buffer's bytes from the live bytes when its last clone is dropped.
#[derive(Debug)]
struct LiveBytes {
    counters: Arc<Counters>,
    bytes: u64,
}

impl Drop for LiveBytes {
    fn drop(&mut self) {
        self.counters.live_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl GpuBuffer {
    /// A buffer that the caller created on this device; wgpu may panic for a buffer of another device.
    /// It needs [`BufferUsages::STORAGE`] to be bound, `COPY_SRC` to be read and `COPY_DST` to be
    /// written.
    pub fn from_wgpu(gpu: &GpuDevice, raw: wgpu::Buffer) -> Self {
        Self { raw, device: gpu.id(), _live_bytes: None }
    }

    /// wgpu identifies buffers by number, and another device may have a different buffer with that number.
    pub(crate) fn check_device(&self, gpu: &GpuDevice, call: &'static str) -> Result<(), GpuError> {
        if self.device == gpu.id() {
            return Ok(());
        }
        Err(GpuError::ForeignDevice { call, what: format!("a buffer of {} bytes", self.size()) })
    }

    /// The buffer itself.
    pub fn raw(&self) -> &wgpu::Buffer {
        &self.raw
    }

    /// Its size in bytes, rounded up when it was made.
    pub fn size(&self) -> u64 {
        self.raw.size()
    }

    /// All of it.
    pub fn whole(&self) -> BufferSlice {
        BufferSlice { buffer: self.clone(), offset: 0, size: self.size() }
    }

    /// A byte range of it. Bounds are checked where the range is used.
    pub fn slice(&self, range: Range<u64>) -> BufferSlice {
        let size = range.end.saturating_sub(range.start);
        BufferSlice { buffer: self.clone(), offset: range.start, size }
    }
}

impl PartialEq for GpuBuffer {
    fn eq(&self, other: &Self) -> bool {
        self.device == other.device && self.raw == other.raw
    }
}

impl Eq for GpuBuffer {}

impl std::hash::Hash for GpuBuffer {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.device.hash(state);
        self.raw.hash(state);
    }
}

/// A range of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BufferSlice {
    /// The buffer.
    pub buffer: GpuBuffer,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

impl BufferSlice {
    /// Whether both are ranges of one buffer and have bytes in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.offset < other.offset.saturating_add(other.size)
            && other.offset < self.offset.saturating_add(self.size)
    }

    /// Checks that it lies inside a buffer of this device and starts at a multiple of 4.
    pub(crate) fn check(&self, gpu: &GpuDevice, call: &'static str) -> Result<(), GpuError> {
        self.buffer.check_device(gpu, call)?;
        let wrong = |what: &str, expected: String, got| GpuError::Argument {
            call,
            what: what.to_owned(),
            expected,
            got: format!("{got}"),
        };
        if !self.offset.is_multiple_of(4) {
            return Err(wrong("the offset of a buffer range", "a multiple of 4".to_owned(), self.offset));
        }
        match self.offset.checked_add(self.size) {
            Some(end) if end <= self.buffer.size() => Ok(()),
            end => Err(wrong(
                "the end of a buffer range",
                format!("within the buffer's {} bytes", self.buffer.size()),
                end.unwrap_or(u64::MAX),
            )),
        }
    }
}

impl GpuDevice {
    /// A storage buffer of at least `bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`GpuError::TooLarge`], [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn create_buffer(&self, call: &'static str, bytes: u64) -> Result<GpuBuffer, GpuError> {
        self.create_buffer_for(call, bytes, STORAGE)
    }

    /// A storage buffer that holds `data`.
    ///
    /// # Errors
    /// As [`create_buffer`](Self::create_buffer).
    pub fn create_buffer_with(&self, call: &'static str, data: &[u8]) -> Result<GpuBuffer, GpuError> {
        let buffer = self.create_buffer(call, data.len() as u64)?;
        self.upload(call, &buffer, 0, data)?;
        Ok(buffer)
    }

    /// A buffer for other uses than storage.
    pub(crate) fn create_buffer_for(
        &self,
        call: &'static str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<GpuBuffer, GpuError> {
        self.make_buffer(call, bytes, usage, false)
    }

    /// A buffer that is mapped from the start.
    pub(crate) fn create_mapped_buffer(
        &self,
        call: &'static str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<GpuBuffer, GpuError> {
        self.make_buffer(call, bytes, usage, true)
    }

    fn make_buffer(
        &self,
        call: &'static str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<GpuBuffer, GpuError> {
        let limit = self.caps().max_buffer;
        if bytes > limit {
            return Err(GpuError::TooLarge {
                call,
                what: "a buffer's size in bytes".to_owned(),
                needed: bytes,
                limit,
            });
        }
        // Near the limit the rounded size may not fit, but whole words always do.
        let size = bytes.max(1).next_multiple_of(ROUNDING).min(limit);
        let descriptor = wgpu::BufferDescriptor { label: Some(call), size, usage, mapped_at_creation };
        let raw = self.create(call, Some(size), || self.wgpu_device().create_buffer(&descriptor))?;
        let counters = self.counters().clone();
        count(&counters.buffers, 1);
        count(&counters.live_bytes, size);
        let live_bytes = Arc::new(LiveBytes { counters, bytes: size });
        Ok(GpuBuffer { raw, device: self.id(), _live_bytes: Some(live_bytes) })
    }
}
