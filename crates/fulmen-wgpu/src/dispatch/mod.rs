//! [`WgpuDispatcher`]: the device's kernels behind [`KernelDispatch`].
//!
//! Each op has a function here or in a submodule. It looks up where its operands live and passes them,
//! with the launches of its kernels ([`crate::kernels`]), to the launch queue. Nothing runs before the
//! caller synchronizes, reads or writes; a [prepared](KernelDispatch::prepare) program is encoded and
//! submitted as a whole.

mod attention;
mod elementwise;
mod embed;
mod experts;
mod forward;
mod logits;
mod matmul;
mod recurrent;
mod rows;
mod sample;

use std::sync::Arc;
use std::time::Duration;

use fulmen_core::*;

use self::matmul::Q8Input;
use crate::BACKEND;
use crate::buffer::BufferSlice;
use crate::capture::Captured;
use crate::device::{AdapterSelector, GpuDevice};
use crate::error::GpuError;
use crate::kernels::elementwise::ElementwiseOp;
use crate::memory::{WgpuMemory, words_around};
use crate::queue::LaunchQueue;
use crate::weight::{DeviceWeight, stored_as};

/// The number of kernels launched.
type LaunchCount = Result<usize, BackendError>;

/// Runs graphs on a GPU through wgpu.
///
/// It may be moved between threads and is used by one at a time. Several dispatchers may share a
/// device; each has its own memory and its own captured programs.
pub struct WgpuDispatcher {
    queue: LaunchQueue,
    memory: WgpuMemory,
    captures: Captures<Captured>,
    gpu: GpuDevice,
}

impl WgpuDispatcher {
    /// Opens a device by its number in [`list_devices`](crate::list_devices).
    ///
    /// # Errors
    /// As [`GpuDevice::open`].
    pub fn open(index: usize) -> Result<WgpuDispatcher, GpuError> {
        WgpuDispatcher::on(&GpuDevice::open(&AdapterSelector::Index(index))?)
    }

    /// A dispatcher on an opened device.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn on(gpu: &GpuDevice) -> Result<WgpuDispatcher, GpuError> {
        Ok(WgpuDispatcher {
            queue: LaunchQueue::new(gpu)?,
            memory: WgpuMemory::new(gpu),
            captures: Captures::default(),
            gpu: gpu.clone(),
        })
    }

    /// The device.
    pub fn device(&self) -> &GpuDevice {
        &self.gpu
    }

    /// Bytes that graphs, weights and KV caches use on this dispatcher.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The number of dispatches of a captured program.
    pub fn captured_dispatches(&self, id: ReplayId) -> Option<usize> {
        self.captures.get(id).ok().map(|captured| captured.lists.iter().map(|list| list.len()).sum())
    }

    /// Sets after how many multiplications of matmuls and attention the pending work is submitted: some
    /// drivers kill a submission that takes seconds. The default is 10¹¹. Programs of more than 32 rows
    /// that are captured from here on are split at that size, too.
    pub fn submit_after(&mut self, multiplications: u64) {
        self.queue.submit_after(multiplications);
    }

    /// `elements` 32-bit elements at an address.
    fn at(&self, what: &'static str, ptr: u64, elements: usize) -> Result<BufferSlice, BackendError> {
        self.memory.slice(what, ptr, elements.saturating_mul(4))
    }

    /// `rows · width` f32 values at an address.
    fn matrix(
        &self,
        what: &'static str,
        ptr: u64,
        rows: u32,
        width: u32,
    ) -> Result<BufferSlice, BackendError> {
        self.at(what, ptr, (rows as usize).saturating_mul(width as usize))
    }

    /// The weight of a call. Quantized blocks that have to be read back for repacking are read after
    /// the pending dispatches, which may still write them.
    fn weight(
        &mut self,
        what: &'static str,
        arg: &WeightArg,
        k: u32,
    ) -> Result<Arc<DeviceWeight>, BackendError> {
        if self.memory.needs_readback(arg, k) {
            self.queue.flush_unless_recording()?;
        }
        self.memory.weight(what, arg, k)
    }

    /// Notes that a call writes to an address.
    fn writes(&mut self, ptr: u64) {
        if let Some(start) = self.memory.written(ptr) {
            self.captures.invalidate(start, "holds blocks that were written since");
        }
    }

    fn copy(&mut self, call: &CopyCall) -> LaunchCount {
        if call.bytes == 0 {
            return Ok(0);
        }
        self.writes(call.output);
        let from = self.memory.slice("the input", call.input, call.bytes)?;
        let to = self.memory.slice("the output", call.output, call.bytes)?;
        let before = self.queue.len();
        self.queue.copy(&from, &to)?;
        Ok(self.queue.len() - before)
    }

    fn capture(&mut self, program: &Program) -> Result<ReplayId, ExecError> {
        self.queue.begin_recording()?;
        self.memory.map.begin_recording();
        let mut calls = Vec::new();
        let recorded = program.run_observed(self, |device, ran, _| {
            calls.resize(device.queue.len(), ran);
            Ok(true)
        });
        // The recording always ends; where a call failed, its error is the one to report.
        let uses = self.memory.map.end_recording();
        let ended = self.queue.end_recording();
        recorded?;
        Ok(self.captures.add(Captured::new(ended.map_err(BackendError::from)?, calls), uses))
    }
}

impl std::fmt::Debug for WgpuDispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WgpuDispatcher").field("device", &self.gpu).finish_non_exhaustive()
    }
}

/// Holds an intermediate result of 2048 rows of any model.
const LARGE_BUFFER: u64 = 1 << 30;

/// One method per op: checks the operands and appends the launches.
macro_rules! ops {
    ($($method:ident($call:ty) => $launch:expr;)*) => {
        $(fn $method(&mut self, call: &$call) -> LaunchCount {
            call.check_operands(&self.memory)?;
            let launched = $launch(self, call)?;
            self.queue.flush_if_full()?;
            Ok(launched)
        })*
    };
}

impl KernelDispatch for WgpuDispatcher {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    /// Matmuls and attention have kernels of their own for it. A row's experts are chosen and computed by one
    /// workgroup each, and added up in the order of their ranks, at any number of rows.
    fn batch_invariant(&self, _: &OpCall) -> bool {
        true
    }

    ops! {
        dispatch_mul_mat(MulMatCall) => |d: &mut Self, call| d.mul_mat(call, &mut Q8Input::default());
        dispatch_gate_up(GateUpCall) => |d: &mut Self, call| {
            d.gate_up(call, &mut Q8Input::default(), None)
        };
        dispatch_route(RouteCall) => WgpuDispatcher::route;
        dispatch_expert_gate_up(ExpertGateUpCall) => WgpuDispatcher::expert_gate_up;
        dispatch_expert_down(ExpertDownCall) => WgpuDispatcher::expert_down;
        dispatch_rms_norm(RmsNormCall) => WgpuDispatcher::rms_norm;
        dispatch_add_rms_norm(AddRmsNormCall) => WgpuDispatcher::add_rms_norm;
        dispatch_add(BinaryCall) => |d: &mut Self, call| d.binary(&[ElementwiseOp::Add], call);
        dispatch_mul(BinaryCall) => |d: &mut Self, call| d.binary(&[ElementwiseOp::Mul], call);
        dispatch_swiglu(BinaryCall) => |d: &mut Self, call| {
            d.binary(&[ElementwiseOp::Swish, ElementwiseOp::Mul], call)
        };
        dispatch_silu(UnaryCall) => |d: &mut Self, call| d.unary(ElementwiseOp::Swish, call);
        dispatch_gelu(UnaryCall) => |d: &mut Self, call| d.unary(ElementwiseOp::Gelu, call);
        dispatch_gelu_tanh(UnaryCall) => |d: &mut Self, call| d.unary(ElementwiseOp::GeluTanh, call);
        dispatch_relu2(UnaryCall) => WgpuDispatcher::relu2;
        dispatch_scale(UnaryCall) => |d: &mut Self, call| d.unary(ElementwiseOp::Scale, call);
        dispatch_softcap(UnaryCall) => WgpuDispatcher::softcap;
        dispatch_softmax(SoftMaxCall) => WgpuDispatcher::softmax;
        dispatch_copy(CopyCall) => WgpuDispatcher::copy;
        dispatch_embed(EmbedCall) => WgpuDispatcher::embed;
        dispatch_rope(RopeCall) => WgpuDispatcher::rope;
        dispatch_kv_store(KvStoreCall) => WgpuDispatcher::kv_store;
        dispatch_rope_store(RopeStoreCall) => WgpuDispatcher::rope_store;
        dispatch_attention(AttentionCall) => WgpuDispatcher::attention;
        dispatch_argmax(ArgMaxCall) => WgpuDispatcher::argmax;
        dispatch_sample(SampleCall) => WgpuDispatcher::sample;
        dispatch_penalize(PenalizeCall) => WgpuDispatcher::penalize;
        dispatch_causal_conv(CausalConvCall) => WgpuDispatcher::causal_conv;
        dispatch_gated_delta_rule(GatedDeltaRuleCall) => WgpuDispatcher::gated_delta_rule;
        dispatch_sigmoid_gate(SigmoidGateCall) => WgpuDispatcher::sigmoid_gate;
        dispatch_mean_squares(MeanSquaresCall) => WgpuDispatcher::mean_squares;
        dispatch_rms_scale(RmsScaleCall) => WgpuDispatcher::rms_scale;
        dispatch_gather_tokens(GatherTokensCall) => WgpuDispatcher::gather_tokens;
        dispatch_mask_logits(MaskLogitsCall) => WgpuDispatcher::mask_logits;
        dispatch_top_k(TopKCall) => WgpuDispatcher::top_k;
        dispatch_log_probs(LogProbsCall) => WgpuDispatcher::log_probs;
        dispatch_advance(AdvanceCall) => WgpuDispatcher::advance;
    }

    /// Enough rows to fill a large GPU; fewer on other devices, where a chunk would take long or exceed
    /// the largest buffer.
    fn prefill_chunk(&self) -> u32 {
        let caps = self.gpu.caps();
        let large = caps.max_binding.min(caps.max_buffer) >= LARGE_BUFFER;
        let discrete = self.gpu.info().device_type == wgpu::DeviceType::DiscreteGpu;
        if discrete && large { 2048 } else { 512 }
    }

    /// A residual is added in the epilogue of the preceding matmul, so fusing the sum with the norm
    /// would not help.
    fn fusions(&self) -> Fusions {
        Fusions { add_rms_norm: false, ..Fusions::all() }
    }

    fn fused_calls(&self, next: &[ProgramCall], _unfinished: &[Extent]) -> usize {
        self.count_fused(next)
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        self.q8_input_of(calls).into_iter().collect()
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        self.can_forward(calls, activation)
    }

    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> LaunchCount {
        self.run_planned(program, planned)
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.queue.synchronize()
    }

    /// `None` for a program that does nothing.
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        if program.calls().is_empty() {
            return Ok(None);
        }
        self.capture(program).map(Some).map_err(|error| error.into_backend(BACKEND, "capture"))
    }

    /// A plain run creates the same objects as a capture, and drops them.
    fn captures_for_free(&self) -> bool {
        true
    }

    fn replay(&mut self, id: ReplayId) -> LaunchCount {
        // The callback never stops it.
        Ok(self.replay_while(id, &mut || true)?.unwrap_or(0))
    }

    fn replay_while(
        &mut self,
        id: ReplayId,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<usize>, BackendError> {
        let lists = &self.captures.get(id)?.lists;
        for list in lists {
            if !go_on() {
                return Ok(None);
            }
            self.queue.replay(list)?;
        }
        Ok(Some(lists.len()))
    }

    /// `None` where the device has no timestamps.
    fn replay_timed(&mut self, id: ReplayId) -> Result<Option<Vec<KernelTime>>, BackendError> {
        let captured = self.captures.get(id)?;
        let (lists, calls) = (captured.lists.clone(), captured.calls.clone());
        self.queue.synchronize()?;
        self.queue.may_fault();
        let time = |us: f64| Duration::from_secs_f64(us.max(0.0) / 1e6);
        let mut kernels: Vec<KernelTime> = Vec::new();
        for list in lists {
            let profile = match list.profile() {
                Err(GpuError::Unsupported { .. }) => return Ok(None),
                profile => profile?,
            };
            // The times of each list start at 0.
            let before = kernels.last().map_or(Duration::ZERO, |last| last.start + last.time);
            for dispatch in profile.dispatches {
                kernels.push(KernelTime {
                    name: dispatch.label,
                    start: before + time(dispatch.start_us),
                    time: time(dispatch.duration_us),
                    calls: calls.get(kernels.len()).cloned().unwrap_or(0..0),
                });
            }
        }
        Ok(Some(kernels))
    }

    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        self.captured_dispatches(id)
    }

    fn release(&mut self, id: ReplayId) {
        // A deferred replay and work in flight keep the objects they need alive.
        self.captures.remove(id);
    }
}

impl DeviceMemory for WgpuDispatcher {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.memory.alloc(bytes)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.queue.flush()?;
        self.memory.free(ptr)?;
        self.captures.invalidate(ptr, "was freed");
        Ok(())
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.queue.flush()?;
        self.memory.write(ptr, data)?;
        self.writes(ptr);
        Ok(())
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        if bytes == 0 {
            self.queue.flush()?;
            return Ok(ReadTicket::ready(Vec::new()));
        }
        let slice = self.memory.slice("read", ptr, bytes)?;
        let (words, skip) = words_around(&slice);
        self.queue.read_later(&words, skip, bytes)
    }

    /// As a ticket does, but straight from the mapped memory; an empty read waits for all work.
    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        if out.is_empty() {
            return self.queue.synchronize();
        }
        let slice = self.memory.slice("read", ptr, out.len())?;
        let (words, skip) = words_around(&slice);
        self.queue.read(&words, |bytes| {
            let len = out.len();
            out.copy_from_slice(&bytes[skip..skip + len]);
        })
    }

    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        self.memory.import(bytes)
    }

    fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        self.memory.import_weight(bytes, dtype, rows, width)
    }

    /// Types without kernels are converted.
    fn weight_bytes(&self, dtype: DType, rows: u32, width: u32) -> u64 {
        let elements = (rows as usize).saturating_mul(width as usize);
        stored_as(dtype).bytes(elements).map_or(u64::MAX, |bytes| bytes as u64)
    }

    fn available_bytes(&self) -> Option<u64> {
        self.memory.available_bytes()
    }

    fn largest_state(&self) -> Option<u64> {
        Some(self.memory.largest_binding())
    }
}
