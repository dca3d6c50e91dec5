//! Owned driver handles, each a type with a `Drop`. Every handle keeps its context alive, so they can be
//! dropped in any order and on any thread; each call first makes the context current on its thread.

mod context;
mod event;
mod graph;
mod memory;
mod stream;

pub(crate) use context::Context;
pub use event::Event;
pub(crate) use graph::Graph;
pub(crate) use memory::{DeviceBlock, PinnedBlock};
pub(crate) use stream::{Stream, StreamGuard};
