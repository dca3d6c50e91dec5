//! [`CudaDispatcher`]: implements [`KernelDispatch`] with the CUDA kernels.
//!
//! Each method checks the operands of its call and passes it to the file of its op in `kernels`.

use std::sync::Arc;

use fulmen_core::*;

use crate::BACKEND;
use crate::buffer::CudaMemory;
use crate::capture::Captured;
use crate::device::{CudaDevice, CudaOptions};
use crate::error::CudaError;
use crate::forward::{self, Forwarding};
use crate::handles::{Event, Stream};
use crate::kernels;
use crate::nccl::NcclGroup;
use crate::nccl::group::of_nccl;
use crate::nccl::rank::NcclRank;
use crate::preload::Preload;
use crate::queue::Queue;
use crate::timed_graph::TimedGraph;

type Launched = Result<usize, BackendError>;

/// Runs graphs on a CUDA device.
///
/// It may be moved between threads, but is used by one at a time. Several dispatchers may share a device,
/// also from different threads: each has its own stream and its own memory.
pub struct CudaDispatcher {
    // Dropped in this order, after `Drop` has waited for the device.
    captures: Captures<Captured>,
    pub(crate) queue: Queue,
    memory: CudaMemory,
    stream: Arc<Stream>,
    device: Arc<CudaDevice>,
    /// The kernels of the model that was imported last.
    preload: Option<Preload>,
    /// The group that it is a rank of. After the captures, which use it.
    nccl: Option<Arc<NcclRank>>,
}

impl CudaDispatcher {
    /// Opens a device by its ordinal, with the options of the environment.
    pub fn open(ordinal: usize) -> Result<CudaDispatcher, CudaError> {
        CudaDispatcher::new(&CudaDevice::open(ordinal, CudaOptions::from_env()?)?)
    }

    /// A dispatcher for an open device, with a stream of its own.
    pub fn new(device: &Arc<CudaDevice>) -> Result<CudaDispatcher, CudaError> {
        let stream = Arc::new(Stream::new(&device.context)?);
        Ok(CudaDispatcher {
            captures: Captures::default(),
            queue: Queue::new(device, &stream)?,
            memory: CudaMemory::new(device, &stream),
            stream,
            device: Arc::clone(device),
            preload: None,
            nccl: None,
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Records an event after the work launched so far; the time between two of them can be measured.
    pub fn mark(&self) -> Result<Event, CudaError> {
        let event = self.event()?;
        self.stream.record(&event)?;
        Ok(event)
    }

    /// An event with timing enabled.
    pub(crate) fn event(&self) -> Result<Event, CudaError> {
        Event::new(&self.device.context, true)
    }

    /// Records an event into the graph that is being captured.
    pub(crate) fn mark_in_capture(&self, event: &Event) -> Result<(), CudaError> {
        self.stream.record_in_capture(event)
    }

    /// Bytes that graphs, weights and KV caches of this dispatcher occupy.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The number of kernels and copies in a captured program.
    pub fn captured_nodes(&self, id: ReplayId) -> Option<usize> {
        self.captures.peek(id).map(|captured| captured.graph.nodes())
    }

    /// Starts a capture: calls are recorded instead of run until
    /// [`end_capture`](CudaDispatcher::end_capture). [`prepare`](KernelDispatch::prepare) does all of it. The
    /// scratch memory and the kernels that a recorded call needs must already have been allocated and loaded
    /// by earlier calls.
    pub fn begin_capture(&mut self) -> Result<(), BackendError> {
        self.queue.begin_capture()?;
        self.memory.map.begin_recording();
        Ok(())
    }

    /// Ends a capture. Calls run again, even after an error.
    pub fn end_capture(&mut self) -> Result<ReplayId, BackendError> {
        let uses = self.memory.map.end_recording();
        let (graph, scratch) = self.queue.end_capture()?;
        let (program, timed) = (None, None);
        Ok(self.captures.add(Captured { graph, _scratch: scratch, program, timed }, uses))
    }

    /// Loads the kernels and allocates the scratch memory that a program needs.
    fn load(&mut self, program: &Program) -> Result<(), ExecError> {
        self.queue.begin_loading().map_err(BackendError::from)?;
        let planned = program.run(self);
        self.queue.end_loading();
        planned.map(|_| ())
    }

    /// Whether the operands of all calls are valid. An invalid call is reported when it is dispatched.
    fn are_valid(&self, calls: &[ProgramCall]) -> bool {
        calls.iter().all(|step| step.call.check_operands(&self.memory).is_ok())
    }

    fn launch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Launched {
        let calls = program.calls().get(planned.calls.clone()).unwrap_or_default();
        for step in calls {
            step.call.check_operands(&self.memory)?;
        }
        let PlannedCall { inputs, outputs, .. } = planned;
        for (forwarded, write) in [(inputs, false), (outputs, true)] {
            for Forwarded { activation, ptr } in forwarded {
                self.memory.look_up(activation.form.name, *ptr, activation.form.bytes, 16, write)?;
            }
        }
        let prefetched = planned.prefetch.and_then(|call| program.calls().get(call..));
        let prefetched = prefetched.filter(|steps| self.are_valid(&steps[..steps.len().min(1)]));
        let prefetch = prefetched.and_then(|steps| forward::prefetch(self.queue.caps(), steps));
        match forward::launch(&mut self.queue, calls, &Forwarding { inputs, outputs, prefetch }) {
            Some(launched) => launched,
            None => calls.iter().map(|step| self.dispatch(&step.call)).sum(),
        }
    }

    fn capture(&mut self, program: &Program) -> Result<ReplayId, ExecError> {
        self.load(program)?;
        self.begin_capture()?;
        let recorded = program.run(self);
        // The capture is always ended; if a call failed, its error is the one to report.
        let ended = self.end_capture();
        recorded?;
        let id = ended?;
        self.captures.get_mut(id)?.program = Some(Arc::new(program.clone()));
        Ok(id)
    }
}

impl Drop for CudaDispatcher {
    fn drop(&mut self) {
        // Running programs use their graphs and scratch memory.
        let _ = self.stream.synchronize();
    }
}

/// Defines the method of each op: check the operands, launch.
macro_rules! ops {
    ($($method:ident($call:ty) => $launch:expr;)*) => {
        $(fn $method(&mut self, call: &$call) -> Launched {
            call.check_operands(&self.memory)?;
            $launch(&mut self.queue, call)
        })*
    };
}

fn without_group(op: &str, ranks: u32) -> Launched {
    let what = format!("{op} of {ranks} ranks without a communicator");
    Err(BackendError::Unsupported { backend: BACKEND, what })
}

impl KernelDispatch for CudaDispatcher {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn batch_invariant(&self, _: &OpCall) -> bool {
        true
    }

    ops! {
        dispatch_mul_mat(MulMatCall) => kernels::matmul::launch;
        dispatch_gate_up(GateUpCall) => kernels::matmul::launch_gate_up;
        dispatch_route(RouteCall) => kernels::route::launch;
        dispatch_expert_gate_up(ExpertGateUpCall) => kernels::experts::launch_gate_up;
        dispatch_expert_down(ExpertDownCall) => kernels::experts::launch_down;
        dispatch_embed(EmbedCall) => kernels::embed::launch;
        dispatch_rms_norm(RmsNormCall) => kernels::rms_norm::launch;
        dispatch_add_rms_norm(AddRmsNormCall) => kernels::rms_norm::launch_add;
        dispatch_add(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "add", call);
        dispatch_mul(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "mul", call);
        dispatch_swiglu(BinaryCall) => |queue, call| kernels::elementwise::binary(queue, "swiglu", call);
        dispatch_silu(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "silu", call);
        dispatch_gelu(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "gelu", call);
        dispatch_gelu_tanh(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "gelu_tanh", call);
        dispatch_relu2(UnaryCall) => |queue, call| kernels::elementwise::unary(queue, "relu2", call);
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
        dispatch_causal_conv(CausalConvCall) => kernels::causal_conv::launch;
        dispatch_gated_delta_rule(GatedDeltaRuleCall) => kernels::gated_delta_rule::launch;
        dispatch_sigmoid_gate(SigmoidGateCall) => kernels::sigmoid_gate::launch;
        dispatch_mean_squares(MeanSquaresCall) => kernels::divided_norm::launch_mean_squares;
        dispatch_rms_scale(RmsScaleCall) => kernels::divided_norm::launch_rms_scale;
        dispatch_gather_tokens(GatherTokensCall) => kernels::gather_tokens::launch;
        dispatch_mask_logits(MaskLogitsCall) => kernels::mask_logits::launch;
        dispatch_top_k(TopKCall) => kernels::top_k::launch;
        dispatch_log_probs(LogProbsCall) => kernels::log_probs::launch;
        dispatch_advance(AdvanceCall) => kernels::advance::launch;
    }

    fn dispatch_all_reduce(&mut self, call: &AllReduceCall) -> Launched {
        call.check_operands(&self.memory)?;
        match (&self.nccl, call.alone()) {
            (Some(rank), _) => rank.dispatch_all_reduce(&mut self.queue, call),
            (None, Some(copy)) if copy.input == copy.output => Ok(0),
            (None, Some(copy)) => self.dispatch_copy(&copy),
            (None, None) => without_group("AllReduce", call.ranks),
        }
    }

    fn dispatch_all_gather(&mut self, call: &AllGatherCall) -> Launched {
        call.check_operands(&self.memory)?;
        match (&self.nccl, call.alone()) {
            (Some(rank), _) => rank.dispatch_all_gather(&mut self.queue, call),
            (None, Some(copy)) => self.dispatch_copy(&copy),
            (None, None) => without_group("AllGather", call.ranks),
        }
    }

    /// The ordinal of the device.
    fn group_device(&self) -> Option<u64> {
        Some(self.device.ordinal() as u64)
    }

    fn device_group(&self, spec: &GroupSpec<'_>) -> Result<Arc<dyn DeviceGroup>, BackendError> {
        let group = NcclGroup::new(spec.ranks, spec.timeout, spec.id).map_err(CudaError::from)?;
        Ok(Arc::new(group))
    }

    fn join_group(
        &mut self,
        group: &Arc<dyn DeviceGroup>,
        rank: u32,
    ) -> Result<Arc<dyn Communicator>, BackendError> {
        self.queue.must_be_idle("joining a group")?;
        let Some(group) = of_nccl(group).filter(|_| self.nccl.is_none()) else {
            let what = format!("joining {group:?}");
            return Err(BackendError::Unsupported { backend: BACKEND, what });
        };
        let rank = NcclRank::join(&self.device.context, &self.stream, &group, rank)?;
        self.nccl = Some(Arc::clone(&rank));
        Ok(rank)
    }

    /// From 2048 rows on, the tiles of a GEMM fill the multiprocessors of a large GPU. Twice as many halve
    /// the time to dequantize weights: 5 % of a prompt of 8192 tokens.
    fn prefill_chunk(&self) -> u32 {
        4096
    }

    /// The reductions behind the GEMMs of decode steps have a block for each row.
    fn rows_at_once(&self) -> Option<u32> {
        Some(self.queue.caps().multiprocessors)
    }

    /// Residuals are added in the epilogue of the matmul before them and norms are fused with the matmul
    /// after them, so a fused add and norm would gain nothing.
    fn fusions(&self) -> Fusions {
        Fusions { add_rms_norm: false, ..Fusions::all() }
    }

    fn fused_calls(&self, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
        let fused = forward::fused_calls(self.queue.caps(), next, unfinished);
        if next.get(..fused).is_some_and(|calls| self.are_valid(calls)) { fused } else { 1 }
    }

    fn drains(&self, call: &OpCall) -> bool {
        // A kernel of NCCL starts when all before it have finished, and lets none start early.
        (self.nccl.is_some() && call.is_collective()) || forward::drains(self.device.overlaps(), call)
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        if self.are_valid(calls) { forward::accepted_forms(self.queue.caps(), calls) } else { Vec::new() }
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        self.are_valid(calls) && forward::forwards(self.queue.caps(), calls, activation)
    }

    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        forward::prefetches(self.queue.caps(), calls, next)
    }

    /// The first call of a planned program does not overlap with what was launched before; see
    /// [`queue`](crate::queue).
    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Launched {
        if !planned.first {
            return self.launch_planned(program, planned);
        }
        let overlap = std::mem::replace(&mut self.queue.overlap, false);
        let launched = self.launch_planned(program, planned);
        self.queue.overlap = overlap;
        if matches!(launched, Ok(0)) {
            self.queue.drain()?;
        }
        launched
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.queue.synchronize()
    }

    /// `None` if capturing is disabled or the program is empty.
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        if !self.device.options().capture || program.calls().is_empty() {
            return Ok(None);
        }
        self.capture(program).map(Some).map_err(|error| error.into_backend(BACKEND, "capture"))
    }

    fn replay(&mut self, id: ReplayId) -> Launched {
        self.queue.launch_graph(&self.captures.get(id)?.graph)?;
        Ok(1)
    }

    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        self.captured_nodes(id)
    }

    /// One time per call, or per group of calls that run as one. Kernels do not overlap, unlike in a normal
    /// replay.
    fn replay_timed(&mut self, id: ReplayId) -> Result<Option<Vec<KernelTime>>, BackendError> {
        let captured = self.captures.get(id)?;
        let Some(program) = captured.program.clone() else { return Ok(None) };
        if captured.timed.is_none() {
            let timed = TimedGraph::capture(self, &program)?;
            self.captures.get_mut(id)?.timed = Some(timed);
        }
        self.queue.synchronize()?;
        let Some(timed) = &self.captures.get(id)?.timed else { return Ok(None) };
        self.queue.launch_graph(&timed.graph)?;
        self.queue.synchronize()?;
        Ok(Some(timed.times()?))
    }

    fn release(&mut self, id: ReplayId) {
        if let Some(captured) = self.captures.remove(id) {
            // Its scratch memory may be in use. An error is reported when the results are read.
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
        self.memory.free(ptr)?;
        self.captures.invalidate(ptr, "was freed");
        Ok(())
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.queue.must_be_idle("a write")?;
        self.memory.write(ptr, data)
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.queue.must_be_idle("a read")?;
        let read = self.memory.start_copy(ptr, bytes)?.checking(self.queue.fault_cell());
        Ok(ReadTicket::pending(read, bytes))
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

    fn supports_weight(&self, dtype: DType) -> bool {
        kernels::supports_weight(dtype)
    }

    fn import_weights(
        &mut self,
        weights: &[WeightSpec],
        reader: &dyn WeightReader,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BulkImport, BackendError> {
        self.queue.must_be_idle("an import")?;
        // While the weights are copied.
        self.preload = Preload::start(&self.device, weights);
        self.memory.import_weights(weights, reader, progress)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.memory.available_bytes()
    }
}
