//! Hybrid models: layers with a gated delta net in place of attention, and attention with an output gate in
//! every few layers.
//!
//! ```text
//!  h ─┬─ attn_qkv ─► conv (state) ─► q k v ─┐
//!     ├─ ssm_alpha, ssm_beta ──────────────►├─► delta rule (state) ─► norm per head ─► · silu(z) ─► ssm_out
//!     └─ attn_gate ─► z ────────────────────┴───────────────────────────────────────────▲
//! ```
//!
//! A state has the same size whatever the sequence's length: the last inputs of the convolution, and a matrix
//! per value head. The rows of a mixed step say in which slot their state lies.

use fulmen_core::{
    AttentionRows, DeltaHeads, DeltaInputs, KeyHeadOrder, MAX_CONV_TAPS, MAX_DELTA_HEAD, RecurrentRows,
    Tensor,
};

use super::config::Keys;
use super::experts::ExpertLayer;
use super::placement::Stage;
use super::record::{Bias, Layer, RowStates};
use super::split::Parts;
use super::{Config, names};
use crate::error::ModelError;

/// The gated delta net of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of the delta rule.
    pub heads: DeltaHeads,
    /// Inputs that the convolution combines.
    pub taps: u32,
    /// Of so many layers, the last one has attention, and the others the delta net.
    pub attention_interval: u32,
}

impl DeltaNet {
    /// Reads and checks its keys. `order` is that of the architecture's files.
    pub(super) fn read(keys: &Keys<'_>, order: KeyHeadOrder, layers: u32) -> Result<DeltaNet, ModelError> {
        const INTERVAL: &str = "full_attention_interval";
        const PATTERN: &str = "attention.recurrent_layers";
        if keys.has(PATTERN) {
            let expected = "absent (layers that do not follow full_attention_interval are not supported)";
            return Err(keys.wrong(PATTERN, expected, "set"));
        }
        let attention_interval = match keys.opt_u32(INTERVAL)? {
            Some(_) => keys.within(INTERVAL, 1 << 10)?,
            None => 4,
        };
        if attention_interval > layers {
            let expected =
                format!("at most the {layers} layers (a model without attention is not supported)");
            return Err(keys.wrong(INTERVAL, expected, attention_interval));
        }
        let taps = keys.within("ssm.conv_kernel", MAX_CONV_TAPS)?;
        if taps < 2 {
            return Err(keys.wrong("ssm.conv_kernel", format!("from 2 to {MAX_CONV_TAPS}"), taps));
        }
        let head_dim = keys.within("ssm.state_size", MAX_DELTA_HEAD)?;
        let n_v_heads = keys.within("ssm.time_step_rank", 1 << 10)?;
        let n_k_heads = keys.within("ssm.group_count", n_v_heads)?;
        if !n_v_heads.is_multiple_of(n_k_heads) {
            let expected = format!("a divisor of the {n_v_heads} value heads (ssm.time_step_rank)");
            return Err(keys.wrong("ssm.group_count", expected, n_k_heads));
        }
        let inner = keys.u32("ssm.inner_size")?;
        if inner != n_v_heads * head_dim {
            let expected = format!("{n_v_heads} value heads of {head_dim}");
            return Err(keys.wrong("ssm.inner_size", expected, inner));
        }
        let heads = DeltaHeads { n_k_heads, n_v_heads, head_dim, order };
        Ok(DeltaNet { heads, taps, attention_interval })
    }

    /// f32 values of a sequence's states in a layer: of the convolution, of the delta rule.
    pub fn state_widths(&self) -> [u32; 2] {
        [(self.taps - 1).saturating_mul(self.heads.width()), self.heads.state_width()]
    }
}

impl Config {
    /// Whether a layer has a recurrent state in place of a KV cache.
    pub fn is_recurrent(&self, layer: u32) -> bool {
        self.delta_net.is_some_and(|net| !(layer + 1).is_multiple_of(net.attention_interval))
    }

    /// The layers of a stage that have a KV cache of their own.
    pub fn cached_layers(&self, stage: Stage) -> impl Iterator<Item = u32> {
        stage.layers().filter(|&layer| !self.is_recurrent(layer) && self.cache_layer(layer) == layer)
    }

    /// The recurrent states of a stage: their names, and the f32 values of a sequence in each.
    pub fn recurrent_states(&self, stage: Stage) -> Vec<(String, u32)> {
        let Some(net) = self.delta_net else { return Vec::new() };
        let layers = stage.layers().filter(|&layer| self.is_recurrent(layer));
        let states = |layer| names::states(layer).into_iter().zip(net.state_widths());
        layers.flat_map(states).collect()
    }

    /// Bytes of the recurrent states of one sequence in a stage.
    pub fn state_bytes(&self, stage: Stage) -> u64 {
        self.recurrent_states(stage).iter().map(|(_, values)| 4 * u64::from(*values)).sum()
    }
}

impl Layer<'_, '_> {
    /// The gated delta net of a layer, without the residual. Input and output are `[rows, hidden]`.
    pub(super) fn delta_net(&mut self, h: Tensor) -> Result<Tensor, ModelError> {
        let Some(net) = self.recorder.config.delta_net else {
            return Err(ModelError::Without { what: "delta net in this model" });
        };
        let DeltaNet { heads, taps, .. } = net;
        let (hidden, n_v_heads) = (self.hidden(), heads.n_v_heads);
        let qkv = self.linear(h, "attn_qkv", heads.width(), Bias::None)?;
        let z = self.linear(h, "attn_gate", heads.value_width(), Bias::None)?;
        let beta = self.linear(h, "ssm_beta", n_v_heads, Bias::None)?;
        let alpha = self.linear(h, "ssm_alpha", n_v_heads, Bias::None)?;
        let weight = self.recorder.vectors(&self.name("ssm_conv1d", "weight"), heads.width(), taps)?;
        let dt = self.recorder.vector(&self.name("ssm_dt", "bias"), n_v_heads)?;
        let decay = self.recorder.vector(&format!("blk.{}.ssm_a", self.number), n_v_heads)?;
        let [conv_state, delta_state] = names::states(self.number);
        let [conv_width, delta_width] = net.state_widths();
        let RowStates { rows: sequences, slots } = self.states;
        let decode = matches!(self.rows, AttentionRows::Decode);
        let rows = RecurrentRows { positions: self.positions, sequences, decode };
        let (b, epsilon) = (&mut self.recorder.builder, self.recorder.config.epsilon);
        let conv_state = b.recurrent_state(&conv_state, slots, conv_width)?;
        let qkv = b.causal_conv(qkv, weight, conv_state, rows)?;
        let delta_state = b.recurrent_state(&delta_state, slots, delta_width)?;
        let inputs = DeltaInputs { qkv, alpha, beta, decay, dt };
        let y = b.gated_delta_rule(inputs, heads, epsilon, delta_state, rows)?;
        // The norm of each head, gated by silu(z).
        let gain = self.recorder.vector(&self.name("ssm_norm", "weight"), heads.head_dim)?;
        let b = &mut self.recorder.builder;
        let y = b.rms_norm(y, gain, epsilon)?;
        let z = b.silu(z)?;
        let y = b.mul(z, y)?;
        self.linear(y, "ssm_out", hidden, Bias::None)
    }

    /// Attention with norms of the query and key heads and a sigmoid gate on its output, without the
    /// residual.
    pub(super) fn gated_attention(&mut self, h: Tensor) -> Result<Tensor, ModelError> {
        let heads = self.heads();
        let q = self.linear(h, "attn_q", heads.q_width(), Bias::None)?;
        let gate = self.linear(h, "attn_q_gate", heads.q_width(), Bias::None)?;
        let k = self.linear(h, "attn_k", heads.kv_width(), Bias::None)?;
        let v = self.linear(h, "attn_v", heads.kv_width(), Bias::None)?;
        let (q, k) = (self.head_norm(q, "attn_q_norm")?, self.head_norm(k, "attn_k_norm")?);
        let (q, k) = (self.rope(q)?, self.rope(k)?);
        let attended = self.attention(q, k, v)?;
        let gated = self.recorder.builder.sigmoid_gate(attended, gate)?;
        self.linear(gated, "attn_output", self.hidden(), Bias::None)
    }

    /// The mixture of experts, and a shared expert with a sigmoid gate per row.
    pub(super) fn experts_and_gated_shared(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        let routed = self.experts(x, ExpertLayer::PLAIN)?;
        let inner = self.recorder.config.experts.map_or(0, |experts| experts.shared_inner);
        let shared = self.gated(x, ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], inner)?;
        let gate = self.recorder.vector(&self.name("ffn_gate_inp_shexp", "weight"), self.hidden())?;
        let b = &mut self.recorder.builder;
        let gate = b.mul_mat(x, gate)?;
        let shared = b.sigmoid_gate(shared, gate)?;
        Ok(b.add(routed, shared)?)
    }
}

/// The rows of the tensors of an architecture that hold several weights: the names of the weights, and for
/// each the ranges of its rows, in their order. `None` for other tensors.
pub(super) fn parts(config: &Config, name: &str) -> Option<Parts> {
    let DeltaHeads { n_k_heads, n_v_heads, head_dim, .. } = config.delta_net?.heads;
    let (keys, d) = (n_k_heads as usize, head_dim as usize);
    let group = n_v_heads as usize / keys;
    // Rows `[first, len]` of each of `n` blocks of `block` rows.
    let each = |n: usize, block: usize, first: usize, len: usize| {
        (0..n).map(move |at| [at * block + first, len]).collect::<Vec<_>>()
    };
    match name {
        // Query and gate of each head.
        "attn_q" => {
            let (n, d) = (config.heads.n_heads as usize, config.heads.head_dim as usize);
            Some(vec![("attn_q", each(n, 2 * d, 0, d)), ("attn_q_gate", each(n, 2 * d, d, d))])
        }
        // Betas and alphas of each key head's value heads.
        "ssm_ba" => Some(vec![
            ("ssm_beta", each(keys, 2 * group, 0, group)),
            ("ssm_alpha", each(keys, 2 * group, group, group)),
        ]),
        // q, k, v and z of each key head.
        "ssm_in" => {
            let (block, v) = (2 * d + 2 * group * d, group * d);
            let (q, k) = (each(keys, block, 0, d), each(keys, block, d, d));
            let qkv = [q, k, each(keys, block, 2 * d, v)].concat();
            Some(vec![("attn_qkv", qkv), ("attn_gate", each(keys, block, 2 * d + v, v))])
        }
        _ => None,
    }
}
