//! Faults on purpose: the n-th allocation, read, write or launch of a run fails or stalls, once.
//!
//! - [`Injector`]: counts the calls of each kind and says which one fails or stalls.
//! - [`Failing`]: a backend that asks it before each call; everything else is done by the backend it wraps.
//! - [`FailingIo`]: a reader or writer that asks it before each call.
//! - [`FailingAllocator`]: a global allocator whose n-th large allocation on this thread fails.
//!
//! A test runs its work once without faults to count the calls, then once for each call that can fail. Each
//! time the work must return a typed error, leave nothing behind, and give the same bits when it is done
//! again.

mod alloc;
mod backend;
mod io;

pub use alloc::FailingAllocator;
pub use backend::Failing;
pub use io::FailingIo;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A kind of call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// An allocation or import of device memory.
    Alloc,
    /// A read from a device or a file.
    Read,
    /// A write to a device or a file.
    Write,
    /// A launch, capture, replay or wait.
    Launch,
}

impl Site {
    /// Every kind.
    pub const ALL: [Site; 4] = [Site::Alloc, Site::Read, Site::Write, Site::Launch];
}

/// The error of a call that was made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("injected fault: {site:?} number {number}")]
pub struct Injected {
    /// The kind of call.
    pub site: Site,
    /// Its number among those of its kind, from 1.
    pub number: u64,
}

#[derive(Debug, Default)]
struct Plan {
    /// Calls of each kind since the plan was made.
    calls: [u64; Site::ALL.len()],
    fails: Option<Injected>,
    /// A call that takes so much longer.
    stalls: Option<(Injected, Duration)>,
    fired: bool,
}

/// Decides which call fails. Clones share the plan.
#[derive(Clone, Default)]
pub struct Injector(Arc<Mutex<Plan>>);

impl fmt::Debug for Injector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan().fmt(f)
    }
}

impl Injector {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts from 0 and lets nothing fail.
    pub fn count(&self) {
        *self.plan() = Plan::default();
    }

    /// Counts from 0 and lets call `number` of this kind fail, from 1.
    pub fn fail(&self, site: Site, number: u64) {
        *self.plan() = Plan { fails: Some(Injected { site, number }), ..Plan::default() };
    }

    /// Counts from 0 and lets call `number` of this kind wait that long before it is done, from 1.
    pub fn stall(&self, site: Site, number: u64, time: Duration) {
        *self.plan() = Plan { stalls: Some((Injected { site, number }, time)), ..Plan::default() };
    }

    /// How many calls of this kind there were.
    pub fn calls(&self, site: Site) -> u64 {
        self.plan().calls[site as usize]
    }

    /// Whether the call that was to fail or to stall was made.
    pub fn fired(&self) -> bool {
        self.plan().fired
    }

    /// To be asked before each call.
    pub fn ask(&self, site: Site) -> Result<(), Injected> {
        let mut plan = self.plan();
        let calls = &mut plan.calls[site as usize];
        *calls += 1;
        let this = Injected { site, number: *calls };
        if let Some((_, time)) = plan.stalls.filter(|(stalls, _)| *stalls == this) {
            plan.fired = true;
            drop(plan);
            std::thread::sleep(time);
            return Ok(());
        }
        if plan.fails != Some(this) {
            return Ok(());
        }
        plan.fired = true;
        Err(this)
    }
}
