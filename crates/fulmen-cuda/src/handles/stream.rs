//! Streams.

use std::sync::{Arc, OnceLock, Weak};

use cudarc::driver::{
    result::{self, stream::StreamKind},
    sys::{self, CUDA_MEMCPY2D, CUgraph, CUmemorytype, CUstream, CUstreamCaptureMode},
};

use super::{Context, Event, Graph};
use crate::error::CudaError;

/// Decides how long the work of a stream is waited for, where a collective may wait for another rank.
pub(crate) trait StreamGuard: Send + Sync {
    /// Waits until `is_done`, or until the work was ended because it would not end.
    fn wait(&self, is_done: &dyn Fn() -> Result<bool, CudaError>) -> Result<(), CudaError>;

    /// An error if what the stream has computed is of no use.
    fn check(&self) -> Result<(), CudaError>;
}

/// The guard of a stream, once it has one. It does not keep the guard alive, which has the stream.
pub(super) type Guard = OnceLock<Weak<dyn StreamGuard>>;

/// A stream that does not wait for the default stream.
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: CUstream,
    guard: Guard,
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
        Ok(Stream { context: Arc::clone(context), raw, guard: Guard::new() })
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// From now on the guard decides how long its work is waited for. A stream has one guard.
    pub(crate) fn set_guard(&self, guard: Weak<dyn StreamGuard>) {
        let _ = self.guard.set(guard);
    }

    /// Whether all its work has finished. Does not wait.
    pub(crate) fn is_idle(&self) -> Result<bool, CudaError> {
        self.context.bind()?;
        // SAFETY: the stream is alive as long as `self`.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => match status.result() {
                Ok(()) => Ok(true),
                Err(error) => Err(self.context.error("cuStreamQuery", error)),
            },
        }
    }

    /// Waits until all its work has finished.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        if let Some(guard) = self.guard.get().and_then(Weak::upgrade) {
            return guard.wait(&|| self.is_idle());
        }
        self.context.bind()?;
        // SAFETY: the stream is alive as long as `self`.
        let done = unsafe { result::stream::synchronize(self.raw) };
        done.map_err(|error| self.context.error("cuStreamSynchronize", error))
    }

    /// Records an event after the work submitted so far.
    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaError> {
        if let Some(guard) = self.guard.get() {
            event.set_guard(guard);
        }
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

    /// Copies `(bytes, rows)` between device memory at `(address, bytes from row to row)`.
    pub(crate) fn copy_2d(
        &self,
        from: (u64, usize),
        to: (u64, usize),
        (bytes, rows): (usize, usize),
    ) -> Result<(), CudaError> {
        self.context.bind()?;
        let device = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: device,
            srcHost: std::ptr::null(),
            srcDevice: from.0,
            srcArray: std::ptr::null_mut(),
            srcPitch: from.1,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: device,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.0,
            dstArray: std::ptr::null_mut(),
            dstPitch: to.1,
            WidthInBytes: bytes,
            Height: rows,
        };
        // SAFETY: the caller has checked both ranges; the stream is alive as long as `self`.
        let done = unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.raw) };
        done.result().map_err(|error| self.context.error("cuMemcpy2DAsync", error))
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
