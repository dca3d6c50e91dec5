//! Captured programs and their replay.
//!
//! A capture goes through the states of the queue: *idle*, *planning* (kernels are loaded and scratch memory
//! is allocated, which is not possible during a capture), *capturing*, and idle again, even after an error. A
//! captured program keeps its scratch memory alive. Replaying it is an error once an allocation that it uses
//! was freed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fulmen_core::{Program, ReplayId};

use crate::error::CudaError;
use crate::handles::Graph;
use crate::queue::{GraphBuffers, Queue};
use crate::timed_graph::TimedGraph;

/// One captured program.
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    /// GraphBuffers alive for the graph.
    pub(crate) _buffers: GraphBuffers,
    /// The allocations that contain its operands.
    pub(crate) uses: BTreeSet<u64>,
    /// The first of these that was freed.
    pub(crate) freed: Option<u64>,
    /// The program, unless single calls were captured.
    pub(crate) program: Option<Arc<Program>>,
    /// The same program with timing events, once it was asked for.
    pub(crate) timed: Option<TimedGraph>,
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

    /// The program; an error if it cannot run.
    pub(crate) fn get(&mut self, id: ReplayId) -> Result<&mut Captured, CudaError> {
        let refused = |reason| CudaError::Capture { call: "replay", reason };
        let captured = self.programs.get_mut(&id.0);
        let captured = captured.ok_or_else(|| refused(format!("there is no program {}", id.0)))?;
        if let Some(ptr) = captured.freed {
            return Err(refused(format!("program {} uses the memory at {ptr:#x}, which was freed", id.0)));
        }
        Ok(captured)
    }

    /// Removes a program. The caller drops it when the device is idle.
    pub(crate) fn remove(&mut self, id: ReplayId) -> Option<Captured> {
        self.programs.remove(&id.0)
    }

    /// The number of kernels and copies in a program.
    pub(crate) fn nodes(&self, id: ReplayId) -> Option<usize> {
        self.programs.get(&id.0).map(|captured| captured.graph.nodes())
    }

    /// Notes that an allocation was freed.
    pub(crate) fn freed(&mut self, ptr: u64) {
        for captured in self.programs.values_mut().filter(|captured| captured.uses.contains(&ptr)) {
            captured.freed.get_or_insert(ptr);
        }
    }
}
