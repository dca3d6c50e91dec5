//! Reads in flight: encoded, submitted, mapped, copied out.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use wgpu::{CommandEncoder, MapMode, PollType, SubmissionIndex};

use super::copy::{copy_bytes, vec_of};
use crate::{
    buffer::{BufferSlice, GpuBuffer},
    device::{GpuDevice, count},
    error::GpuError,
};

/// Alignment of ranges inside a staging buffer: wgpu maps at multiples of 8.
const ALIGN: u64 = 8;

/// Buffer ranges being read from the device. [`record`](Self::record) encodes the copies after the work
/// that computes them, [`submitted`](Self::submitted) starts the mapping, [`wait`](Self::wait) returns
/// the bytes.
#[derive(Debug)]
pub struct Readback {
    gpu: GpuDevice,
    call: &'static str,
    ranges: Vec<(BufferSlice, StagingRange)>,
    staging: Vec<Staging>,
    submission: Option<SubmissionIndex>,
    mapped: Arc<MapResults>,
}

/// A staging buffer, and an offset in it.
#[derive(Clone, Copy, Debug)]
struct StagingRange {
    staging: usize,
    offset: u64,
}

#[derive(Debug)]
struct Staging {
    buffer: GpuBuffer,
    used: u64,
}

/// Results of the map callbacks.
#[derive(Debug, Default)]
struct MapResults {
    state: Mutex<MapState>,
}

#[derive(Debug, Default)]
struct MapState {
    done: usize,
    waited: bool,
    error: Option<String>,
    waker: Option<Waker>,
}

impl Readback {
    /// Plans the reading of ranges and takes staging buffers for them.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where a range is not inside its buffer, [`GpuError::OutOfMemory`],
    /// [`GpuError::DeviceLost`].
    pub fn plan(gpu: &GpuDevice, call: &'static str, slices: &[BufferSlice]) -> Result<Self, GpuError> {
        gpu.check_alive()?;
        let limit = gpu.caps().max_buffer;
        let mut sizes: Vec<u64> = Vec::new();
        let mut ranges = Vec::with_capacity(slices.len());
        for slice in slices {
            slice.check(gpu, call)?;
            // Copies are whole words; so are buffers.
            let size = slice.size.next_multiple_of(4);
            BufferSlice { size, ..slice.clone() }.check(gpu, call)?;
            let fits = sizes.last().is_some_and(|used| used.next_multiple_of(ALIGN) + size <= limit);
            if !fits && size > 0 {
                sizes.push(0);
            }
            let staging = sizes.len().saturating_sub(1);
            let mut offset = 0;
            if size > 0 {
                offset = sizes[staging].next_multiple_of(ALIGN);
                sizes[staging] = offset + size;
            }
            ranges.push((slice.clone(), StagingRange { staging, offset }));
        }
        let staging = sizes
            .into_iter()
            .map(|used| Ok(Staging { buffer: gpu.staging().take(gpu, call, used)?, used }))
            .collect::<Result<_, GpuError>>()?;
        Ok(Self { gpu: gpu.clone(), call, ranges, staging, submission: None, mapped: Arc::default() })
    }

    /// Whether there is nothing to read, and so nothing to submit.
    pub fn is_empty(&self) -> bool {
        self.staging.is_empty()
    }

    /// Records the copies.
    pub fn record(&self, encoder: &mut CommandEncoder) {
        for (slice, at) in self.ranges.iter().filter(|(slice, _)| slice.size > 0) {
            let to = self.staging[at.staging].buffer.raw();
            let size = slice.size.next_multiple_of(4);
            encoder.copy_buffer_to_buffer(slice.buffer.raw(), slice.offset, to, at.offset, Some(size));
        }
    }

    /// Starts the mapping, after the submission of what [`record`](Self::record) recorded.
    ///
    /// # Errors
    /// [`GpuError::BufferMap`], [`GpuError::DeviceLost`].
    pub fn submitted(&mut self, submission: SubmissionIndex) -> Result<(), GpuError> {
        self.submission = Some(submission);
        self.gpu.scoped(self.call, None, || {
            for staging in &self.staging {
                let mapped = self.mapped.clone();
                staging.buffer.raw().map_async(MapMode::Read, ..staging.used, move |result| {
                    mapped.arrived(result);
                });
            }
        })?;
        count(&self.gpu.counters().maps, self.staging.len() as u64);
        Ok(())
    }

    /// Waits, and gives the bytes of each range.
    ///
    /// # Errors
    /// [`GpuError::Timeout`], [`GpuError::BufferMap`], [`GpuError::DeviceLost`].
    pub fn wait(self) -> Result<Vec<Vec<u8>>, GpuError> {
        self.block()?;
        self.take()
    }

    /// Waits, and copies each range into memory of its size.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`GpuError::Argument`] where the sizes differ.
    pub fn wait_into(self, out: &mut [&mut [u8]]) -> Result<(), GpuError> {
        let sizes: Vec<_> = self.ranges.iter().map(|(slice, _)| slice.size).collect();
        if !out.iter().map(|out| out.len() as u64).eq(sizes.iter().copied()) {
            return Err(GpuError::Argument {
                call: self.call,
                what: "the lengths of the outputs".to_owned(),
                expected: format!("{sizes:?}"),
                got: format!("{:?}", out.iter().map(|out| out.len()).collect::<Vec<_>>()),
            });
        }
        self.block()?;
        self.copy_out(|index, bytes| copy_bytes(bytes, out[index]))
    }

    /// Waits, and calls `each` with the number and the bytes of each range, straight from the mapped memory.
    pub(crate) fn wait_with(self, each: impl FnMut(usize, &[u8])) -> Result<(), GpuError> {
        self.block()?;
        self.copy_out(each)
    }

    /// [`wait_with`](Self::wait_with) for any executor.
    pub(crate) async fn await_with(self, each: impl FnMut(usize, &[u8])) -> Result<(), GpuError> {
        Mapping::new(self)?.await?.copy_out(each)
    }

    /// The bytes, for any executor.
    ///
    /// # Errors
    /// [`GpuError::BufferMap`] where the thread that polls the device cannot be started.
    pub fn into_future(self) -> Result<ReadFuture, GpuError> {
        Ok(ReadFuture { mapping: Mapping::new(self)? })
    }

    /// Lets the helper thread of the device wait for the submission, so that [`poll`](Self::poll) is woken.
    pub(crate) fn watch(&self) -> Result<(), GpuError> {
        let Some(submission) = &self.submission else { return Ok(()) };
        let mapped = self.mapped.clone();
        self.gpu.waiter().watch(&self.gpu, submission.clone(), move || mapped.waited())
    }

    /// Whether the memory is mapped, or will never be. Otherwise the waker is woken when it is. Never blocks.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.mapped.lock();
        if state.done < self.staging.len() && !state.waited {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Waits until the memory is mapped.
    pub(crate) fn block(&self) -> Result<(), GpuError> {
        match (&self.submission, self.is_empty()) {
            (_, true) => Ok(()),
            (Some(submission), false) => self.gpu.wait(submission),
            (None, false) => Err(self.failed("it was never submitted".to_owned())),
        }
    }

    fn take(self) -> Result<Vec<Vec<u8>>, GpuError> {
        let mut read = vec![Vec::new(); self.ranges.len()];
        self.copy_out(|index, bytes| read[index] = vec_of(bytes))?;
        Ok(read)
    }

    /// Passes the mapped bytes to `each` and returns the staging buffers to the pool.
    pub(crate) fn copy_out(self, mut each: impl FnMut(usize, &[u8])) -> Result<(), GpuError> {
        if self.is_empty() {
            return self.gpu.check_alive();
        }
        let error = self.mapped.answer(self.staging.len());
        if let Some(message) = error {
            return Err(self.failed(message));
        }
        for (index, (slice, at)) in self.ranges.iter().enumerate().filter(|(_, (slice, _))| slice.size > 0) {
            let size = slice.size.next_multiple_of(4);
            let staging = self.staging[at.staging].buffer.raw();
            let view = staging
                .get_mapped_range(at.offset..at.offset + size)
                .map_err(|error| self.failed(error.to_string()))?;
            // No longer than the words that were mapped.
            each(index, &view[..slice.size as usize]);
        }
        let gpu = self.gpu.clone();
        for staging in self.staging {
            staging.buffer.raw().unmap();
            gpu.staging().give_back(staging.buffer);
        }
        Ok(())
    }

    /// The error of a failed mapping: the loss of the device, if that is the cause.
    fn failed(&self, message: String) -> GpuError {
        // wgpu reports the loss after all work in flight has ended.
        if let Err(wgpu::PollError::WrongSubmissionIndex(..)) = self.gpu.poll(PollType::wait_indefinitely()) {
            return GpuError::BufferMap { call: self.call, message };
        }
        match self.gpu.check_alive() {
            Err(error) => error,
            Ok(()) => GpuError::BufferMap { call: self.call, message },
        }
    }
}

/// How long a callback may take after its submission has finished.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(2);

impl MapResults {
    fn lock(&self) -> std::sync::MutexGuard<'_, MapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error, if any, once all of `count` callbacks have run. The work is done, but another thread
    /// that is submitting may have taken a callback without having called it yet.
    fn answer(&self, count: usize) -> Option<String> {
        let deadline = Instant::now() + CALLBACK_TIMEOUT;
        loop {
            let state = self.lock();
            if state.done == count {
                return state.error.clone();
            }
            drop(state);
            if Instant::now() > deadline {
                return Some("the device gave no answer".to_owned());
            }
            std::thread::yield_now();
        }
    }

    fn arrived(&self, result: Result<(), wgpu::BufferAsyncError>) {
        self.change(|state| {
            state.done += 1;
            if let Err(error) = result {
                state.error = Some(error.to_string());
            }
        });
    }

    /// The submission was waited for: a callback that has not run will not run.
    fn waited(&self) {
        self.change(|state| state.waited = true);
    }

    fn change(&self, change: impl FnOnce(&mut MapState)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Resolves to a read-back whose memory is mapped. A helper thread polls the device, so any executor works.
#[derive(Debug)]
struct Mapping {
    readback: Option<Readback>,
}

impl Mapping {
    fn new(readback: Readback) -> Result<Self, GpuError> {
        readback.watch()?;
        Ok(Self { readback: Some(readback) })
    }
}

impl Future for Mapping {
    type Output = Result<Readback, GpuError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.readback.as_ref().is_some_and(|readback| readback.poll(context).is_pending()) {
            return Poll::Pending;
        }
        Poll::Ready(self.readback.take().ok_or_else(|| GpuError::BufferMap {
            call: "read_many_async",
            message: "the future was polled after completion".to_owned(),
        }))
    }
}

/// Resolves to the bytes of the ranges.
#[derive(Debug)]
pub struct ReadFuture {
    mapping: Mapping,
}

impl Future for ReadFuture {
    type Output = Result<Vec<Vec<u8>>, GpuError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.mapping).poll(context).map(|readback| readback?.take())
    }
}
