//! Calls into wgpu: error scopes, submission, waiting and device loss.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use wgpu::{ErrorFilter, PollError, PollType, SubmissionIndex};

use super::{GpuDevice, count, state};
use crate::{encode::DispatchList, error::GpuError, signal::signal};

impl GpuDevice {
    /// Checks that the device can still be used. Very cheap.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`] once it is lost; or, once, an error of a wgpu call that was made
    /// outside this crate.
    pub fn check_alive(&self) -> Result<(), GpuError> {
        self.inner.state.check()
    }

    /// Waits until a submission is done, but not for later ones.
    ///
    /// # Errors
    /// [`GpuError::Timeout`] after the time in
    /// [`DeviceOptions::timeout`](super::DeviceOptions::timeout), [`GpuError::DeviceLost`].
    pub fn wait(&self, submission: &SubmissionIndex) -> Result<(), GpuError> {
        let timeout = self.inner.timeout;
        match self.poll(PollType::Wait { submission_index: Some(submission.clone()), timeout }) {
            Err(PollError::Timeout) => {
                self.check_alive()?;
                Err(GpuError::Timeout { call: "wait", after: timeout.unwrap_or_default() })
            }
            Err(PollError::WrongSubmissionIndex(..)) => Err(self.refused()),
            Ok(_) => {
                self.inner.last_check.note();
                self.check_alive()
            }
        }
    }

    /// A future that is ready when a submission is done, for any executor.
    ///
    /// # Errors
    /// [`GpuError::BufferMap`] where the thread that waits cannot be started, [`GpuError::DeviceLost`].
    pub(crate) async fn finished(&self, submission: &SubmissionIndex) -> Result<(), GpuError> {
        let (setter, done) = signal();
        self.waiter().watch(self, submission.clone(), move || setter.set())?;
        done.await;
        self.check_alive()
    }

    /// Yields until a submission does not block. Mesa's software driver blocks inside a submission until the
    /// one before it is done; drivers of hardware do not.
    pub(crate) async fn ready_to_submit(&self) -> Result<(), GpuError> {
        if self.info().device_type != wgpu::DeviceType::Cpu {
            return Ok(());
        }
        let last = || self.inner.last_submission.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Another task may have submitted something meanwhile.
        let mut waited_for = 0;
        while let Some((number, index)) = last()
            && number != waited_for
        {
            self.finished(&index).await?;
            waited_for = number;
        }
        Ok(())
    }

    /// Submits command buffers. A lost device is detected here if it was not checked within the last
    /// millisecond, and otherwise by the next call that waits or reads.
    ///
    /// # Errors
    /// [`GpuError::Validation`], [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn submit(
        &self,
        call: &'static str,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
    ) -> Result<SubmissionIndex, GpuError> {
        self.check_alive()?;
        let index = self.scoped(call, None, || self.submitting(|| self.inner.queue.submit(commands)))?;
        self.submitted(index)
    }

    /// Records commands and submits them, inside one set of error scopes.
    pub(crate) fn record(
        &self,
        call: &'static str,
        record: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<SubmissionIndex, GpuError> {
        self.check_alive()?;
        let index = self.scoped(call, None, || {
            let mut encoder = self.inner.device.create_command_encoder(&Default::default());
            record(&mut encoder);
            self.submitting(|| self.inner.queue.submit([encoder.finish()]))
        })?;
        self.submitted(index)
    }

    /// Runs a dispatch list between other commands, all in one submission and inside one set of error
    /// scopes. A recorded list is replayed; any other is encoded.
    pub(crate) fn run(
        &self,
        call: &'static str,
        list: &DispatchList,
        before: Option<&dyn Fn(&mut wgpu::CommandEncoder)>,
        after: Option<&dyn Fn(&mut wgpu::CommandEncoder)>,
    ) -> Result<SubmissionIndex, GpuError> {
        self.check_alive()?;
        let recording = list.recording();
        let (device, queue) = (&self.inner.device, &self.inner.queue);
        let encode = |record: &dyn Fn(&mut wgpu::CommandEncoder)| {
            let mut encoder = device.create_command_encoder(&Default::default());
            record(&mut encoder);
            encoder.finish()
        };
        let index = self.scoped(call, None, || match recording {
            None => {
                let commands = encode(&|encoder| {
                    before.iter().for_each(|before| before(encoder));
                    list.encode(encoder);
                    after.iter().for_each(|after| after(encoder));
                });
                self.submitting(|| queue.submit([commands]))
            }
            Some(recording) => {
                let first = encode(&|encoder| {
                    before.iter().for_each(|before| before(encoder));
                    recording.announce(encoder);
                });
                let replay = encode(&|encoder| recording.execute(encoder));
                let commands = [first, replay].into_iter().chain(after.map(encode));
                let index = self.submitting(|| queue.submit(commands));
                recording.keep_until_done(queue);
                index
            }
        })?;
        list.has_run(recording.is_some());
        self.submitted(index)
    }

    fn submitted(&self, index: SubmissionIndex) -> Result<SubmissionIndex, GpuError> {
        count(&self.inner.stats.submissions, 1);
        {
            let mut last = self.inner.last_submission.lock().unwrap_or_else(PoisonError::into_inner);
            let number = last.as_ref().map_or(0, |(number, _)| *number) + 1;
            *last = Some((number, index.clone()));
        }
        if self.inner.last_check.recent() {
            return self.check_alive().map(|()| index);
        }
        // A lost device drops the submission without an error, but never counts it: a wait with timeout
        // 0 detects that.
        let at_once = PollType::Wait { submission_index: Some(index.clone()), timeout: Some(Duration::ZERO) };
        match self.try_poll(at_once) {
            Some(Err(PollError::WrongSubmissionIndex(..))) => Err(self.refused()),
            Some(Ok(_) | Err(PollError::Timeout)) => {
                self.inner.last_check.note();
                self.check_alive().map(|()| index)
            }
            None => self.check_alive().map(|()| index),
        }
    }

    /// Runs wgpu calls and returns the first error they raised. `needed` is for the message when memory
    /// runs out.
    pub(crate) fn scoped<T>(
        &self,
        call: &'static str,
        needed: Option<u64>,
        work: impl FnOnce() -> T,
    ) -> Result<T, GpuError> {
        let device = &self.inner.device;
        let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
        let internal = device.push_error_scope(ErrorFilter::Internal);
        let validation = device.push_error_scope(ErrorFilter::Validation);
        let result = work();
        let errors = [ready(validation.pop()), ready(internal.pop()), ready(memory.pop())];
        // Running out of memory makes later calls invalid, so it takes precedence.
        match errors.into_iter().rev().flatten().next() {
            Some(error) => Err(self.loss().unwrap_or_else(|| self.to_gpu_error(call, needed, error))),
            None => Ok(result),
        }
    }

    /// Converts wgpu's error, and adds the free memory to an out-of-memory error.
    fn to_gpu_error(&self, call: &'static str, needed: Option<u64>, error: wgpu::Error) -> GpuError {
        match state::to_gpu_error(call, needed, error) {
            GpuError::OutOfMemory { call, needed, available: None } => {
                let available = self.memory().map(|memory| memory.available);
                GpuError::OutOfMemory { call, needed, available }
            }
            error => error,
        }
    }

    /// The loss of the device, if it is lost: then that is the cause, whatever wgpu reported. Makes an
    /// empty submission, which a lost device does not count.
    fn loss(&self) -> Option<GpuError> {
        let submission_index = Some(self.submitting(|| self.inner.queue.submit([])));
        let at_once = PollType::Wait { submission_index, timeout: Some(Duration::ZERO) };
        match self.try_poll(at_once) {
            Some(Err(PollError::WrongSubmissionIndex(..))) => Some(self.refused()),
            _ => self.inner.state.lost(),
        }
    }

    /// [`scoped`](Self::scoped) for calls that create objects. A lost device creates invalid objects
    /// without an error, so it is checked first.
    pub(crate) fn create<T>(
        &self,
        call: &'static str,
        needed: Option<u64>,
        work: impl FnOnce() -> T,
    ) -> Result<T, GpuError> {
        if let Some(Err(PollError::WrongSubmissionIndex(..))) = self.try_poll(PollType::Poll) {
            return Err(self.refused());
        }
        self.check_alive()?;
        self.scoped(call, needed, work)
    }

    /// Polls, one thread at a time: of two concurrent polls, wgpu 30 asserts that neither has retired
    /// what the other still waits for. Submissions of one device finish in order, so a thread that
    /// waits for the lock loses little.
    pub(crate) fn poll(&self, poll: PollType) -> Result<wgpu::PollStatus, PollError> {
        let _turn = self.polling().lock().unwrap_or_else(PoisonError::into_inner);
        self.poll_now(poll)
    }

    /// Submits while no thread polls by [`try_poll`](GpuDevice::try_poll).
    fn submitting<T>(&self, submit: impl FnOnce() -> T) -> T {
        let _shared = self.inner.submitting.read().unwrap_or_else(PoisonError::into_inner);
        submit()
    }

    /// Polls unless another thread is polling or submitting. A submission retires others as a poll does, and
    /// wgpu 30 panics if that happens between the two looks of a poll whose wait has timed out at once.
    pub(crate) fn try_poll(&self, poll: PollType) -> Option<Result<wgpu::PollStatus, PollError>> {
        let _turn = match self.polling().try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let _alone = match self.inner.submitting.try_write() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.poll_now(poll))
    }

    /// wgpu panics if the driver reports the loss of the device in this call; the panic is caught here.
    fn poll_now(&self, poll: PollType) -> Result<wgpu::PollStatus, PollError> {
        catch_unwind(AssertUnwindSafe(|| self.inner.device.poll(poll))).unwrap_or_else(|_| {
            self.inner.state.lose_because("the driver failed during a wait".to_owned());
            Ok(wgpu::PollStatus::QueueEmpty)
        })
    }

    /// The device has dropped a submission: it is lost, even if the callback has not run yet.
    fn refused(&self) -> GpuError {
        self.inner.state.lose_because("it was destroyed".to_owned());
        self.check_alive().expect_err("the device was just marked as lost")
    }
}

/// When the device was last known to be alive. A check costs a few microseconds, so a replay that
/// submits and waits in turn checks once.
#[derive(Debug)]
pub(super) struct LastCheck {
    opened: Instant,
    /// Microseconds after `opened`.
    last: AtomicU64,
}

impl Default for LastCheck {
    fn default() -> Self {
        Self { opened: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl LastCheck {
    fn now(&self) -> u64 {
        // Fits for half a million years.
        self.opened.elapsed().as_micros() as u64
    }

    fn note(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    fn recent(&self) -> bool {
        self.now().saturating_sub(self.last.load(Ordering::Relaxed)) < 1000
    }
}

/// The error of a scope. On native backends it is ready when the scope closes.
pub(crate) fn ready(scope: impl Future<Output = Option<wgpu::Error>>) -> Option<wgpu::Error> {
    match pin!(scope).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(error) => error,
        Poll::Pending => None,
    }
}
