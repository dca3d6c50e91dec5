//! CUDA graphs.

use std::sync::Arc;

use cudarc::driver::{
    result,
    sys::{self, CUgraph, CUgraphExec},
};

use super::Context;
use crate::error::CudaError;

/// An instantiated graph.
pub(crate) struct Graph {
    context: Arc<Context>,
    raw: CUgraphExec,
    nodes: usize,
}

// SAFETY: graphs may be used from any thread, one at a time, which the owner of the stream ensures.
unsafe impl Send for Graph {}

impl Graph {
    /// Instantiates a captured graph, and destroys the captured one.
    pub(super) fn instantiate(context: &Arc<Context>, graph: CUgraph) -> Result<Graph, CudaError> {
        let mut nodes = 0;
        // SAFETY: the graph is the result of a capture; without an array only the count is written.
        let counted = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: as above; the driver writes one handle.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) };
        // SAFETY: as above; nothing uses it after this.
        let _ = unsafe { result::graph::destroy(graph) };
        counted.result().map_err(|error| context.error("cuGraphGetNodes", error))?;
        made.result().map_err(|error| context.allocation_error("cuGraphInstantiate", 0, error))?;
        Ok(Graph { context: Arc::clone(context), raw, nodes })
    }

    pub(crate) fn raw(&self) -> CUgraphExec {
        self.raw
    }

    /// The number of kernels and copies.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.context.destroy(|| {
            // SAFETY: created in `instantiate` and destroyed only here. The driver keeps what a running
            // launch needs.
            unsafe { result::graph::exec_destroy(self.raw) }
        });
    }
}
