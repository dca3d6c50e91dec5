//! Captured programs and their replay.
//!
//! A capture goes through the states of the queue: *idle*, *loading* (kernels are loaded and scratch memory
//! is allocated, which is not possible during a capture), *capturing*, and idle again, even after an error. A
//! captured program keeps its scratch memory alive; [`Captures`](fulmen_core::Captures) refuses it once an
//! allocation that it uses was freed.

use std::sync::Arc;

use fulmen_core::Program;

use crate::handles::Graph;
use crate::queue::GraphScratch;
use crate::timed_graph::TimedGraph;

/// One captured program.
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    /// Alive as long as the graph.
    pub(crate) _scratch: GraphScratch,
    /// The program, unless single calls were captured.
    pub(crate) program: Option<Arc<Program>>,
    /// The same program with timing events, once it was asked for.
    pub(crate) timed: Option<TimedGraph>,
}
