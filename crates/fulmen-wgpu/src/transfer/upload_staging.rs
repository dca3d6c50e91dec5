//! Persistent mapped upload buffers.
//!
//! `Queue::write_buffer` creates a buffer per call. Code that uploads small inputs repeatedly uses
//! these instead: a buffer is mapped, written, unmapped, copied from by the submission, and mapped
//! again when that is done.

use std::{
    mem::MaybeUninit,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

use wgpu::{BufferUsages, MapMode, PollType};

use super::copy::copy;
use crate::{buffer::GpuBuffer, device::GpuDevice, error::GpuError};

/// The most buffers in flight, also for a caller that never waits.
const MAX_BUFFERS: usize = 4;

/// Upload buffers of one owner.
#[derive(Debug, Default)]
pub(crate) struct UploadStaging {
    entries: Mutex<Vec<Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    buffer: GpuBuffer,
    state: Arc<AtomicU8>,
}

/// Mapped and free.
const READY: u8 = 0;
/// In use by a call or by the device.
const BUSY: u8 = 1;
/// Mapping failed; the buffer is unusable.
const LOST: u8 = 2;

/// A filled upload buffer. It is dropped after the submission that copies from it.
#[derive(Debug)]
pub(crate) struct Upload {
    gpu: GpuDevice,
    entry: Entry,
    used: u64,
}

impl UploadStaging {
    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().iter().map(|entry| entry.buffer.size()).sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes chunks, each at its offset, into a buffer of at least `bytes` bytes. Returns the unmapped
    /// buffer.
    pub(crate) fn write<'a>(
        &self,
        gpu: &GpuDevice,
        call: &'static str,
        bytes: u64,
        chunks: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<Upload, GpuError> {
        let entry = self.take(gpu, call, bytes)?;
        let failed = |error: wgpu::MapRangeError| GpuError::BufferMap { call, message: error.to_string() };
        let range = ..bytes.next_multiple_of(8).min(entry.buffer.size());
        {
            let mut view = entry.buffer.raw().get_mapped_range_mut(range).map_err(failed)?;
            for (offset, chunk) in chunks {
                // Offsets and sizes are within `bytes`, which is in memory.
                let start = offset as usize;
                write_to(&mut view, start, chunk);
            }
        }
        entry.buffer.raw().unmap();
        Ok(Upload { gpu: gpu.clone(), entry, used: bytes })
    }

    /// Yields until [`write`](Self::write) of so many bytes would not wait.
    pub(crate) async fn ready(
        &self,
        gpu: &GpuDevice,
        call: &'static str,
        bytes: u64,
    ) -> Result<(), GpuError> {
        let waits = || {
            let entries = self.lock();
            let fits = |entry: &&Entry| entry.buffer.size() >= bytes;
            let free = |entry: &Entry| entry.state.load(Ordering::Acquire) == READY;
            let mut fitting = entries.iter().filter(fits).peekable();
            entries.len() >= MAX_BUFFERS && fitting.peek().is_some() && !fitting.any(free)
        };
        if waits() {
            // Done after all that was submitted before, and with it the copies from these buffers.
            gpu.ready_to_submit().await?;
            let last = gpu.submit(call, [])?;
            gpu.finished(&last).await?;
        }
        Ok(())
    }

    /// A mapped buffer that is large enough: a free one, or a new one that replaces those that are too small.
    fn take(&self, gpu: &GpuDevice, call: &'static str, bytes: u64) -> Result<Entry, GpuError> {
        let free = |entries: &mut Vec<Entry>| {
            entries.retain(|entry| entry.state.load(Ordering::Acquire) != LOST);
            let fits =
                |entry: &&Entry| entry.buffer.size() >= bytes && entry.state.load(Ordering::Acquire) == READY;
            let found = entries.iter().filter(fits).min_by_key(|entry| entry.buffer.size());
            found.inspect(|entry| entry.state.store(BUSY, Ordering::Release)).cloned()
        };
        if let Some(entry) = free(&mut self.lock()) {
            return Ok(entry);
        }
        if self.lock().iter().any(|entry| entry.buffer.size() >= bytes) {
            // A buffer may be done without having been polled; with enough buffers in flight, wait for one.
            let wait = self.lock().len() >= MAX_BUFFERS;
            match wait {
                true => _ = gpu.poll(PollType::wait_indefinitely()),
                // Another thread that polls gives the buffer back, too.
                false => _ = gpu.try_poll(PollType::Poll),
            }
            gpu.check_alive()?;
            if let Some(entry) = free(&mut self.lock()) {
                return Ok(entry);
            }
        }
        let size = bytes.max(4096).checked_next_power_of_two().unwrap_or(bytes).min(gpu.caps().max_buffer);
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        let buffer = gpu.create_mapped_buffer(call, size.max(bytes), usage)?;
        let entry = Entry { buffer, state: Arc::new(AtomicU8::new(BUSY)) };
        let mut entries = self.lock();
        entries.retain(|old| old.buffer.size() >= bytes || old.state.load(Ordering::Acquire) == BUSY);
        entries.push(entry.clone());
        Ok(entry)
    }
}

/// Copies into mapped memory, which is write-only.
fn write_to(view: &mut wgpu::BufferViewMut, start: usize, chunk: &[u8]) {
    let mut to = view.slice(start..start + chunk.len());
    let (first, len) = (to.as_raw_element_ptr(), to.len());
    // SAFETY: `to` exclusively refers to this many bytes while it lives, and `copy` only writes to them.
    let room = unsafe { std::slice::from_raw_parts_mut(first.as_ptr().cast::<MaybeUninit<u8>>(), len) };
    copy(chunk, room);
}

impl Upload {
    /// The buffer to copy from.
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        self.entry.buffer.raw()
    }

    /// Bytes that were written.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }
}

impl Drop for Upload {
    /// Requests to map the buffer again, once the device has copied from it.
    fn drop(&mut self) {
        let state = self.entry.state.clone();
        let map = || {
            self.entry.buffer.raw().map_async(MapMode::Write, .., move |result| {
                state.store(if result.is_ok() { READY } else { LOST }, Ordering::Release);
            });
        };
        // A buffer that cannot be mapped is not used again; a lost device is reported by the next call.
        if self.gpu.scoped("upload", None, map).is_err() {
            self.entry.state.store(LOST, Ordering::Release);
        }
    }
}
