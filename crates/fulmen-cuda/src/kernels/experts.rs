//! Matmuls by expert id: which kernels run a call.
//!
//! - Up to [`GEMV_ROWS`] rows: a GEMV for each pair of a row and one of its experts (`expert_gemv.cu`).
//! - Up to eight pairs for each expert on average, and any number in batch-invariant mode: pairs are grouped
//!   by expert, with a GEMM for small groups (`expert_small_m.cu`). What it does not take, such as gate and
//!   up of different types, or long rows in little shared memory, runs by the GEMV up to
//!   [`GEMV_ROWS_ALONE`] rows.
//! - More: a GEMM for large groups (`expert_gemm.cu`).
//! - Weights that none of them takes: in f32, pair by pair (`expert_generic.cu`).
//!
//! What a pair gets from the GEMM for small groups and in f32 does not depend on the others, so these are
//! batch-invariant.

use fulmen_core::{ActivationForm, ExpertDownCall, ExpertGateUpCall, WeightArg};

use super::{Launched, expert_gemm, expert_gemv, expert_generic, expert_small_m};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::layout::kernel_args;
use crate::queue::Queue;

/// Rows up to which the GEMV is faster than the small-M GEMM.
const GEMV_ROWS: u32 = 2;

/// Rows up to which the GEMV runs what the small-M GEMM does not take, as long as there are not more than two
/// pairs for each expert, whose weights it reads for each of them.
const GEMV_ROWS_ALONE: u32 = 32;

const SWIGLU: u32 = 0;
const GEGLU: u32 = 1;
const CLAMPED_SWIGLU: u32 = 2;

/// Whether the GEMV comes before the small-M GEMM.
fn prefers_gemv(m: u32, batch_invariant: bool) -> bool {
    m <= GEMV_ROWS && !batch_invariant
}

/// Whether the GEMV comes behind the small-M GEMM, and before that for large groups.
fn prefers_gemv_to_groups(m: u32, top: u32, n_experts: u32, batch_invariant: bool) -> bool {
    m <= GEMV_ROWS_ALONE && m * top <= 2 * n_experts && !batch_invariant
}

kernel_args! {
    file: "experts.cuh";
    constants: [SWIGLU, GEGLU, CLAMPED_SWIGLU];

    #[derive(Debug)]
    pub(super) struct GatedActivation {
        kind: u32,
        alpha: f32,
        limit: f32,
        unused: u32,
    }
}

impl From<fulmen_core::GatedActivation> for GatedActivation {
    fn from(activation: fulmen_core::GatedActivation) -> GatedActivation {
        let (kind, alpha, limit) = match activation {
            fulmen_core::GatedActivation::SwiGlu => (SWIGLU, 0.0, 0.0),
            fulmen_core::GatedActivation::GeGlu => (GEGLU, 0.0, 0.0),
            fulmen_core::GatedActivation::ClampedSwiGlu { alpha, limit } => (CLAMPED_SWIGLU, alpha, limit),
        };
        GatedActivation { kind, alpha, limit, unused: 0 }
    }
}

/// What a projection of pairs writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum PairOutput {
    /// The projection itself.
    Plain,
    /// Its activation with the gate projections at this address.
    Gated(u64, fulmen_core::GatedActivation),
    /// Its product with the routing weights at this address.
    Weighted(u64),
}

/// One projection of every pair by the weight of its expert: `[pairs, n]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairProjection {
    pub(super) x: u64,
    /// Whether every pair has a row of x, not only every row of the batch.
    pub(super) x_by_pair: bool,
    pub(super) ids: u64,
    pub(super) weight: WeightArg,
    pub(super) bias: Option<u64>,
    pub(super) out: u64,
    pub(super) output: PairOutput,
    pub(super) m: u32,
    pub(super) k: u32,
    pub(super) top: u32,
    pub(super) n_experts: u32,
}

impl PairProjection {
    /// Rows of an expert's weight.
    pub(super) fn n(&self) -> u32 {
        self.weight.rows / self.n_experts
    }

    /// Addresses of the gates and of the routing weights, or 0, and the activation.
    pub(super) fn epilogue(&self) -> (u64, u64, GatedActivation) {
        let none = fulmen_core::GatedActivation::SwiGlu;
        match self.output {
            PairOutput::Plain => (0, 0, none.into()),
            PairOutput::Gated(gate, activation) => (gate, 0, activation.into()),
            PairOutput::Weighted(weights) => (0, weights, none.into()),
        }
    }
}

/// The forms in which a gate-up reads its activations.
pub(crate) fn accepted_forms_of_gate_up(caps: Caps, call: &ExpertGateUpCall) -> Vec<ActivationForm> {
    expert_gemv::accepted_forms_of_gate_up(caps, call)
}

/// The forms in which a down projection reads its activations.
pub(crate) fn accepted_forms_of_down(caps: Caps, call: &ExpertDownCall) -> Vec<ActivationForm> {
    expert_gemv::accepted_forms_of_down(caps, call)
}

/// Whether a gate-up can write its result in this form.
pub(crate) fn forwards(caps: Caps, call: &ExpertGateUpCall, activation: &ActivationForm) -> bool {
    expert_gemv::forwards(caps, call, activation)
}

pub(crate) fn launch_gate_up(queue: &mut Queue, call: &ExpertGateUpCall) -> Launched {
    launch_gate_up_planned(queue, call, &Forwarding::default())
}

/// Reads what was forwarded to the call, and forwards its output.
pub(crate) fn launch_gate_up_planned(
    queue: &mut Queue,
    call: &ExpertGateUpCall,
    forwarding: &Forwarding<'_>,
) -> Launched {
    if call.m == 0 || call.gate.rows == 0 {
        return Ok(0);
    }
    if prefers_gemv(call.m, call.batch_invariant)
        && let Some(launched) = expert_gemv::launch_gate_up(queue, call, forwarding)
    {
        return launched;
    }
    if let Some(launched) = expert_small_m::launch_gate_up(queue, call) {
        return launched;
    }
    if prefers_gemv_to_groups(call.m, call.top, call.n_experts, call.batch_invariant)
        && let Some(launched) = expert_gemv::launch_gate_up(queue, call, forwarding)
    {
        return launched;
    }
    let pairs = call.m as usize * call.top as usize;
    let gates = (pairs * call.n() as usize * 4).next_multiple_of(256);
    let grouped =
        !call.batch_invariant && expert_gemm::takes(call.gate.dtype) && expert_gemm::takes(call.up.dtype);
    let groups = expert_gemm::scratch_bytes(pairs, call.n_experts, call.m as usize, call.k);
    let scratch = queue.scratch(gates + groups)?;
    let up = PairProjection {
        x: call.input,
        x_by_pair: false,
        ids: call.ids,
        weight: call.up,
        bias: call.up_bias,
        out: call.output,
        output: PairOutput::Gated(scratch, call.activation),
        m: call.m,
        k: call.k,
        top: call.top,
        n_experts: call.n_experts,
    };
    let (weight, bias, output) = (call.gate, call.gate_bias, PairOutput::Plain);
    let gate = PairProjection { weight, bias, out: scratch, output, ..up };
    if grouped {
        return expert_gemm::launch(queue, &[gate, up], scratch + gates as u64);
    }
    Ok(expert_generic::launch(queue, &gate)? + expert_generic::launch(queue, &up)?)
}

pub(crate) fn launch_down(queue: &mut Queue, call: &ExpertDownCall) -> Launched {
    launch_down_planned(queue, call, &Forwarding::default())
}

/// Reads what was forwarded to the call.
pub(crate) fn launch_down_planned(
    queue: &mut Queue,
    call: &ExpertDownCall,
    forwarding: &Forwarding<'_>,
) -> Launched {
    if call.m == 0 || call.down.rows == 0 {
        return Ok(0);
    }
    if prefers_gemv(call.m, call.batch_invariant)
        && let Some(launched) = expert_gemv::launch_down(queue, call, forwarding)
    {
        return launched;
    }
    if let Some(launched) = expert_small_m::launch_down(queue, call) {
        return launched;
    }
    if prefers_gemv_to_groups(call.m, call.top, call.n_experts, call.batch_invariant)
        && let Some(launched) = expert_gemv::launch_down(queue, call, forwarding)
    {
        return launched;
    }
    let pairs = call.m as usize * call.top as usize;
    let results = (pairs * call.n() as usize * 4).next_multiple_of(256);
    let groups = expert_gemm::scratch_bytes(pairs, call.n_experts, pairs, call.k);
    let scratch = queue.scratch(results + groups)?;
    let down = PairProjection {
        x: call.input,
        x_by_pair: true,
        ids: call.ids,
        weight: call.down,
        bias: call.bias,
        out: scratch,
        output: PairOutput::Weighted(call.weights),
        m: call.m,
        k: call.k,
        top: call.top,
        n_experts: call.n_experts,
    };
    let grouped = !call.batch_invariant && expert_gemm::takes(call.down.dtype);
    let launched = match grouped {
        true => expert_gemm::launch(queue, &[down], scratch + results as u64)?,
        false => expert_generic::launch(queue, &down)?,
    };
    Ok(launched + expert_generic::launch_sum(queue, call, scratch)?)
}
