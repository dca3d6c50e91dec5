//! Nodes of layers with a recurrent state.

use super::{Checked, Node};
use crate::Problem;
use crate::graph::checks::same;
use crate::graph::{CausalConvCall, GatedDeltaRuleCall, RecurrentState, SigmoidGateCall};

impl Node<'_> {
    fn recurrent(&self) -> Checked<RecurrentState> {
        self.params.recurrent.ok_or(Problem::Missing { what: "recurrent" })
    }

    pub(super) fn causal_conv(&self) -> Checked<CausalConvCall> {
        let (m, channels) = (self.m(), self.width());
        Ok(CausalConvCall {
            input: self.rows(0, "the input", channels, m)?,
            weight: self.params.weight_ptr,
            state: self.recurrent()?,
            positions: self.indices(1, "positions", m)?,
            sequences: self.optional_indices(2, "sequences", m)?,
            output: self.data_ptr,
            m,
            channels,
            taps: self.params.int_param,
            decode: false,
        })
    }

    pub(super) fn gated_delta_rule(&self) -> Checked<GatedDeltaRuleCall> {
        let (m, params) = (self.m(), &self.params);
        let heads = params.delta_heads.ok_or(Problem::Missing { what: "delta_heads" })?;
        heads.check()?;
        same("the output's width", heads.value_width(), self.width())?;
        same("bias_len", heads.n_v_heads, params.bias_len)?;
        Ok(GatedDeltaRuleCall {
            input: self.rows(0, "the input", heads.width(), m)?,
            alpha: self.rows(1, "alpha", heads.n_v_heads, m)?,
            beta: self.rows(2, "beta", heads.n_v_heads, m)?,
            decay: params.weight_ptr,
            dt: params.bias_ptr,
            state: self.recurrent()?,
            positions: self.indices(3, "positions", m)?,
            sequences: self.optional_indices(4, "sequences", m)?,
            output: self.data_ptr,
            m,
            heads,
            epsilon: params.scalar,
            decode: false,
            batch_invariant: false,
        })
    }

    pub(super) fn sigmoid_gate(&self) -> Checked<SigmoidGateCall> {
        let (m, n, gates) = (self.m(), self.width(), self.input(1)?.width());
        Ok(SigmoidGateCall {
            input: self.rows(0, "the input", n, m)?,
            gate: self.rows(1, "the gate", gates, m)?,
            output: self.data_ptr,
            m,
            n,
            gates,
        })
    }
}
