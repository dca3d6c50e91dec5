//! Recording of layers with a recurrent state: causal convolution, the gated delta rule, sigmoid gates.

use super::Role;
use super::build::{Built, GraphBuilder, Tensor, id_of};
use super::builder_call::BuilderCall;
use super::op::{Op, Slots};
use crate::graph::checks::epsilon;
use crate::graph::{check_gates, check_taps};
use crate::{DType, DeltaHeads};

/// The inputs of [`GraphBuilder::gated_delta_rule`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaInputs {
    /// Heads of q, of k and of v, `[m, width]`.
    pub qkv: Tensor,
    /// `[m, n_v_heads]`.
    pub alpha: Tensor,
    /// `[m, n_v_heads]`.
    pub beta: Tensor,
    /// `n_v_heads` rates of decay.
    pub decay: Tensor,
    /// `n_v_heads` values that are added to `alpha`.
    pub dt: Tensor,
}

/// The rows of an op with a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentRows {
    /// Their positions.
    pub positions: Tensor,
    /// The slots of their states, or [`NO_STATE`](crate::NO_STATE); all 0 if not given.
    pub sequences: Option<Tensor>,
    /// Whether hardly any two rows are of one sequence. Results do not depend on it; a backend may use it to
    /// choose kernels.
    pub decode: bool,
}

impl RecurrentRows {
    /// Rows that may be of any sequences.
    pub fn new(positions: Tensor, sequences: Option<Tensor>) -> RecurrentRows {
        RecurrentRows { positions, sequences, decode: false }
    }
}

impl BuilderCall<'_> {
    /// A recurrent state of so many values per sequence, and the slots of `m` rows in it.
    fn recurrent(&self, state: Tensor, width: u32, rows: RecurrentRows, m: u32) -> Built<Slots> {
        let RecurrentRows { positions, sequences, .. } = rows;
        self.state("the state", state)?;
        let (_, got) = self.rows("the state", state)?;
        self.size("the values of a sequence's state", width, got)?;
        self.indices("positions", positions, m)?;
        sequences.map_or(Ok(()), |sequences| self.indices("sequences", sequences, m))?;
        Ok(Slots { positions: positions.id(), sequences: id_of(sequences) })
    }
}

impl GraphBuilder {
    /// A state of `width` f32 values for each of `n_seqs` sequences.
    pub fn recurrent_state(&mut self, name: &str, n_seqs: u32, width: u32) -> Built<Tensor> {
        self.external("recurrent_state", name, Role::State, DType::F32, n_seqs, width)
    }

    /// Depthwise causal convolution of each channel over its last inputs, then SiLU. `weight` is
    /// `[channels, taps]`, the state has `(taps - 1) · channels` values per sequence.
    pub fn causal_conv(
        &mut self,
        x: Tensor,
        weight: Tensor,
        state: Tensor,
        rows: RecurrentRows,
    ) -> Built<Tensor> {
        let call = self.call("causal_conv");
        let (m, channels) = call.rows("the input", x)?;
        let (weights, taps) = call.rows("the weight", weight)?;
        call.size("the rows of the weight", channels, weights)?;
        call.check(check_taps(taps))?;
        let width = (taps - 1).saturating_mul(channels);
        let slots = call.recurrent(state, width, rows, m)?;
        let (state, decode) = (state.id(), rows.decode);
        let op = Op::CausalConv { x: x.id(), weight: weight.id(), state, slots, decode };
        Ok(self.emit(op, m, channels))
    }

    /// The gated delta rule: see [`GatedDeltaRuleCall`](crate::GatedDeltaRuleCall). Returns
    /// `[m, n_v_heads · head_dim]`.
    pub fn gated_delta_rule(
        &mut self,
        inputs: DeltaInputs,
        heads: DeltaHeads,
        eps: f32,
        state: Tensor,
        rows: RecurrentRows,
    ) -> Built<Tensor> {
        let call = self.call("gated_delta_rule");
        call.check(heads.check())?;
        let DeltaInputs { qkv, alpha, beta, decay, dt } = inputs;
        let (m, _) = call.rows("q, k and v", qkv)?;
        call.rows_of("q, k and v", qkv, m, heads.width())?;
        call.rows_of("alpha", alpha, m, heads.n_v_heads)?;
        call.rows_of("beta", beta, m, heads.n_v_heads)?;
        call.rows_of("the decay", decay, 1, heads.n_v_heads)?;
        call.rows_of("dt", dt, 1, heads.n_v_heads)?;
        let slots = call.recurrent(state, heads.state_width(), rows, m)?;
        let epsilon = call.check(epsilon(eps))?;
        let op = Op::GatedDeltaRule {
            qkv: qkv.id(),
            alpha: alpha.id(),
            beta: beta.id(),
            decay: decay.id(),
            dt: dt.id(),
            state: state.id(),
            slots,
            decode: rows.decode,
            heads,
            epsilon,
        };
        Ok(self.emit(op, m, heads.value_width()))
    }

    /// `x · sigmoid(gate)`. A gate narrower than `x` (by a whole factor) covers neighboring elements.
    pub fn sigmoid_gate(&mut self, x: Tensor, gate: Tensor) -> Built<Tensor> {
        let call = self.call("sigmoid_gate");
        let (m, n) = call.rows("the input", x)?;
        let (rows, gates) = call.rows("the gate", gate)?;
        call.size("the rows of the gate", m, rows)?;
        call.check(check_gates(n, gates))?;
        Ok(self.emit(Op::SigmoidGate { x: x.id(), gate: gate.id() }, m, n))
    }
}
