//! Streams.

use std::sync::Arc;

use cudarc::driver::{
    result::{self, stream::StreamKind},
    sys::{self, CUgraph, CUstream, CUstreamCaptureMode},
};

use super::{Context, Event, Graph};
use crate::error::CudaError;

/// A stream that does not wait for the default stream.
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Stream, CudaError> {
        context.bind()?;
        let raw = result::stream::create(StreamKind::NonBlocking);
        let raw = raw.map_err(|error| context.error("cuStreamCreate", error))?;
        Ok(Stream { context: Arc::clone(context), raw })
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits until all its work has finished.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the stream is alive as long as `self`.
        let done = unsafe { result::stream::synchronize(self.raw) };
        done.map_err(|error| self.context.error("cuStreamSynchronize", error))
    }

    /// Records an event after the work submitted so far.
    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both are alive and of one context.
        let done = unsafe { result::event::record(event.raw(), self.raw) };
        done.map_err(|error| self.context.error("cuEventRecord", error))
    }

    /// Adds an event to the graph that is being captured; every launch of the graph records it.
    pub(crate) fn record_in_capture(&self, event: &Event) -> Result<(), CudaError> {
        self.context.bind()?;
        let flags = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both are alive and of one context; the owner of the graph keeps the event.
        let done = unsafe { sys::cuEventRecordWithFlags(event.raw(), self.raw, flags) };
        done.result().map_err(|error| self.context.error("cuEventRecordWithFlags", error))
    }

    /// Starts a capture: work is recorded instead of run.
    pub(crate) fn begin_capture(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // Thread-local: other threads may make calls that are not allowed during a capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive as long as `self`.
        let done = unsafe { result::stream::begin_capture(self.raw, mode) };
        done.map_err(|error| self.context.error("cuStreamBeginCapture", error))
    }

    /// Ends the capture, and returns its graph.
    pub(crate) fn end_capture(&self) -> Result<Graph, CudaError> {
        self.context.bind()?;
        // SAFETY: the stream is alive as long as `self`.
        let graph = unsafe { result::stream::end_capture(self.raw) };
        let graph: CUgraph = graph.map_err(|error| self.context.error("cuStreamEndCapture", error))?;
        Graph::instantiate(&self.context, graph)
    }

    /// Launches a graph.
    pub(crate) fn launch(&self, graph: &Graph) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: both are alive and of one context; the caller keeps the memory that the graph uses.
        let done = unsafe { result::graph::launch(graph.raw(), self.raw) };
        done.map_err(|error| self.context.error("cuGraphLaunch", error))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.destroy(|| {
            // SAFETY: created in `new` and destroyed only here. Running work continues; the owner of its
            // memory waits.
            unsafe { result::stream::destroy(self.raw) }
        });
    }
}
