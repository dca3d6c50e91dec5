//! Programs that were captured, and their replay.
//!
//! The life of a capture is that of the queue's state: *idle*, *planning* (kernels are loaded and scratch memory is made,
//! because a capture allows neither), *capturing*, and idle again, whatever happened. A captured program keeps the
//! scratch memory that it was recorded with. It is refused when an allocation that it uses was freed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fulmen_core::{Program, ReplayId};

use crate::error::CudaError;
use crate::handles::Graph;
use crate::queue::{Kept, Queue};
use crate::timed::Timed;

/// One captured program.
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    /// Kept alive for the graph.
    pub(crate) _kept: Kept,
    /// The allocations that its operands lie in.
    pub(crate) uses: BTreeSet<u64>,
    /// The first of them that was freed.
    pub(crate) freed: Option<u64>,
    /// What was captured, where it was a whole program.
    pub(crate) program: Option<Arc<Program>>,
    /// The same with times, once somebody asked for them.
    pub(crate) timed: Option<Timed>,
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

    /// Launches a program.
    pub(crate) fn replay(&mut self, queue: &mut Queue, id: ReplayId) -> Result<(), CudaError> {
        queue.launch_graph(&self.get(id)?.graph)
    }

    /// The program, if it can run.
    pub(crate) fn get(&mut self, id: ReplayId) -> Result<&mut Captured, CudaError> {
        let refused = |reason| CudaError::Capture { call: "a replay", reason };
        let captured = self.programs.get_mut(&id.0);
        let captured = captured.ok_or_else(|| refused(format!("program {} is not known", id.0)))?;
        if let Some(ptr) = captured.freed {
            return Err(refused(format!("the memory at {ptr:#x}, which program {} uses, was freed", id.0)));
        }
        Ok(captured)
    }

    /// Takes a program out; the caller lets it go when the device is idle.
    pub(crate) fn remove(&mut self, id: ReplayId) -> Option<Captured> {
        self.programs.remove(&id.0)
    }

    /// Kernels and copies of a program.
    pub(crate) fn nodes(&self, id: ReplayId) -> Option<usize> {
        self.programs.get(&id.0).map(|captured| captured.graph.nodes())
    }

    /// Notes that an allocation is gone.
    pub(crate) fn freed(&mut self, ptr: u64) {
        for captured in self.programs.values_mut().filter(|captured| captured.uses.contains(&ptr)) {
            captured.freed.get_or_insert(ptr);
        }
    }
}
