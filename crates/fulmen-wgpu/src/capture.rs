//! Programs that were captured, and their replay.
//!
//! A captured program is a [`Program`] of the encoder, or several where one submission would take too long: pipelines, bind groups
//! and parameters are made, and a replay of each is one pass and one submission, without encoding once Vulkan keeps it. It keeps the scratch memory that it was recorded with. It is refused when
//! memory that it uses was freed, or when a weight was written that it uses in another order.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fulmen_core::ReplayId;

use crate::{encode::Program, error::GpuError};

/// One captured program.
pub(crate) struct Captured {
    /// One for each submission.
    pub(crate) parts: Vec<Arc<Program>>,
    /// The calls that each of its kernels is part of.
    pub(crate) calls: Vec<Range<usize>>,
    /// The allocations that its operands lie in.
    pub(crate) uses: BTreeSet<u64>,
    /// Why it cannot run any more.
    pub(crate) gone: Option<String>,
}

impl Captured {
    pub(crate) fn new(parts: Vec<Program>, uses: BTreeSet<u64>, calls: Vec<Range<usize>>) -> Captured {
        Captured { parts: parts.into_iter().map(Arc::new).collect(), calls, uses, gone: None }
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
        match &captured.gone {
            Some(why) => Err(refused(why.clone())),
            None => Ok(captured),
        }
    }

    pub(crate) fn remove(&mut self, id: ReplayId) {
        self.programs.remove(&id.0);
    }

    /// Notes that an allocation is gone, or that weights in it changed.
    pub(crate) fn lost(&mut self, ptr: u64, why: &str) {
        for captured in self.programs.values_mut().filter(|captured| captured.uses.contains(&ptr)) {
            captured.gone.get_or_insert_with(|| format!("the memory at {ptr:#x} {why}"));
        }
    }
}
