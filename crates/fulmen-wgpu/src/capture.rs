//! Programs that were captured, and their replay.
//!
//! A captured program is one [`Program`] of the encoder: pipelines, bind groups and parameters are made, and a replay is one
//! encoder, one pass and one submission. It keeps the scratch memory that it was recorded with. It is refused when
//! memory that it uses was freed, or when a weight was written that it uses in another order.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fulmen_core::ReplayId;

use crate::{encode::Program, error::GpuError};

/// One captured program.
pub(crate) struct Captured {
    pub(crate) program: Arc<Program>,
    /// The allocations that its operands lie in.
    pub(crate) uses: BTreeSet<u64>,
    /// Why it cannot run any more.
    pub(crate) gone: Option<String>,
}

/// The captured programs of a dispatcher.
#[derive(Default)]
pub(crate) struct Captures {
    programs: HashMap<u64, Captured>,
    next: u64,
}

impl Captures {
    pub(crate) fn add(&mut self, program: Program, uses: BTreeSet<u64>) -> ReplayId {
        let id = self.next;
        self.next += 1;
        self.programs.insert(id, Captured { program: Arc::new(program), uses, gone: None });
        ReplayId(id)
    }

    /// The program, if it can run.
    pub(crate) fn get(&self, id: ReplayId) -> Result<&Arc<Program>, GpuError> {
        let refused = |got| GpuError::Argument {
            call: "replay",
            what: format!("program {}", id.0),
            expected: "captured, with all its memory".to_owned(),
            got,
        };
        let captured = self.programs.get(&id.0).ok_or_else(|| refused("none of this number".to_owned()))?;
        match &captured.gone {
            Some(why) => Err(refused(why.clone())),
            None => Ok(&captured.program),
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
