//! Records of Rust libraries, such as wgpu, for Python's `logging`.
//!
//! A record may be written by any thread, also by one that must not wait for the GIL. So records are queued,
//! and passed on by the next thread that has the GIL anyway: while it waits for work, and after each call.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

use crate::process::PerProcess;

/// Records that wait at most; older ones are dropped.
const LIMIT: usize = 1024;

/// Level, module and text of a record.
type Entry = (Level, String, String);

#[derive(Default)]
struct Queue {
    records: Mutex<VecDeque<Entry>>,
    /// Whether there is a record: reading it costs little.
    filled: AtomicBool,
}

static QUEUE: PerProcess<Queue> = PerProcess::new(Queue::default);

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let queue = QUEUE.get();
        let mut records = queue.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == LIMIT {
            records.pop_front();
        }
        records.push_back((record.level(), record.target().to_owned(), record.args().to_string()));
        queue.filled.store(true, Ordering::Release);
    }

    fn flush(&self) {}
}

/// Takes the records of Rust libraries. Until a level is set, there are warnings and errors.
pub(crate) fn start() {
    QUEUE.get();
    // Only a second module in the same process could have set one.
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

/// The numbers of Python's levels.
fn number(level: Level) -> u32 {
    match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug => 10,
        Level::Trace => 5,
    }
}

fn logger<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("logging")?.call_method1("getLogger", (name,))
}

/// Asks Python which records it wants: the level of the log `fulmen`.
pub(crate) fn follow(py: Python<'_>) -> PyResult<()> {
    let wanted: u32 = logger(py, "fulmen")?.call_method0("getEffectiveLevel")?.extract()?;
    let levels = [Level::Trace, Level::Debug, Level::Info, Level::Warn, Level::Error];
    let lowest = levels.into_iter().find(|level| number(*level) >= wanted);
    log::set_max_level(lowest.map_or(LevelFilter::Off, |level| level.to_level_filter()));
    Ok(())
}

/// Passes records on to the logs `fulmen.LIBRARY.MODULE`.
pub(crate) fn pass_on(py: Python<'_>) -> PyResult<()> {
    let queue = QUEUE.get();
    if !queue.filled.load(Ordering::Acquire) {
        return Ok(());
    }
    let records = {
        let mut records = queue.records.lock().unwrap_or_else(PoisonError::into_inner);
        queue.filled.store(false, Ordering::Release);
        std::mem::take(&mut *records)
    };
    for (level, target, message) in records {
        let log = logger(py, &format!("fulmen.{}", target.replace("::", ".")))?;
        log.call_method1("log", (number(level), "%s", message))?;
    }
    Ok(())
}

/// Writes a record, as a library does.
#[pyfunction]
pub(crate) fn log_record(py: Python<'_>, level: &str, target: &str, message: &str) -> PyResult<()> {
    let level: Level = level.parse().unwrap_or(Level::Warn);
    py.detach(|| log::log!(target: target, level, "{message}"));
    pass_on(py)
}
