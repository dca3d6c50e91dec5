//! The contract between a graph and the kernels that run it.

use std::{ops::Range, time::Duration};

use super::{Program, ProgramCall, call::*};
use crate::{BackendError, Fusions};

/// A program that a backend has captured; see [`KernelDispatch::prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplayId(pub u64);

/// When a kernel of a program ran, by the device's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Its name.
    pub name: String,
    /// From the start of the program.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
    /// The calls of the program that it belongs to; empty if that is unknown. The kernels of one call are
    /// consecutive.
    pub calls: Range<usize>,
}

/// Kernels of one device. [`execute_graph`](super::execute_graph) calls one method per node, in order.
///
/// Each method returns the number of kernels that it launched: 0 if there was nothing to do, more than 1 if
/// it needed several. Calls may return before the work is done; [`synchronize`](KernelDispatch::synchronize)
/// waits for it. The first eight methods are the minimum for a transformer layer; the others return
/// [`Unsupported`](BackendError::Unsupported) until a backend implements them.
pub trait KernelDispatch {
    /// The backend's name in messages.
    fn backend(&self) -> &'static str;

    /// Matmul of one input with one or several weights.
    fn dispatch_mul_mat(&mut self, call: &MulMatCall) -> Result<usize, BackendError>;

    /// RMS norm.
    fn dispatch_rms_norm(&mut self, call: &RmsNormCall) -> Result<usize, BackendError>;

    /// Element-wise sum.
    fn dispatch_add(&mut self, call: &BinaryCall) -> Result<usize, BackendError>;

    /// Rotary position embedding.
    fn dispatch_rope(&mut self, call: &RopeCall) -> Result<usize, BackendError>;

    /// Attention among the rows of the batch or over a KV cache.
    fn dispatch_attention(&mut self, call: &AttentionCall) -> Result<usize, BackendError>;

    /// Copy of bytes.
    fn dispatch_copy(&mut self, call: &CopyCall) -> Result<usize, BackendError>;

    /// Element-wise product.
    fn dispatch_mul(&mut self, call: &BinaryCall) -> Result<usize, BackendError>;

    /// SiLU.
    fn dispatch_silu(&mut self, call: &UnaryCall) -> Result<usize, BackendError>;

    /// Rows of an embedding table.
    fn dispatch_embed(&mut self, call: &EmbedCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "Embed", call)
    }

    /// Gate and up projections with SwiGLU.
    fn dispatch_gate_up(&mut self, call: &GateUpCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "GateUp", call)
    }

    /// Residual add and RMS norm.
    fn dispatch_add_rms_norm(&mut self, call: &AddRmsNormCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "AddRmsNorm", call)
    }

    /// SwiGLU of two operands.
    fn dispatch_swiglu(&mut self, call: &BinaryCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "SwiGlu", call)
    }

    /// GELU, computed with erf.
    fn dispatch_gelu(&mut self, call: &UnaryCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "Gelu", call)
    }

    /// GELU, tanh approximation.
    fn dispatch_gelu_tanh(&mut self, call: &UnaryCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "GeluTanh", call)
    }

    /// Multiplication by a constant.
    fn dispatch_scale(&mut self, call: &UnaryCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "Scale", call)
    }

    /// Logit soft capping: `cap · tanh(x / cap)`.
    fn dispatch_softcap(&mut self, call: &UnaryCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "SoftCap", call)
    }

    /// Softmax over rows.
    fn dispatch_softmax(&mut self, call: &SoftMaxCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "SoftMax", call)
    }

    /// Keys and values into the KV cache.
    fn dispatch_kv_store(&mut self, call: &KvStoreCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "KvStore", call)
    }

    /// Norm per head, RoPE and KV store.
    fn dispatch_rope_store(&mut self, call: &RopeStoreCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "RopeStore", call)
    }

    /// Index of the largest element.
    fn dispatch_argmax(&mut self, call: &ArgMaxCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "ArgMax", call)
    }

    /// A token sampled from logits.
    fn dispatch_sample(&mut self, call: &SampleCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "Sample", call)
    }

    /// Repetition, frequency and presence penalties on logits.
    fn dispatch_penalize(&mut self, call: &PenalizeCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "Penalize", call)
    }

    /// The sampled tokens become the inputs of the next decode step.
    fn dispatch_advance(&mut self, call: &AdvanceCall) -> Result<usize, BackendError> {
        unsupported(self.backend(), "Advance", call)
    }

    /// Captures a program so that [`replay`](KernelDispatch::replay) can run all of it with one launch. Runs
    /// nothing. `None` if the backend cannot capture it or would not gain from it: the caller then runs the
    /// program itself.
    ///
    /// The addresses of the program must stay valid until [`release`](KernelDispatch::release); the data
    /// there may change between replays.
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        let _ = program;
        Ok(None)
    }

    /// Whether capturing a program costs no more than running it once, so that it pays even for a few runs.
    fn captures_for_free(&self) -> bool {
        false
    }

    /// Runs a captured program, as [`Program::run`] would, and returns the number of launches.
    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        Err(BackendError::Unsupported { backend: self.backend(), what: format!("the replay of {id:?}") })
    }

    /// As [`replay`](KernelDispatch::replay), unless `go_on`, which is called before each launch, returns
    /// false; then `None`.
    fn replay_while(
        &mut self,
        id: ReplayId,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<usize>, BackendError> {
        if go_on() { self.replay(id).map(Some) } else { Ok(None) }
    }

    /// The number of kernels and copies in a captured program, if known.
    fn captured_kernels(&self, id: ReplayId) -> Option<usize> {
        let _ = id;
        None
    }

    /// Runs a captured program as [`replay`](KernelDispatch::replay) does, waits for it, and returns the name
    /// and device time of each kernel, in order. `None`, without running anything, if the device has no
    /// timestamps.
    fn replay_timed(&mut self, id: ReplayId) -> Result<Option<Vec<KernelTime>>, BackendError> {
        let _ = id;
        Ok(None)
    }

    /// Releases a captured program. An unknown id is ignored.
    fn release(&mut self, id: ReplayId) {
        let _ = id;
    }

    /// The prefill chunk size: more rows at once would not be faster.
    fn prefill_chunk(&self) -> u32 {
        512
    }

    /// The fusions to plan graphs with for this backend.
    fn fusions(&self) -> Fusions {
        Fusions::all()
    }

    /// Runs two consecutive calls as one if the backend has a fused kernel for them; otherwise does nothing
    /// and returns `None`. All outputs of both calls are written.
    fn dispatch_pair(&mut self, first: &OpCall, second: &OpCall) -> Result<Option<usize>, BackendError> {
        let _ = (first, second);
        Ok(None)
    }

    /// Called before each call or pair of a program with the remaining calls, starting with that one, so that
    /// a backend can prepare later calls (for example prefetch what they read).
    fn look_ahead(&mut self, remaining: &[ProgramCall]) {
        let _ = remaining;
    }

    /// Waits until all launched work is done.
    fn synchronize(&mut self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Runs any call by the method for its op.
    fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
        match call {
            OpCall::Embed(call) => self.dispatch_embed(call),
            OpCall::MulMat(call) => self.dispatch_mul_mat(call),
            OpCall::GateUp(call) => self.dispatch_gate_up(call),
            OpCall::RmsNorm(call) => self.dispatch_rms_norm(call),
            OpCall::AddRmsNorm(call) => self.dispatch_add_rms_norm(call),
            OpCall::Add(call) => self.dispatch_add(call),
            OpCall::Mul(call) => self.dispatch_mul(call),
            OpCall::SwiGlu(call) => self.dispatch_swiglu(call),
            OpCall::Silu(call) => self.dispatch_silu(call),
            OpCall::Gelu(call) => self.dispatch_gelu(call),
            OpCall::GeluTanh(call) => self.dispatch_gelu_tanh(call),
            OpCall::Scale(call) => self.dispatch_scale(call),
            OpCall::SoftCap(call) => self.dispatch_softcap(call),
            OpCall::Rope(call) => self.dispatch_rope(call),
            OpCall::SoftMax(call) => self.dispatch_softmax(call),
            OpCall::Attention(call) => self.dispatch_attention(call),
            OpCall::KvStore(call) => self.dispatch_kv_store(call),
            OpCall::RopeStore(call) => self.dispatch_rope_store(call),
            OpCall::Copy(call) => self.dispatch_copy(call),
            OpCall::ArgMax(call) => self.dispatch_argmax(call),
            OpCall::Sample(call) => self.dispatch_sample(call),
            OpCall::Penalize(call) => self.dispatch_penalize(call),
            OpCall::Advance(call) => self.dispatch_advance(call),
        }
    }
}

fn unsupported(backend: &'static str, op: &str, call: &impl std::fmt::Debug) -> Result<usize, BackendError> {
    Err(BackendError::Unsupported { backend, what: format!("{op}: {call:?}") })
}
