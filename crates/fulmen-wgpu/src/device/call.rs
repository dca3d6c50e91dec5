//! How calls reach wgpu, and how what went wrong with them comes back.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{PoisonError, TryLockError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use wgpu::{ErrorFilter, PollError, PollType, SubmissionIndex};

use super::{GpuDevice, count, state};
use crate::error::GpuError;

impl GpuDevice {
    /// Whether the device can still be used. Costs next to nothing.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`] once it is lost; or, once, an error of a wgpu call that was made outside this crate.
    pub fn check_alive(&self) -> Result<(), GpuError> {
        self.inner.state.check()
    }

    /// Waits until a submission is done, and no longer.
    ///
    /// # Errors
    /// [`GpuError::Timeout`] after the time in [`DeviceOptions::timeout`](super::DeviceOptions::timeout), [`GpuError::DeviceLost`].
    pub fn wait(&self, submission: &SubmissionIndex) -> Result<(), GpuError> {
        let timeout = self.inner.timeout;
        match self.poll(PollType::Wait { submission_index: Some(submission.clone()), timeout }) {
            Err(PollError::Timeout) => {
                self.check_alive()?;
                Err(GpuError::Timeout { call: "wait", after: timeout.unwrap_or_default() })
            }
            Err(PollError::WrongSubmissionIndex(..)) => Err(self.refused()),
            Ok(_) => self.check_alive(),
        }
    }

    /// Submits command buffers, and notices if the device drops them.
    ///
    /// # Errors
    /// [`GpuError::Validation`], [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn submit(
        &self,
        call: &'static str,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
    ) -> Result<SubmissionIndex, GpuError> {
        self.check_alive()?;
        let index = self.scoped(call, None, || self.inner.queue.submit(commands))?;
        count(&self.inner.stats.submissions, 1);
        // A lost device drops the submission without an error, but never counts it: waiting for no time at all tells.
        let at_once = PollType::Wait { submission_index: Some(index.clone()), timeout: Some(Duration::ZERO) };
        match self.try_poll(at_once) {
            Some(Err(PollError::WrongSubmissionIndex(..))) => Err(self.refused()),
            Some(Ok(_) | Err(PollError::Timeout)) | None => self.check_alive().map(|()| index),
        }
    }

    /// Runs wgpu calls and gives the first error they raised. `needed` is for the message when memory runs out.
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
        // Memory that ran out makes later calls invalid, so it is named first.
        match errors.into_iter().rev().flatten().next() {
            Some(error) => Err(state::typed(call, needed, error)),
            None => Ok(result),
        }
    }

    /// [`scoped`](Self::scoped) for calls that make objects. A lost device makes useless ones without an error, so the
    /// device is asked before.
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

    /// Polls, one thread at a time: of two that poll at once, wgpu 30 asserts that neither has retired what the other
    /// still waits for. Submissions of one device end in order, so a thread that waits its turn loses little.
    pub(crate) fn poll(&self, poll: PollType) -> Result<wgpu::PollStatus, PollError> {
        let _turn = self.polling().lock().unwrap_or_else(PoisonError::into_inner);
        self.poll_now(poll)
    }

    /// Polls unless another thread does: it will notice what there is to notice.
    fn try_poll(&self, poll: PollType) -> Option<Result<wgpu::PollStatus, PollError>> {
        let _turn = match self.polling().try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.poll_now(poll))
    }

    /// When the driver reports the loss of the device just here, wgpu panics; that panic ends here.
    fn poll_now(&self, poll: PollType) -> Result<wgpu::PollStatus, PollError> {
        catch_unwind(AssertUnwindSafe(|| self.inner.device.poll(poll))).unwrap_or_else(|_| {
            self.inner.state.lose_because("the driver failed while it was waited for".to_owned());
            Ok(wgpu::PollStatus::QueueEmpty)
        })
    }

    /// The device has dropped a submission: it is lost, whether or not the callback has said so.
    fn refused(&self) -> GpuError {
        self.inner.state.lose_because("it was destroyed".to_owned());
        self.check_alive().expect_err("the device was just marked as lost")
    }
}

/// The error of a scope. Native backends know it when the scope closes.
pub(crate) fn ready(scope: impl Future<Output = Option<wgpu::Error>>) -> Option<wgpu::Error> {
    match pin!(scope).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(error) => error,
        Poll::Pending => None,
    }
}
