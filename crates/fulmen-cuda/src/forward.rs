//! Forwarded activations: the forms that kernels exchange beside f32, what the plan of a program asks about
//! them, and the launches of planned calls.
//!
//! A matmul of few rows reads its activations quantized to 8 bits (up to 8 rows) or packed in f16 (16 rows).
//! The kernel that computes them writes that form as well, and the matmul then needs no conversion. A norm
//! before such a matmul is computed by it: by the GEMV and the int8 GEMM, by the kernel that packs
//! activations, or, with fragments that a GEMM has multiplied by the gain, from the sums of squares beside
//! them.
//!
//! All functions but [`launch`] are answers for a plan: they depend on the calls and the device's
//! capabilities only.

use fulmen_core::{ActivationForm, Extent, Form, FormOperand, Forwarded, OpCall, ProgramCall};

use crate::device::Caps;
use crate::kernels::{Launched, attention, attention_decode, matmul, small_m};
use crate::l2_prefetch::L2Prefetch;
use crate::queue::Queue;

/// The forms of this backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormKind {
    /// One row quantized to q8.
    Q8,
    /// 2 to 8 rows quantized to q8, as MMA fragments.
    Q8Rows,
    /// Rows in f16, each scaled by a factor of its own.
    ScaledF16,
    /// Rows in f16 as a matmul has computed them, not scaled, but multiplied by the gain of a norm if the
    /// form has an operand.
    MatmulF16,
}

impl FormKind {
    /// The form of an activation at `ptr` that takes this many bytes.
    pub(crate) fn of(
        self,
        ptr: u64,
        [rows, width]: [u32; 2],
        bytes: usize,
        gamma: Option<u64>,
    ) -> ActivationForm {
        let (id, name) = match self {
            FormKind::Q8 => (0, "q8 activations"),
            FormKind::ScaledF16 => (1, "scaled f16 fragments"),
            FormKind::MatmulF16 => (2, "f16 fragments of a matmul"),
            FormKind::Q8Rows => (3, "q8 rows"),
        };
        let operand = gamma.map(|ptr| FormOperand { ptr, bytes: width as usize * 4 });
        ActivationForm { ptr, rows, width, form: Form { id, name, bytes, operand } }
    }
}

/// What a call exchanges with others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forwarding<'a> {
    pub(crate) inputs: &'a [Forwarded],
    pub(crate) outputs: &'a [Forwarded],
    pub(crate) prefetch: Option<L2Prefetch>,
}

impl Forwarding<'_> {
    /// Where the activation lies, if it was forwarded.
    pub(crate) fn input(&self, activation: &ActivationForm) -> Option<u64> {
        address(self.inputs, activation)
    }

    /// Where the activation is to be written, if it is to be forwarded.
    pub(crate) fn output(&self, activation: &ActivationForm) -> Option<u64> {
        address(self.outputs, activation)
    }
}

fn address(forwarded: &[Forwarded], activation: &ActivationForm) -> Option<u64> {
    forwarded.iter().find(|forwarded| forwarded.activation == *activation).map(|forwarded| forwarded.ptr)
}

/// How many of the next calls run as one: a norm with the matmul of its result, and RoPE and KV store with
/// the attention over that cache. That attention reads the cache before the previous kernels have finished,
/// so none of them may be writing it.
pub(crate) fn fused_calls(caps: Caps, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
    let [first, second, ..] = next else { return 1 };
    let fused = match (&first.call, &second.call) {
        (OpCall::RmsNorm(norm), OpCall::MulMat(call)) => {
            norm.feeds(call.input, call.m, call.k) && small_m::may_take(caps, call, Some(norm))
        }
        (OpCall::RmsNorm(norm), OpCall::GateUp(call)) => {
            norm.feeds(call.input, call.m, call.k) && small_m::may_take_gate_up(caps, call, Some(norm))
        }
        (OpCall::RopeStore(store), OpCall::Attention(call)) => {
            let cache = OpCall::KvStore(store.store.clone()).writes();
            attention_decode::fuses_store(caps, store, call)
                && !cache.iter().any(|range| unfinished.iter().any(|other| range.overlaps(*other)))
        }
        _ => false,
    };
    if fused { 2 } else { 1 }
}

/// Whether all kernels up to this call's have finished when a later one starts: `advance.cu` waits for all
/// previous kernels, and no kernel starts before it is done. Without overlap that is so for every kernel.
pub(crate) fn drains(overlaps: bool, call: &OpCall) -> bool {
    !overlaps || matches!(call, OpCall::Advance(call) if call.m > 0)
}

/// The forms of its input that a matmul of few rows reads.
pub(crate) fn accepted_forms(caps: Caps, calls: &[ProgramCall]) -> Vec<ActivationForm> {
    match calls {
        [step] => match &step.call {
            OpCall::MulMat(call) => small_m::accepted_forms(caps, call, None),
            OpCall::GateUp(call) => small_m::accepted_forms_of_gate_up(caps, call, None),
            _ => Vec::new(),
        },
        [first, second] => match (&first.call, &second.call) {
            (OpCall::RmsNorm(norm), OpCall::MulMat(call)) => small_m::accepted_forms(caps, call, Some(norm)),
            (OpCall::RmsNorm(norm), OpCall::GateUp(call)) => {
                small_m::accepted_forms_of_gate_up(caps, call, Some(norm))
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Whether the last of the calls, an attention or a matmul of few rows, can write its output in this form.
pub(crate) fn forwards(caps: Caps, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
    let Some((last, before)) = calls.split_last() else { return false };
    let norm = match before {
        [] => None,
        [step] => match &step.call {
            OpCall::RmsNorm(norm) => Some(norm),
            _ => None,
        },
        _ => return false,
    };
    match &last.call {
        OpCall::MulMat(call) => small_m::forwards(caps, call, norm, activation),
        OpCall::GateUp(call) => small_m::forwards_gate_up(caps, call, norm, activation),
        OpCall::Attention(call) => attention_decode::forwards(caps, call, activation),
        _ => false,
    }
}

/// Whether a matmul can prefetch the KV cache for the attention after `next`.
pub(crate) fn prefetches(caps: Caps, calls: &[ProgramCall], next: &OpCall) -> bool {
    let matmul = calls.last().is_some_and(|step| matches!(step.call, OpCall::MulMat(_) | OpCall::GateUp(_)));
    matmul && prefetch(caps, next).is_some()
}

/// The prefetch of the cache that a call stores to.
pub(crate) fn prefetch(caps: Caps, next: &OpCall) -> Option<L2Prefetch> {
    match next {
        OpCall::RopeStore(store) => L2Prefetch::new(caps, store),
        _ => None,
    }
}

/// Launches calls that exchange activations or run as one. `None` if they are to run one by one.
pub(crate) fn launch(
    queue: &mut Queue,
    calls: &[ProgramCall],
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    match calls {
        [step] => match &step.call {
            OpCall::MulMat(call) => Some(matmul::launch_planned(queue, call, forwarding)),
            OpCall::GateUp(call) => Some(matmul::launch_gate_up_planned(queue, call, forwarding)),
            OpCall::Attention(call) => Some(attention::launch_planned(queue, call, forwarding)),
            _ => None,
        },
        [first, second] => match (&first.call, &second.call) {
            (OpCall::RmsNorm(norm), OpCall::MulMat(call)) => {
                small_m::launch(queue, call, Some(norm), forwarding)
            }
            (OpCall::RmsNorm(norm), OpCall::GateUp(call)) => {
                small_m::launch_gate_up(queue, call, Some(norm), forwarding)
            }
            (OpCall::RopeStore(store), OpCall::Attention(call)) => {
                attention_decode::launch_with_store(queue, store, call, forwarding)
            }
            _ => None,
        },
        _ => None,
    }
}
