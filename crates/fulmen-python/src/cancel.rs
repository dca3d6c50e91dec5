//! Ending work early, from any thread.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;

use crate::failure::{Failure, Kind};

/// Asks work to end, from any thread.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    state: Mutex<CancelState>,
}

#[derive(Debug, Default)]
struct CancelState {
    requested: bool,
    /// The flag of the session that does the work now. It is shared with the next work of the session, so it
    /// is only touched while the work runs.
    flag: Option<Arc<AtomicBool>>,
}

impl Cancel {
    /// One that a token ends, too, if there is one.
    pub(crate) fn of(token: Option<&CancelToken>) -> Arc<Cancel> {
        let cancel = Arc::<Cancel>::default();
        if let Some(token) = token {
            token.attach(&cancel);
        }
        cancel
    }

    fn state(&self) -> MutexGuard<'_, CancelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the work to end.
    pub(crate) fn request(&self) {
        let mut state = self.state();
        state.requested = true;
        if let Some(flag) = &state.flag {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the work was asked to end.
    pub(crate) fn requested(&self) -> bool {
        self.state().requested
    }

    /// An error if the work was asked to end.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.requested() { Err(Failure::new(Kind::Cancelled, "cancelled")) } else { Ok(()) }
    }

    /// What a report of progress answers: whether to go on.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Passes requests on to the flag of a session, until [`release`](Cancel::release).
    pub(crate) fn attach(&self, flag: Arc<AtomicBool>) {
        let mut state = self.state();
        flag.store(state.requested, Ordering::Relaxed);
        state.flag = Some(flag);
    }

    /// Leaves the flag to the next work, reset.
    pub(crate) fn release(&self) {
        if let Some(flag) = self.state().flag.take() {
            flag.store(false, Ordering::Relaxed);
        }
    }
}

/// Ends calls from another thread: pass it to them as ``cancel``, and call :meth:`cancel`.
///
/// A text ends there, with the finish reason ``cancelled``; other calls raise
/// :class:`fulmen.CancelledError`. A call that begins afterwards ends at once.
#[pyclass(frozen, module = "fulmen")]
#[derive(Clone, Default)]
pub(crate) struct CancelToken {
    calls: Arc<Mutex<Calls>>,
}

/// The calls that a token ends.
#[derive(Default)]
struct Calls {
    requested: bool,
    running: Vec<Weak<Cancel>>,
}

impl CancelToken {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes requests on to a call as long as it runs.
    pub(crate) fn attach(&self, cancel: &Arc<Cancel>) {
        let mut calls = self.calls();
        calls.running.retain(|call| call.strong_count() > 0);
        calls.running.push(Arc::downgrade(cancel));
        if calls.requested {
            cancel.request();
        }
    }
}

#[pymethods]
impl CancelToken {
    #[new]
    fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends the calls that it was passed to, and those that it will be passed to.
    fn cancel(&self) {
        let mut calls = self.calls();
        calls.requested = true;
        for call in calls.running.drain(..) {
            if let Some(call) = call.upgrade() {
                call.request();
            }
        }
    }

    /// Whether :meth:`cancel` was called.
    #[getter]
    fn cancelled(&self) -> bool {
        self.calls().requested
    }

    fn __repr__(&self) -> &'static str {
        if self.cancelled() { "<fulmen.CancelToken, cancelled>" } else { "<fulmen.CancelToken>" }
    }
}
