//! Work that takes long runs in threads of its own, which never touch Python: the calling thread waits
//! without the GIL, looks for signals meanwhile, and calls whatever callbacks there are.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::failure::{Failure, Kind};
use crate::logs;

/// How often a waiting thread looks for signals.
const POLL: Duration = Duration::from_millis(50);

/// How long the end of the interpreter waits for work that was cancelled.
const PATIENCE: Duration = Duration::from_secs(10);

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

/// The work that runs now, in all threads, by number.
static LIVE: Mutex<BTreeMap<u64, Arc<Cancel>>> = Mutex::new(BTreeMap::new());
static ENDED: Condvar = Condvar::new();

fn live() -> MutexGuard<'static, BTreeMap<u64, Arc<Cancel>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread for work that can be cancelled.
pub(crate) fn spawn(cancel: &Arc<Cancel>, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    live().insert(number, Arc::clone(cancel));
    let run = move || {
        work();
        live().remove(&number);
        ENDED.notify_all();
    };
    let thread = std::thread::Builder::new().name("fulmen-python".to_owned()).spawn(run);
    thread.map(drop).map_err(|error| {
        live().remove(&number);
        Failure::new(Kind::Engine, format!("a thread could not be started: {error}"))
    })
}

/// Cancels all work and waits for it. Called when the interpreter ends, before static destructors of drivers
/// run.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    py.detach(|| {
        let deadline = Instant::now() + PATIENCE;
        let mut work = live();
        work.values().for_each(|cancel| cancel.request());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if work.is_empty() || left.is_zero() {
                return;
            }
            work = match ENDED.wait_timeout(work, left) {
                Ok((work, _)) => work,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    });
}

/// Forgets the work of the parent: its threads are not in a child. Called after `fork` in the child.
#[pyfunction]
pub(crate) fn forget_work() {
    live().clear();
}

/// What work reports to the thread that waits for it.
pub(crate) enum Report<T> {
    /// So much of so much is done.
    Progress(u64, u64),
    /// Something that a log should have.
    Note(String),
    /// It has ended.
    Done(Result<T, Failure>),
}

/// Tells the waiting thread how far the work is.
pub(crate) struct Reporter<T>(Sender<Report<T>>);

impl<T> Reporter<T> {
    /// Reports progress.
    pub(crate) fn progress(&self, done: u64, total: u64) {
        // Where nobody waits any more, nobody wants to know.
        let _ = self.0.send(Report::Progress(done, total));
    }

    /// Writes a warning to the log `fulmen` of Python.
    pub(crate) fn note(&self, text: String) {
        let _ = self.0.send(Report::Note(text));
    }
}

/// What happens to work when waiting for it is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// It ends soon after it was cancelled: wait for it.
    Join,
    /// It cannot be cancelled: leave it to itself.
    Leave,
}

/// Runs work in another thread and waits for it without the GIL. Signals and exceptions of `progress` cancel
/// it.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    cancel: &Arc<Cancel>,
    interrupted: Interrupted,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Reporter<T>) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    spawn(cancel, move || {
        let reporter = Reporter(sender);
        let done = guarded(|| work(&reporter));
        let _ = reporter.0.send(Report::Done(done));
    })?;
    let outcome = receive(py, &mut receiver, progress);
    if outcome.is_err() {
        cancel.request();
        if interrupted == Interrupted::Join {
            let receiver = &mut receiver;
            py.detach(move || while !matches!(receiver.recv(), Ok(Report::Done(_)) | Err(_)) {});
        }
    }
    logs::pass_on(py)?;
    Ok(outcome??)
}

fn receive<T: Send>(
    py: Python<'_>,
    receiver: &mut Receiver<Report<T>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Result<T, Failure>> {
    loop {
        // A closure that moves the reference: only the receiver's owner may use it.
        let receiver = &mut *receiver;
        match py.detach(move || receiver.recv_timeout(POLL)) {
            Ok(Report::Done(done)) => return Ok(done),
            Ok(Report::Progress(done, total)) => {
                if let Some(progress) = progress {
                    progress.call1((done, total))?;
                }
            }
            Ok(Report::Note(text)) => {
                let log = py.import("logging")?.call_method1("getLogger", ("fulmen",))?;
                log.call_method1("warning", ("%s", text))?;
            }
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals()?;
                logs::pass_on(py)?;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(Failure::new(Kind::Internal, "a thread ended without a result")));
            }
        }
    }
}

/// Runs work and turns a panic, which would be a defect, into an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // What a panic may leave half-done is behind locks that recover, as everywhere in the engine.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Failure::panicked(panic.as_ref())))
}

/// Runs short work on this thread without the GIL.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let done = py.detach(|| guarded(work));
    logs::pass_on(py)?;
    Ok(done?)
}

/// A value of the process that made it. After `fork` its threads and its device do not exist in the child:
/// there it gives an error, and it is never dropped.
pub(crate) struct OfProcess<T> {
    process: u32,
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> OfProcess<T> {
        OfProcess { process: std::process::id(), value: Some(value) }
    }

    /// The value, unless this is a child of the process that made it.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        match &self.value {
            Some(value) if self.process == std::process::id() => Ok(value),
            _ => Err(after_fork()),
        }
    }

    /// The value, unless this is a child of the process that made it.
    pub(crate) fn get_mut(&mut self) -> Result<&mut T, Failure> {
        match &mut self.value {
            Some(value) if self.process == std::process::id() => Ok(value),
            _ => Err(after_fork()),
        }
    }
}

fn after_fork() -> Failure {
    Failure::new(
        Kind::Fork,
        "this object was made before a fork, and its threads and its device are not in this process; \
         make it after the fork, or start processes with the method \"spawn\"",
    )
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
