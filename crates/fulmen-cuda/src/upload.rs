//! Copies to the device: a ring of pinned buffers for small writes, and the slots of bulk uploads
//! ([`staging`](crate::staging)).

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result;

use crate::device::CudaDevice;
use crate::error::CudaError;
use crate::handles::{Event, PinnedBlock, Stream};
use crate::staging::{CopyEngine, MAX_SLOTS, SLOT_BYTES};

/// Bytes of a buffer of [`SmallWrites`]. Pinning takes 0.4 ms a MiB, before the first result.
const BUFFER_BYTES: usize = 1 << 20;

/// Buffers that small writes alternate between.
const BUFFERS: usize = 3;

/// The staging buffers of small writes, in pinned memory: the caller can reuse its bytes at once. When a
/// buffer is full, the next one is used, after the copies from it have finished.
#[derive(Default)]
pub(crate) struct SmallWrites {
    buffers: Vec<StagingBuffer>,
    current: usize,
}

struct StagingBuffer {
    memory: PinnedBlock,
    used: usize,
    /// Recorded after the last copy from it.
    copied: Event,
}

impl SmallWrites {
    /// Copies at most [`BUFFER_BYTES`] to a staging buffer.
    pub(crate) fn put(
        &mut self,
        device: &CudaDevice,
        stream: &Stream,
        data: &[u8],
    ) -> Result<*const u8, CudaError> {
        let full = |buffer: &StagingBuffer| buffer.used + data.len() > buffer.memory.bytes();
        if self.buffers.get(self.current).is_some_and(full) {
            stream.record(&self.buffers[self.current].copied)?;
            self.current = (self.current + 1) % BUFFERS;
            if let Some(next) = self.buffers.get_mut(self.current) {
                next.copied.synchronize()?;
                next.used = 0;
            }
        }
        if self.current == self.buffers.len() {
            let memory = PinnedBlock::new(&device.context, BUFFER_BYTES)?;
            let copied = Event::new(&device.context, false)?;
            self.buffers.push(StagingBuffer { memory, used: 0, copied });
        }
        let buffer = &mut self.buffers[self.current];
        // SAFETY: the buffer has space from `used` on, and no copy reads from there.
        let (to, target) = unsafe {
            let to = buffer.memory.ptr().add(buffer.used);
            (to, std::slice::from_raw_parts_mut(to, data.len()))
        };
        target.copy_from_slice(data);
        buffer.used = (buffer.used + data.len()).next_multiple_of(64);
        Ok(to)
    }
}

/// Slots that no upload uses. Their copies may still be running; the owner waits for the stream before it
/// drops them.
pub(crate) type SlotPool = Mutex<Vec<Slot>>;

/// Staging memory for one piece of an upload.
pub(crate) struct Slot {
    memory: SlotMemory,
    /// Recorded after the last copy from it.
    copied: Event,
}

enum SlotMemory {
    Pinned(PinnedBlock),
    /// Where no memory can be pinned: the driver copies through a buffer of its own.
    Pageable(Box<[u8]>),
}

/// Uploads through the slots of a pool, on a stream.
pub(crate) struct StreamCopies<'a> {
    device: &'a Arc<CudaDevice>,
    stream: &'a Stream,
    pool: &'a SlotPool,
}

impl<'a> StreamCopies<'a> {
    pub(crate) fn new(device: &'a Arc<CudaDevice>, stream: &'a Stream, pool: &'a SlotPool) -> Self {
        StreamCopies { device, stream, pool }
    }
}

impl CopyEngine for StreamCopies<'_> {
    type Slot = Slot;
    type Error = CudaError;

    fn take_slot(&self) -> Result<Slot, CudaError> {
        if let Some(slot) = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(slot);
        }
        let memory = match PinnedBlock::new(&self.device.context, SLOT_BYTES) {
            Ok(block) => SlotMemory::Pinned(block),
            Err(error @ CudaError::ContextLost { .. }) => return Err(error),
            // The limit of locked memory, or no memory: slower, but it works.
            Err(_) => SlotMemory::Pageable(vec![0; SLOT_BYTES].into_boxed_slice()),
        };
        Ok(Slot { memory, copied: Event::new(&self.device.context, false)? })
    }

    fn put_slot(&self, slot: Slot) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < MAX_SLOTS {
            pool.push(slot);
            return;
        }
        drop(pool);
        // Freed only once nothing copies from it. A copy of a lost context has ended.
        let _ = slot.copied.synchronize();
    }

    fn memory<'s>(&self, slot: &'s mut Slot) -> Result<&'s mut [u8], CudaError> {
        slot.copied.synchronize()?;
        Ok(match &mut slot.memory {
            // SAFETY: the block has this many bytes, this slot owns it, and no copy reads from it any more.
            SlotMemory::Pinned(block) => unsafe {
                std::slice::from_raw_parts_mut(block.ptr(), block.bytes())
            },
            SlotMemory::Pageable(bytes) => bytes,
        })
    }

    fn start_copy(&self, slot: &mut Slot, bytes: usize, to: u64) -> Result<(), CudaError> {
        let from = match &slot.memory {
            SlotMemory::Pinned(block) => block.ptr().cast_const(),
            SlotMemory::Pageable(memory) => memory.as_ptr(),
        };
        let context = &self.device.context;
        context.bind()?;
        // SAFETY: the slot has this many bytes, which are not written again before `copied` was reached; the
        // caller has allocated the destination and waits for the stream before it frees it.
        let copied = unsafe {
            let from = std::slice::from_raw_parts(from, bytes);
            result::memcpy_htod_async(to, from, self.stream.raw())
        };
        let recorded = copied
            .map_err(|error| context.error("cuMemcpyHtoDAsync", error))
            .and_then(|()| self.stream.record(&slot.copied));
        if recorded.is_err() {
            // Without its event, nobody knows when the copy ends.
            let _ = self.stream.synchronize();
        }
        recorded
    }
}
