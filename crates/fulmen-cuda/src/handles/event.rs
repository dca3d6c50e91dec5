//! Events.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cudarc::driver::{
    result,
    sys::{self, CUevent},
};

use super::Context;
use super::stream::{Guard, StreamGuard};
use crate::error::CudaError;

/// A point in the work of a stream that can be waited for; the time between two of them can be measured.
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
    /// That of the stream that it was recorded by.
    guard: Guard,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Event, CudaError> {
        use sys::CUevent_flags::*;
        context.bind()?;
        let raw = result::event::create(if timed { CU_EVENT_DEFAULT } else { CU_EVENT_DISABLE_TIMING });
        let raw = raw.map_err(|error| context.error("cuEventCreate", error))?;
        Ok(Event { context: Arc::clone(context), raw, guard: Guard::new() })
    }

    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    pub(super) fn set_guard(&self, guard: &Weak<dyn StreamGuard>) {
        self.guard.get_or_init(|| Weak::clone(guard));
    }

    fn guard(&self) -> Option<Arc<dyn StreamGuard>> {
        self.guard.get().and_then(Weak::upgrade)
    }

    /// Waits until the stream has reached it. Returns at once if it was never recorded.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        if let Some(guard) = self.guard() {
            return guard.wait(&|| self.query());
        }
        self.context.bind()?;
        // SAFETY: the event is alive as long as `self`.
        let done = unsafe { result::event::synchronize(self.raw) };
        done.map_err(|error| self.context.error("cuEventSynchronize", error))
    }

    /// Whether the stream has reached it. Does not wait. `true` if it was never recorded.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        if let Some(guard) = self.guard() {
            guard.check()?;
        }
        self.query()
    }

    fn query(&self) -> Result<bool, CudaError> {
        self.context.bind()?;
        // SAFETY: the event is alive as long as `self`.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => match status.result() {
                Ok(()) => Ok(true),
                Err(error) => Err(self.context.error("cuEventQuery", error)),
            },
        }
    }

    /// The time from this event to a later one. Both have timing enabled and were reached.
    pub fn elapsed(&self, later: &Event) -> Result<Duration, CudaError> {
        self.context.bind()?;
        // SAFETY: both events are alive.
        let ms = unsafe { result::event::elapsed(self.raw, later.raw) };
        let ms = ms.map_err(|error| self.context.error("cuEventElapsedTime", error))?;
        Ok(Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.destroy(|| {
            // SAFETY: created in `new` and destroyed only here.
            unsafe { result::event::destroy(self.raw) }
        });
    }
}
