//! Values and forks: threads, devices and locks that another thread holds are not inherited.

use std::sync::OnceLock;

use crate::failure::{Failure, Kind};

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

/// A static value of which every process has its own. In a child of `fork` the lock of its parent's value may
/// be held for ever, by a thread that the child does not have.
pub(crate) struct PerProcess<T> {
    first: OnceLock<Box<Entry<T>>>,
    new: fn() -> T,
}

/// The value of a process, and those of processes that were forked from it.
struct Entry<T> {
    process: u32,
    value: T,
    next: OnceLock<Box<Entry<T>>>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new(new: fn() -> T) -> PerProcess<T> {
        PerProcess { first: OnceLock::new(), new }
    }

    /// The value of this process. Its first use should come before there are threads.
    pub(crate) fn get(&self) -> &T {
        let process = std::process::id();
        let mut entries = &self.first;
        loop {
            let make = || Box::new(Entry { process, value: (self.new)(), next: OnceLock::new() });
            let entry = entries.get_or_init(make);
            if entry.process == process {
                return &entry.value;
            }
            entries = &entry.next;
        }
    }
}
