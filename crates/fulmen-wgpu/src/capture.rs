//! Captured programs and their replay.
//!
//! A captured program is a [`DispatchList`], or several where one submission would take too long.
//! Pipelines, bind groups and parameters exist; a replay of each list is one pass and one submission,
//! without encoding once it is recorded in a Vulkan command buffer. A captured program keeps the
//! scratch memory that it was recorded with. It is refused after memory that it uses was freed, or
//! after a weight was rewritten of which it uses a repacked copy.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fulmen_core::ReplayId;

use crate::{encode::DispatchList, error::GpuError};

/// One captured program.
pub(crate) struct Captured {
    /// One list per submission.
    pub(crate) lists: Vec<Arc<DispatchList>>,
    /// For each dispatch, the calls of the program that it belongs to.
    pub(crate) calls: Vec<Range<usize>>,
    /// Addresses of the allocations that its operands live in.
    pub(crate) uses: BTreeSet<u64>,
    /// Why it can no longer run.
    pub(crate) invalid: Option<String>,
}

impl Captured {
    pub(crate) fn new(lists: Vec<DispatchList>, uses: BTreeSet<u64>, calls: Vec<Range<usize>>) -> Captured {
        Captured { lists: lists.into_iter().map(Arc::new).collect(), calls, uses, invalid: None }
    }
}

/// The captured programs of a dispatcher.
#[derive(Default)]
pub(crate) struct Captures {
    programs: HashMap<u64, Captured>,
    next: u64,
}

impl Captures {
    pub(crate) fn add(&mut self, captured: Captured) -> ReplayId {
        let id = self.next;
        self.next += 1;
        self.programs.insert(id, captured);
        ReplayId(id)
    }

    /// The program, if it can run.
    pub(crate) fn get(&self, id: ReplayId) -> Result<&Captured, GpuError> {
        let refused = |got| GpuError::Argument {
            call: "replay",
            what: format!("program {}", id.0),
            expected: "captured, with all its memory".to_owned(),
            got,
        };
        let captured = self.programs.get(&id.0).ok_or_else(|| refused("none of this number".to_owned()))?;
        match &captured.invalid {
            Some(why) => Err(refused(why.clone())),
            None => Ok(captured),
        }
    }

    pub(crate) fn remove(&mut self, id: ReplayId) {
        self.programs.remove(&id.0);
    }

    /// Invalidates the programs that use an allocation which was freed, or whose weights changed.
    pub(crate) fn invalidate(&mut self, ptr: u64, why: &str) {
        for captured in self.programs.values_mut().filter(|captured| captured.uses.contains(&ptr)) {
            captured.invalid.get_or_insert_with(|| format!("the memory at {ptr:#x} {why}"));
        }
    }
}
