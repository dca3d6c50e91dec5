//! Forwarded activations: the forms that kernels exchange beside f32, what the plan of a program asks about
//! them, and the launches of planned calls.
//!
//! A matmul in decode reads its activations quantized to 8 bits (one row) or packed in f16, as fragments (2
//! to 32 rows) or panels (up to 256). The kernel that computes them writes that form as well, and the matmul
//! then needs no conversion. A norm before such a matmul is computed by it: by the GEMV, by the kernel that
//! packs activations, or, with fragments that a GEMM has multiplied by the gain, from the sums of squares
//! beside them. A norm behind a mixed-input GEMM is computed by that GEMM's reduction.
//!
//! All functions but [`launch`] are answers for a plan: they depend on the calls and the device's
//! capabilities only.

use fulmen_core::{ActivationForm, Extent, Form, FormOperand, Forwarded, OpCall, ProgramCall};

use crate::device::Caps;
use crate::kernels::delta_net_step::DeltaNetStep;
use crate::kernels::router::Router;
use crate::kernels::{Launched, attention, attention_decode, experts, matmul, rms_norm, small_m};
use crate::l2_prefetch::L2Prefetch;
use crate::queue::Queue;

/// The forms of this backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormKind {
    /// One row quantized to q8.
    Q8,
    /// The activations of a row's experts quantized to q8, slot by slot. The operand is their ids.
    ExpertQ8,
    /// Rows in f16, each scaled by a factor of its own.
    ScaledF16,
    /// The same as panels, in a set of their orders (bits).
    ScaledPanels(u32),
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
            FormKind::ExpertQ8 => (3, "q8 activations of experts"),
            FormKind::ScaledPanels(orders) => (4 + orders, "scaled f16 panels"),
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

/// The router that these calls are: a norm, or none, the logits and the selection.
fn router(caps: Caps, calls: &[ProgramCall]) -> Option<Router<'_>> {
    let (norm, calls) = match calls {
        [first, rest @ ..] => match &first.call {
            OpCall::RmsNorm(norm) => (Some(norm), rest),
            _ => (None, calls),
        },
        [] => return None,
    };
    let [logits, route, ..] = calls else { return None };
    match (&logits.call, &route.call) {
        (OpCall::MulMat(logits), OpCall::Route(route)) => Router::new(caps, norm, logits, route),
        _ => None,
    }
}

/// The step of a gated delta net that these calls may be.
fn delta_net_step(calls: &[ProgramCall]) -> Option<DeltaNetStep<'_>> {
    let [conv, rule, norm, gate, ..] = calls else { return None };
    match (&conv.call, &rule.call, &norm.call, &gate.call) {
        (
            OpCall::CausalConv(conv),
            OpCall::GatedDeltaRule(rule),
            OpCall::RmsNorm(norm),
            OpCall::SwiGlu(gate),
        ) => Some(DeltaNetStep { conv, rule, norm, gate }),
        _ => None,
    }
}

/// How many of the next calls run as one: a norm with the matmul of its result, and with the selection of
/// experts if that matmul is a router, or with the addition of its result to the residual stream (post-norm);
/// a matmul with the norm of its result; RoPE and KV store with the attention over that cache; the calls of a
/// gated delta net. That attention and the delta net read their cache or state before the previous kernels
/// have finished, so none of them may be writing it.
pub(crate) fn fused_calls(caps: Caps, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
    let [first, second, ..] = next else { return 1 };
    // Whether calls run as one depends on the number of rows. A delta net ends with a matmul.
    if next.iter().take(5).any(|step| step.call.batch_invariant()) {
        return 1;
    }
    if delta_net_step(next).is_some_and(|step| step.is_taken(caps, unfinished)) {
        return 4;
    }
    if router(caps, next).is_some() {
        return if matches!(first.call, OpCall::RmsNorm(_)) { 3 } else { 2 };
    }
    let fused = match (&first.call, &second.call) {
        (OpCall::RmsNorm(norm), OpCall::MulMat(call)) => {
            norm.feeds(call.input, call.m, call.k) && small_m::may_take(caps, call, Some(norm))
        }
        (OpCall::RmsNorm(norm), OpCall::GateUp(call)) => {
            norm.feeds(call.input, call.m, call.k) && small_m::may_take_gate_up(caps, call, Some(norm))
        }
        (OpCall::MulMat(call), OpCall::RmsNorm(norm)) => small_m::norms_result(caps, call, norm),
        (OpCall::RmsNorm(norm), OpCall::Add(add)) => rms_norm::fuses_add(norm, add),
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

/// The forms of its input that a matmul in decode reads.
pub(crate) fn accepted_forms(caps: Caps, calls: &[ProgramCall]) -> Vec<ActivationForm> {
    if calls.iter().any(|step| step.call.batch_invariant()) {
        return Vec::new();
    }
    match calls {
        [step] => match &step.call {
            OpCall::MulMat(call) => small_m::accepted_forms(caps, call, None),
            OpCall::GateUp(call) => small_m::accepted_forms_of_gate_up(caps, call, None),
            OpCall::ExpertGateUp(call) => experts::accepted_forms_of_gate_up(caps, call),
            OpCall::ExpertDown(call) => experts::accepted_forms_of_down(caps, call),
            _ => Vec::new(),
        },
        [first, second] => match (&first.call, &second.call) {
            (OpCall::RmsNorm(norm), OpCall::MulMat(call)) => small_m::accepted_forms(caps, call, Some(norm)),
            (OpCall::RmsNorm(norm), OpCall::GateUp(call)) => {
                small_m::accepted_forms_of_gate_up(caps, call, Some(norm))
            }
            (OpCall::MulMat(call), OpCall::RmsNorm(_)) => small_m::accepted_forms(caps, call, None),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Whether the last of the calls, an attention, a matmul in decode or the norm of one's result, can write
/// its output in this form, or a router the result of its norm.
pub(crate) fn forwards(caps: Caps, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
    if let Some(router) = router(caps, calls) {
        return router.forwards(activation);
    }
    if let Some(step) = delta_net_step(calls) {
        return step.forwards(activation);
    }
    let Some((last, before)) = calls.split_last() else { return false };
    if let ([first], OpCall::RmsNorm(norm)) = (before, &last.call) {
        let OpCall::MulMat(call) = &first.call else { return false };
        return small_m::forwards_normed(caps, call, norm, activation);
    }
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
        OpCall::ExpertGateUp(call) => experts::forwards(caps, call, activation),
        _ => false,
    }
}

/// Whether a matmul can prefetch the KV cache for the attention after `next`.
pub(crate) fn prefetches(caps: Caps, calls: &[ProgramCall], next: &OpCall) -> bool {
    let matmul = calls.last().is_some_and(|step| matches!(step.call, OpCall::MulMat(_) | OpCall::GateUp(_)));
    matmul && prefetch_for(caps, next).is_some()
}

/// The prefetch for the first of the next calls, which stores to a cache. Nothing is prefetched if the
/// attention after it has a sliding window or chunks: the first positions would be the wrong ones.
pub(crate) fn prefetch(caps: Caps, next: &[ProgramCall]) -> Option<L2Prefetch> {
    let is_limited = next
        .iter()
        .take(2)
        .any(|step| matches!(&step.call, OpCall::Attention(call) if call.scores().most_visible().is_some()));
    next.first().filter(|_| !is_limited).and_then(|step| prefetch_for(caps, &step.call))
}

/// The prefetch of the cache that a call stores to.
fn prefetch_for(caps: Caps, next: &OpCall) -> Option<L2Prefetch> {
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
    if let Some(router) = router(queue.caps(), calls) {
        return Some(router.launch(queue, forwarding));
    }
    if let Some(step) = delta_net_step(calls) {
        return Some(step.launch(queue, forwarding));
    }
    match calls {
        [step] => match &step.call {
            OpCall::MulMat(call) => Some(matmul::launch_planned(queue, call, forwarding)),
            OpCall::GateUp(call) => Some(matmul::launch_gate_up_planned(queue, call, forwarding)),
            OpCall::Attention(call) => Some(attention::launch_planned(queue, call, forwarding)),
            OpCall::ExpertGateUp(call) => Some(experts::launch_gate_up_planned(queue, call, forwarding)),
            OpCall::ExpertDown(call) => Some(experts::launch_down_planned(queue, call, forwarding)),
            _ => None,
        },
        [first, second] => match (&first.call, &second.call) {
            (OpCall::RmsNorm(norm), OpCall::MulMat(call)) => {
                small_m::launch(queue, call, Some(norm), forwarding)
            }
            (OpCall::RmsNorm(norm), OpCall::GateUp(call)) => {
                small_m::launch_gate_up(queue, call, Some(norm), forwarding)
            }
            (OpCall::MulMat(call), OpCall::RmsNorm(norm)) => {
                small_m::launch_with_norm(queue, call, norm, forwarding)
            }
            (OpCall::RmsNorm(norm), OpCall::Add(add)) => rms_norm::launch_then_add(queue, norm, add),
            (OpCall::RopeStore(store), OpCall::Attention(call)) => {
                attention_decode::launch_with_store(queue, store, call, forwarding)
            }
            _ => None,
        },
        _ => None,
    }
}
