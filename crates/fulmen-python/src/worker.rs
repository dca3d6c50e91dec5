//! Work that takes long runs in threads of its own, which never touch Python: the calling thread waits
//! without the GIL, looks for signals meanwhile, and calls whatever callbacks there are.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::cancel::Cancel;
use crate::failure::{Failure, Kind};
use crate::logs;
use crate::process::PerProcess;

/// How often a waiting thread looks for signals.
const POLL: Duration = Duration::from_millis(50);

/// How long the end of the interpreter waits for work that was cancelled.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a call that is interrupted waits for work that may not end soon.
const GRACE: Duration = Duration::from_secs(1);

/// The work that runs now, in all threads, by number.
#[derive(Default)]
struct Live {
    work: Mutex<BTreeMap<u64, Arc<Cancel>>>,
    ended: Condvar,
}

static LIVE: PerProcess<Live> = PerProcess::new(Live::default);

fn live() -> MutexGuard<'static, BTreeMap<u64, Arc<Cancel>>> {
    LIVE.get().work.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called once, when the module is imported.
pub(crate) fn start() {
    drop(live());
}

/// Starts a thread for work that can be cancelled, and returns its number.
pub(crate) fn spawn(cancel: &Arc<Cancel>, work: impl FnOnce() + Send + 'static) -> Result<u64, Failure> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    live().insert(number, Arc::clone(cancel));
    let run = move || {
        work();
        live().remove(&number);
        LIVE.get().ended.notify_all();
    };
    let thread = std::thread::Builder::new().name("fulmen-python".to_owned()).spawn(run);
    thread.map(|_| number).map_err(|error| {
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
            work = match LIVE.get().ended.wait_timeout(work, left) {
                Ok((work, _)) => work,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    });
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
    /// It may be waiting for a server: leave it to itself after a moment. It uses no device and keeps what
    /// is on the disk whole, so that the end of the interpreter need not wait for it, either.
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
    let number = spawn(cancel, move || {
        let reporter = Reporter(sender);
        let done = guarded(|| work(&reporter));
        let _ = reporter.0.send(Report::Done(done));
    })?;
    let outcome = receive(py, &mut receiver, progress);
    if outcome.is_err() {
        cancel.request();
        let limit = match interrupted {
            Interrupted::Join => None,
            Interrupted::Leave => Some(GRACE),
        };
        let receiver = &mut receiver;
        if !py.detach(move || ends(receiver, limit)) {
            live().remove(&number);
        }
    }
    logs::pass_on(py)?;
    Ok(outcome??)
}

/// Waits for the end of work; false if it has not come within the limit.
fn ends<T>(receiver: &mut Receiver<Report<T>>, limit: Option<Duration>) -> bool {
    let began = Instant::now();
    loop {
        let report = match limit {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(limit) => receiver.recv_timeout(limit.saturating_sub(began.elapsed())),
        };
        match report {
            Ok(Report::Done(_)) | Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
            Ok(_) => {}
        }
    }
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

/// Calls `work` with a value. The GIL is kept where its lock is free, and released while another thread has
/// it: that thread may be waiting for a device, and no other one must wait for it.
pub(crate) fn locked<V: Send, T: Send>(
    py: Python<'_>,
    value: &Mutex<V>,
    work: impl FnOnce(&mut V) -> Result<T, Failure> + Send,
) -> PyResult<T> {
    match value.try_lock() {
        Ok(mut value) => Ok(work(&mut value)?),
        Err(_) => detached(py, || work(&mut value.lock().unwrap_or_else(PoisonError::into_inner))),
    }
}
