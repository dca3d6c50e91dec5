//! Work that was recorded once and can be launched as a whole.

use std::sync::Arc;

use cudarc::driver::{
    result,
    sys::{self, CUgraph, CUgraphExec},
};

use super::Context;
use crate::error::CudaError;

/// A recorded graph, ready to launch.
pub(crate) struct Graph {
    context: Arc<Context>,
    raw: CUgraphExec,
    nodes: usize,
}

// SAFETY: graphs may be used from any thread, by one at a time; `launch` needs a stream, whose owner sees to that.
unsafe impl Send for Graph {}

impl Graph {
    /// Makes it ready; the recording itself is not needed any more then.
    pub(super) fn instantiate(context: &Arc<Context>, graph: CUgraph) -> Result<Graph, CudaError> {
        let mut nodes = 0;
        // SAFETY: the graph comes from the end of a capture and is alive; without an array only the count is written.
        let counted = unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: as above; the driver writes one handle.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) };
        // SAFETY: as above; nothing uses the recording after this.
        let _ = unsafe { result::graph::destroy(graph) };
        counted.result().map_err(|error| context.error("cuGraphGetNodes", error))?;
        made.result().map_err(|error| context.allocation_error("cuGraphInstantiate", 0, error))?;
        Ok(Graph { context: Arc::clone(context), raw, nodes })
    }

    pub(crate) fn raw(&self) -> CUgraphExec {
        self.raw
    }

    /// How many kernels and copies it holds.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.context.destroy(|| {
            // SAFETY: made in `instantiate` and destroyed only here. A launch in flight keeps what it needs.
            unsafe { result::graph::exec_destroy(self.raw) }
        });
    }
}
