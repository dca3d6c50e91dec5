//! [`CudaDispatcher`]: the device's kernels behind [`KernelDispatch`].
//!
//! Each method looks up its operands and hands the call to the file of its op in `kernels`.

use std::sync::Arc;

use fulmen_core::*;

use crate::BACKEND;
use crate::ahead::Ahead;
use crate::buffer::CudaMemory;
use crate::capture::{Captured, Captures};
use crate::device::{CudaDevice, CudaOptions};
use crate::error::CudaError;
use crate::handles::{Event, Stream};
use crate::kernels;
use crate::queue::Queue;
use crate::timed::Timed;

type Launched = Result<usize, BackendError>;

/// Runs graphs on a CUDA device.
///
/// It may be moved between threads and is used by one at a time. Several dispatchers may share a device, also from
/// several threads: each has its own stream and its own memory.
pub struct CudaDispatcher {
    // Dropped in this order: each waits for the device first.
    captures: Captures,
    pub(crate) queue: Queue,
    memory: CudaMemory,
    stream: Arc<Stream>,
    device: Arc<CudaDevice>,
}

impl CudaDispatcher {
    /// Opens a device by its number, with the options of the environment.
    pub fn open(ordinal: usize) -> Result<CudaDispatcher, CudaError> {
        CudaDispatcher::new(&CudaDevice::open(ordinal, CudaOptions::from_env())?)
    }

    /// A dispatcher over an opened device, with a stream of its own.
    pub fn new(device: &Arc<CudaDevice>) -> Result<CudaDispatcher, CudaError> {
        let stream = Arc::new(Stream::new(&device.context)?);
        Ok(CudaDispatcher {
            captures: Captures::default(),
            queue: Queue::new(device, &stream)?,
            memory: CudaMemory::new(device, &stream),
            stream,
            device: Arc::clone(device),
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// A mark at the point that the device has reached so far, to be timed against another.
    pub fn mark(&self) -> Result<Event, CudaError> {
        let event = self.event()?;
        self.stream.record(&event)?;
        Ok(event)
    }

    /// An event that can be timed.
    pub(crate) fn event(&self) -> Result<Event, CudaError> {
        Event::new(&self.device.context, true)
    }

    /// A mark at the point that each run of the graph being captured has reached.
    pub(crate) fn mark_in_capture(&self, event: &Event) -> Result<(), CudaError> {
        self.stream.record_in_capture(event)
    }

    /// Bytes that graphs, weights and caches take on this dispatcher.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Kernels and copies of a captured program.
    pub fn captured_nodes(&self, id: ReplayId) -> Option<usize> {
        self.captures.nodes(id)
    }

    /// From here on calls are recorded instead of run, until [`end_capture`](CudaDispatcher::end_capture); see
    /// [`prepare`](KernelDispatch::prepare), which does all of it. Scratch memory and kernels that a recorded call needs
    /// must be there from earlier calls.
    pub fn begin_capture(&mut self) -> Result<(), BackendError> {
        self.queue.begin_capture()?;
        self.memory.watch.begin();
        Ok(())
    }

    /// Ends a recording. Calls run again after it, whatever it returns.
    pub fn end_capture(&mut self) -> Result<ReplayId, BackendError> {
        let uses = self.memory.watch.end();
        let (graph, kept) = self.queue.end_capture()?;
        let (program, timed) = (None, None);
        Ok(self.captures.add(Captured { graph, _kept: kept, uses, freed: None, program, timed }))
    }

    /// Loads the kernels and makes the scratch memory that a program needs.
    fn plan(&mut self, program: &Program) -> Result<(), ExecError> {
        self.queue.begin_planning().map_err(BackendError::from)?;
        let planned = program.run(self);
        self.queue.end_planning();
        planned.map(|_| ())
    }

    fn launch_pair(&mut self, first: &OpCall, second: &OpCall) -> Result<Option<usize>, BackendError> {
        self.queue.expect(None);
        let launched = match (first, second) {
            (OpCall::MulMat(call), OpCall::RmsNorm(norm)) => {
                // What is wrong with the norm is for its own call to say.
                if norm.check_operands(&self.memory).is_ok() {
                    kernels::small_m::expect(&mut self.queue, call, norm);
                }
                None
            }
            (OpCall::RmsNorm(norm), OpCall::MulMat(call)) if norm.feeds(call.input, call.m, call.k) => {
                norm.check_operands(&self.memory)?;
                call.check_operands(&self.memory)?;
                kernels::small_m::launch(&mut self.queue, call, Some(norm))
            }
            (OpCall::RmsNorm(norm), OpCall::GateUp(call)) if norm.feeds(call.input, call.m, call.k) => {
                norm.check_operands(&self.memory)?;
                call.check_operands(&self.memory)?;
                kernels::small_m::launch_gate_up(&mut self.queue, call, Some(norm))
            }
            (OpCall::RopeStore(store), OpCall::Attention(call)) => {
                store.check_operands(&self.memory)?;
                call.check_operands(&self.memory)?;
                kernels::attention_step::launch_with_store(&mut self.queue, store, call)
            }
            _ => None,
        };
        launched.transpose()
    }

    fn capture(&mut self, program: &Program) -> Result<ReplayId, ExecError> {
        self.plan(program)?;
        self.begin_capture()?;
        let recorded = program.run(self);
        // Always ended; where a call failed, its error is the one to report.
        let ended = self.end_capture();
        recorded?;
        let id = ended?;
        self.captures.get(id).map_err(BackendError::from)?.program = Some(Arc::new(program.clone()));
        Ok(id)
    }
}

impl Drop for CudaDispatcher {
    fn drop(&mut self) {
        // Captured programs in flight use their graphs and scratch memory.
        let _ = self.stream.synchronize();
    }
}

/// A method for each op: look up the operands, launch.
macro_rules! ops {
    ($($method:ident($call:ty) => $launch:expr;)*) => {
        $(fn $method(&mut self, call: &$call) -> Launched {
            let checked = call.check_operands(&self.memory);
            let launched = checked.and_then(|()| $launch(&mut self.queue, call));
            // They were for this call, whatever became of it.
            self.queue.expect(None);
            self.queue.look_ahead(None);
            launched
        })*
    };
}

impl KernelDispatch for CudaDispatcher {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    ops! {
        dispatch_mul_mat(MulMatCall) => kernels::matmul_generic::launch;
        dispatch_gate_up(GateUpCall) => kernels::matmul_generic::launch_gate_up;
        dispatch_embed(EmbedCall) => kernels::embed::launch;
        dispatch_rms_norm(RmsNormCall) => kernels::rms_norm::launch;
        dispatch_add_rms_norm(AddRmsNormCall) => kernels::rms_norm::launch_add;
        dispatch_add(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "add", call);
        dispatch_mul(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "mul", call);
        dispatch_swiglu(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "swiglu", call);
        dispatch_silu(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "silu", call);
        dispatch_gelu(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "gelu", call);
        dispatch_gelu_tanh(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "gelu_tanh", call);
        dispatch_scale(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "scale", call);
        dispatch_softcap(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "softcap", call);
        dispatch_rope(RopeCall) => kernels::rope::launch;
        dispatch_softmax(SoftMaxCall) => kernels::softmax::launch;
        dispatch_attention(AttentionCall) => kernels::attention::launch;
        dispatch_kv_store(KvStoreCall) => kernels::kv_store::launch;
        dispatch_rope_store(RopeStoreCall) => kernels::rope_store::launch;
        dispatch_copy(CopyCall) => kernels::copy::launch;
        dispatch_argmax(ArgMaxCall) => kernels::argmax::launch;
        dispatch_sample(SampleCall) => kernels::sample::launch;
        dispatch_penalize(PenalizeCall) => kernels::penalize::launch;
        dispatch_advance(AdvanceCall) => kernels::advance::launch;
    }

    /// Tiles of products fill the multiprocessors of a large GPU from here on.
    fn prefill_chunk(&self) -> u32 {
        2048
    }

    /// A residual goes with the product before it and a norm with the product after it, so their sum is not an op of
    /// its own.
    fn fusions(&self) -> Fusions {
        Fusions { add_rms_norm: false, ..Fusions::all() }
    }

    /// A norm and the products of it; rotation, store and the attention of them. Of a product before a norm it is noted, so that it may
    /// make what the products behind the norm want.
    fn dispatch_pair(&mut self, first: &OpCall, second: &OpCall) -> Result<Option<usize>, BackendError> {
        let launched = self.launch_pair(first, second);
        if !matches!(launched, Ok(None)) {
            self.queue.look_ahead(None);
        }
        launched
    }

    /// The attention behind a product is told to it.
    fn look_ahead(&mut self, left: &[Step]) {
        // What is wrong with the call is for itself to say.
        let store = Ahead::store_behind(left).filter(|call| call.check_operands(&self.memory).is_ok());
        self.queue.look_ahead(store.and_then(|call| Ahead::of(self.queue.caps(), call)));
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.queue.synchronize()
    }

    /// `None` where capturing is switched off, and for a program that does nothing.
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        if !self.device.options().capture || program.steps().is_empty() {
            return Ok(None);
        }
        self.capture(program).map(Some).map_err(|error| error.into_backend(BACKEND, "capture"))
    }

    fn replay(&mut self, id: ReplayId) -> Launched {
        self.captures.replay(&mut self.queue, id)?;
        Ok(1)
    }

    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        self.captured_nodes(id)
    }

    /// One time for each call, or for each pair that runs as one. Kernels that would overlap in a replay do not here.
    fn replay_timed(&mut self, id: ReplayId) -> Result<Option<Vec<KernelTime>>, BackendError> {
        let captured = self.captures.get(id)?;
        let Some(program) = captured.program.clone() else { return Ok(None) };
        if captured.timed.is_none() {
            let timed = Timed::capture(self, &program)?;
            self.captures.get(id)?.timed = Some(timed);
        }
        self.queue.synchronize()?;
        let Some(timed) = &self.captures.get(id)?.timed else { return Ok(None) };
        self.queue.launch_graph(&timed.graph)?;
        self.queue.synchronize()?;
        Ok(Some(timed.times()?))
    }

    fn release(&mut self, id: ReplayId) {
        if let Some(captured) = self.captures.remove(id) {
            // Its scratch memory may be in use. An error is reported by who reads the results.
            let _ = self.stream.synchronize();
            drop(captured);
        }
    }
}

impl DeviceMemory for CudaDispatcher {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.queue.must_be_idle("an allocation")?;
        self.memory.alloc(bytes)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.queue.must_be_idle("freeing memory")?;
        self.queue.forget_handed();
        self.queue.look_ahead(None);
        self.memory.free(ptr)?;
        self.captures.freed(ptr);
        Ok(())
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.queue.must_be_idle("a write")?;
        // A copy is no kernel: it waits, and is waited for.
        self.queue.settled();
        self.memory.write(ptr, data)
    }

    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.queue.must_be_idle("a read")?;
        self.memory.read(ptr, out)?;
        self.queue.synchronize()
    }

    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        self.queue.must_be_idle("an import")?;
        self.memory.import(bytes)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.memory.available_bytes()
    }
}
