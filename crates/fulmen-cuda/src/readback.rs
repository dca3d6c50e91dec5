//! Reads in flight: a copy to pinned memory and an event behind it.
//!
//! Copies are made by the stream into staging blocks of a pool. A block goes back to the pool with its event
//! when the ticket is dropped, also in the middle of the copy, and is used again only after its event was
//! reached.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};

use cudarc::driver::result;
use fulmen_core::{BackendError, PendingRead};

use crate::error::CudaError;
use crate::fault::FaultCell;
use crate::handles::{Context, Event, PinnedBlock, Stream};

/// The smallest staging block.
const MIN_BLOCK: usize = 4 << 10;

/// Staging blocks that are kept for later reads.
const MAX_KEPT: usize = 8;

/// A staging block, and the event behind the copy into it.
struct Staged {
    memory: PinnedBlock,
    copied: Arc<Event>,
}

/// Staging blocks of one stream. Whoever drops the stream's last work waits for it first.
#[derive(Default)]
pub(crate) struct ReadPool {
    blocks: Mutex<Vec<Staged>>,
    waiter: Waiter,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadPool {
    /// A block of at least so many bytes that no copy uses.
    fn take(&self, context: &Arc<Context>, bytes: usize) -> Result<Staged, CudaError> {
        let mut blocks = lock(&self.blocks);
        let mut best: Option<usize> = None;
        for (at, block) in blocks.iter().enumerate() {
            let better = best.is_none_or(|best| block.memory.bytes() < blocks[best].memory.bytes());
            if block.memory.bytes() >= bytes && better && block.copied.is_reached()? {
                best = Some(at);
            }
        }
        if let Some(at) = best {
            return Ok(blocks.swap_remove(at));
        }
        drop(blocks);
        let size = bytes.max(MIN_BLOCK).checked_next_power_of_two().unwrap_or(bytes);
        let memory = PinnedBlock::new(context, size)?;
        Ok(Staged { memory, copied: Arc::new(Event::new(context, false)?) })
    }

    /// Takes a block back, whose copy may be running. Blocks whose copy has finished are freed if there are
    /// many.
    fn put(&self, block: Staged) {
        let mut blocks = lock(&self.blocks);
        blocks.push(block);
        // A block of a lost context counts as finished: nothing runs there any more.
        if blocks.len() > MAX_KEPT
            && let Some(at) = blocks.iter().position(|block| block.copied.is_reached().unwrap_or(true))
        {
            blocks.swap_remove(at);
        }
    }

    /// Starts to copy from device memory, after the work of the stream.
    ///
    /// # Safety
    /// The range must be inside a live block that is not freed before the stream has been waited for.
    pub(crate) unsafe fn start(
        self: &Arc<Self>,
        context: &Arc<Context>,
        stream: &Stream,
        ptr: u64,
        bytes: usize,
    ) -> Result<DeviceRead, CudaError> {
        let block = self.take(context, bytes)?;
        context.bind()?;
        // SAFETY: the block is large enough, and nothing else uses it before its event was reached; the
        // caller answers for the range.
        let copied = unsafe {
            let to = std::slice::from_raw_parts_mut(block.memory.ptr(), bytes);
            result::memcpy_dtoh_async(to, ptr, stream.raw())
        };
        let recorded = copied
            .map_err(|error| context.error("cuMemcpyDtoHAsync", error))
            .and_then(|()| stream.record(&block.copied));
        if let Err(error) = recorded {
            // Without an event nobody knows when the copy ends: the block may be reused after the stream's
            // work.
            let _ = stream.synchronize();
            return Err(error);
        }
        Ok(DeviceRead { pool: Arc::clone(self), block: Some(block), bytes, fault: None, waker: None })
    }
}

/// A read in flight. Dropped early, it leaves the copy to the stream and the block to the pool.
pub(crate) struct DeviceRead {
    pool: Arc<ReadPool>,
    /// Given back when this is dropped.
    block: Option<Staged>,
    bytes: usize,
    /// Where kernels before the read report faults.
    fault: Option<FaultCell>,
    /// The task to wake, once somebody has asked.
    waker: Option<Arc<Mutex<Option<Waker>>>>,
}

impl DeviceRead {
    /// The same read, which fails if a kernel before it reported a fault.
    pub(crate) fn checking(mut self, fault: &FaultCell) -> DeviceRead {
        self.fault = Some(fault.clone());
        self
    }

    fn event(&self) -> Option<&Arc<Event>> {
        self.block.as_ref().map(|block| &block.copied)
    }
}

impl PendingRead for DeviceRead {
    fn poll(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), BackendError>> {
        let Some(event) = self.event().cloned() else { return Poll::Ready(Ok(())) };
        if let Some(waker) = &self.waker {
            // Before the question, so that an answer in between is not missed.
            lock(waker).replace(context.waker().clone());
        }
        match event.is_reached() {
            Ok(true) => return Poll::Ready(Ok(())),
            Ok(false) => {}
            Err(error) => return Poll::Ready(Err(error.into())),
        }
        if self.waker.is_none() {
            let waker = Arc::new(Mutex::new(Some(context.waker().clone())));
            self.waker = Some(Arc::clone(&waker));
            if let Err(error) = self.pool.waiter.watch(event, waker) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Pending
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        Ok(self.event().map_or(Ok(()), |event| event.synchronize())?)
    }

    fn copy_to(&mut self, out: &mut [u8]) -> Result<(), BackendError> {
        if let Some(block) = &self.block {
            let bytes = self.bytes.min(block.memory.bytes());
            // SAFETY: the copy has finished, as `poll` or `wait` said, and wrote this many bytes.
            let from = unsafe { std::slice::from_raw_parts(block.memory.ptr(), bytes) };
            crate::buffer::copy(from, out);
        }
        self.fault.as_ref().map_or(Ok(()), FaultCell::peek)
    }
}

impl Drop for DeviceRead {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.put(block);
        }
    }
}

/// A thread that waits for events and wakes tasks. It starts with the first read that is awaited, and ends
/// with the pool.
#[derive(Default)]
struct Waiter {
    thread: Mutex<Option<Sender<WaitRequest>>>,
}

type WaitRequest = (Arc<Event>, Arc<Mutex<Option<Waker>>>);

impl Waiter {
    fn watch(&self, event: Arc<Event>, waker: Arc<Mutex<Option<Waker>>>) -> Result<(), BackendError> {
        let failed = |message: String| BackendError::Device {
            backend: crate::BACKEND,
            call: "read",
            source: message.into(),
        };
        let mut thread = lock(&self.thread);
        let sender = match thread.take() {
            Some(sender) => sender,
            None => start_thread()
                .map_err(|error| failed(format!("the thread that waits could not be started: {error}")))?,
        };
        sender.send((event, waker)).map_err(|_| failed("the thread that waits has ended".to_owned()))?;
        *thread = Some(sender);
        Ok(())
    }
}

fn start_thread() -> std::io::Result<Sender<WaitRequest>> {
    let (sender, receiver) = channel::<WaitRequest>();
    std::thread::Builder::new().name("fulmen-cuda-wait".to_owned()).spawn(move || {
        for (event, waker) in receiver {
            // The task that is woken asks again and gets the error.
            let _ = event.synchronize();
            if let Some(waker) = lock(&waker).take() {
                waker.wake();
            }
        }
    })?;
    Ok(sender)
}
