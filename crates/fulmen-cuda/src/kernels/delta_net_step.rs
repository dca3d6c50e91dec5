//! A gated delta net in a decode step: convolution, delta rule, norm per head and gate in one kernel
//! (`delta_net_step.cu`).

use fulmen_core::{ActivationForm, BinaryCall, CausalConvCall, Extent, GatedDeltaRuleCall, RmsNormCall};

use super::delta_heads::DeltaHeads;
use super::recurrent::StateRows;
use super::{Launched, apart, q8_activations};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// The largest head.
const MAX_HEAD: u32 = 128;
/// Inputs that the convolution combines.
const TAPS: u32 = 4;
const THREADS: u32 = 512;

kernel_args! {
    file: "delta_net_step.cu";
    constants: [MAX_HEAD, TAPS, THREADS];

    struct DeltaNetStepArgs {
        x: DevicePtr,
        conv_weight: DevicePtr,
        conv_state: DevicePtr,
        conv_out: DevicePtr,
        alpha: DevicePtr,
        beta: DevicePtr,
        decay: DevicePtr,
        dt: DevicePtr,
        state: DevicePtr,
        delta_out: DevicePtr,
        gamma: DevicePtr,
        normed: DevicePtr,
        z: DevicePtr,
        out: DevicePtr,
        out_q8: DevicePtr,
        rows: StateRows,
        heads: DeltaHeads,
        epsilon: f32,
        norm_epsilon: f32,
    }
}

/// The most rows: more of them are a prompt, for which the calls have kernels of their own.
const MAX_ROWS: u32 = 32;

/// The largest cluster that every device with clusters has.
const MAX_CLUSTER: u32 = 8;

/// The calls that one kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNetStep<'a> {
    pub(crate) conv: &'a CausalConvCall,
    pub(crate) rule: &'a GatedDeltaRuleCall,
    pub(crate) norm: &'a RmsNormCall,
    /// `silu(z)` times the norm's result.
    pub(crate) gate: &'a BinaryCall,
}

impl DeltaNetStep<'_> {
    /// Whether the calls follow from each other and the kernel takes them. It reads the states before
    /// previous kernels have finished, so none of them may be writing those.
    pub(crate) fn is_taken(&self, caps: Caps, unfinished: &[Extent]) -> bool {
        let DeltaNetStep { conv, rule, norm, gate } = *self;
        let (heads, m) = (rule.heads, conv.m);
        let values = m as usize * heads.value_width() as usize;
        let chained = rule.input == conv.output
            && (rule.m, rule.positions, rule.sequences) == (m, conv.positions, conv.sequences)
            && conv.channels == heads.width()
            && conv.state.n_seqs == rule.state.n_seqs
            && norm.input == rule.output
            && norm.width == heads.head_dim
            && norm.rows as usize * norm.width as usize == values
            && gate.b == norm.output
            && gate.n_elements == values;
        let state = |ptr: u64, width: usize| {
            let bytes = (rule.state.n_seqs as usize).saturating_mul(width).saturating_mul(4);
            Extent { what: "the state", ptr, bytes }
        };
        let states =
            [state(conv.state.ptr, conv.state_width()), state(rule.state.ptr, heads.state_width() as usize)];
        let states_are_finished =
            states.iter().all(|state| unfinished.iter().all(|other| !state.overlaps(*other)));
        chained
            && caps.has_clusters()
            && (1..=MAX_ROWS).contains(&m)
            && conv.taps == TAPS
            && heads.head_dim <= MAX_HEAD
            && heads.n_v_heads / heads.n_k_heads <= MAX_CLUSTER
            && self.is_apart()
            && states_are_finished
    }

    /// Bytes of all heads of all rows.
    fn output_bytes(&self) -> u64 {
        u64::from(self.conv.m) * u64::from(self.rule.heads.value_width()) * 4
    }

    fn conv_bytes(&self) -> u64 {
        u64::from(self.conv.m) * u64::from(self.conv.channels) * 4
    }

    /// Whether what blocks write does not overlap what others still read. z and the outputs of a head are
    /// read and written element by element.
    fn is_apart(&self) -> bool {
        let DeltaNetStep { conv, rule, norm, gate } = *self;
        let (conv_bytes, out_bytes) = (self.conv_bytes(), self.output_bytes());
        let gates = u64::from(conv.m) * u64::from(rule.heads.n_v_heads) * 4;
        let read = [(conv.input, conv_bytes), (rule.alpha, gates), (rule.beta, gates)];
        let outputs = [rule.output, norm.output, gate.output].map(|ptr| (ptr, out_bytes));
        let same_or_apart = |a: u64, b: u64| a == b || apart((a, out_bytes), (b, out_bytes));
        read.iter().all(|&read| {
            apart(read, (conv.output, conv_bytes)) && outputs.iter().all(|&out| apart(read, out))
        }) && outputs.iter().all(|&(out, _)| same_or_apart(out, gate.a))
            && same_or_apart(norm.output, rule.output)
            && same_or_apart(gate.output, rule.output)
            && same_or_apart(gate.output, norm.output)
            && apart((conv.output, conv_bytes), (gate.a, out_bytes))
    }

    /// The form in which the result may be forwarded: q8 activations of one row.
    fn q8_form(&self) -> Option<ActivationForm> {
        let width = self.rule.heads.value_width();
        let whole = self.rule.heads.head_dim.is_multiple_of(32) && q8_activations::can_forward(width);
        (self.conv.m == 1 && whole).then(|| q8_activations::form(self.gate.output, width))
    }

    pub(crate) fn forwards(&self, activation: &ActivationForm) -> bool {
        self.q8_form() == Some(*activation)
    }

    pub(crate) fn launch(&self, queue: &mut Queue, forwarding: &Forwarding<'_>) -> Launched {
        let DeltaNetStep { conv, rule, norm, gate } = *self;
        let heads = rule.heads;
        let rows = StateRows::new(queue, conv.state, conv.positions, conv.sequences, conv.m);
        let starts = queue.rows("delta_net_step", rows.starts())?;
        // A result whose memory a later one takes is not needed behind these calls.
        let kept = |(ptr, bytes): (u64, u64), later: &[u64]| {
            let free = later.iter().all(|&other| apart((ptr, bytes), (other, self.output_bytes())));
            if free { ptr } else { 0 }
        };
        let args = DeltaNetStepArgs {
            x: conv.input,
            conv_weight: conv.weight,
            conv_state: conv.state.ptr,
            conv_out: kept((conv.output, self.conv_bytes()), &[rule.output, norm.output, gate.output]),
            alpha: rule.alpha,
            beta: rule.beta,
            decay: rule.decay,
            dt: rule.dt,
            state: rule.state.ptr,
            delta_out: kept((rule.output, self.output_bytes()), &[norm.output, gate.output]),
            gamma: norm.gamma,
            normed: kept((norm.output, self.output_bytes()), &[gate.output]),
            z: gate.a,
            out: gate.output,
            out_q8: self.q8_form().and_then(|form| forwarding.output(&form)).unwrap_or(0),
            rows,
            heads: heads.into(),
            epsilon: rule.epsilon,
            norm_epsilon: norm.epsilon,
        };
        let cluster = heads.n_v_heads / heads.n_k_heads;
        let launch = Launch::new("delta_net_step", "delta_net_step", heads.n_v_heads, THREADS).rows(starts);
        queue.launch(&Launch { cluster, ..launch }, &args)?;
        Ok(1)
    }
}
