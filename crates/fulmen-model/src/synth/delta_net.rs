//! Files of hybrid models: the tensors and keys of gated delta nets, and of attention with an output gate.

use super::ModelShape;
use crate::gguf::{Array, Metadata};

/// Of so many layers, the last one has attention.
const ATTENTION_INTERVAL: usize = 4;
/// Inputs of the convolution.
const TAPS: usize = 4;

/// The heads of a delta net.
struct DeltaShape {
    keys: usize,
    values: usize,
    head: usize,
}

impl ModelShape {
    /// Whether some layers have a delta net in place of attention.
    pub(super) fn is_hybrid(&self) -> bool {
        matches!(self.architecture, "qwen3next" | "qwen35" | "qwen35moe")
    }

    /// Whether a layer has a delta net.
    pub(super) fn is_recurrent(&self, layer: usize) -> bool {
        self.is_hybrid() && !(layer + 1).is_multiple_of(ATTENTION_INTERVAL)
    }

    fn delta_shape(&self) -> DeltaShape {
        match self.context {
            // Small enough for tests.
            ..=4096 => DeltaShape { keys: 2, values: 4, head: 32 },
            _ => DeltaShape { keys: 16, values: 32, head: 128 },
        }
    }

    /// The tensors of a delta net.
    pub(super) fn add_delta_net(&self, add: &mut impl FnMut(&str, &[usize])) {
        let (embedding, DeltaShape { keys, values, head }) = (self.embedding, self.delta_shape());
        let (qkv, inner) = ((2 * keys + values) * head, values * head);
        add("attn_gate.weight", &[embedding, inner]);
        add("attn_norm.weight", &[embedding]);
        add("attn_qkv.weight", &[embedding, qkv]);
        add("ssm_a", &[values]);
        match self.architecture {
            "qwen3next" => add("ssm_ba.weight", &[embedding, 2 * values]),
            _ => {
                add("ssm_alpha.weight", &[embedding, values]);
                add("ssm_beta.weight", &[embedding, values]);
            }
        }
        add("ssm_conv1d.weight", &[TAPS, qkv]);
        add("ssm_dt.bias", &[values]);
        add("ssm_norm.weight", &[head]);
        add("ssm_out.weight", &[inner, embedding]);
    }

    /// The tensors of attention with an output gate, which follows the query of each head.
    pub(super) fn add_gated_attention(&self, add: &mut impl FnMut(&str, &[usize])) {
        let embedding = self.embedding;
        let (q, kv) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        add("attn_k.weight", &[embedding, kv]);
        add("attn_k_norm.weight", &[self.head_size]);
        add("attn_norm.weight", &[embedding]);
        add("attn_output.weight", &[q, embedding]);
        add("attn_q.weight", &[embedding, 2 * q]);
        add("attn_q_norm.weight", &[self.head_size]);
        add("attn_v.weight", &[embedding, kv]);
    }

    /// The keys of hybrid models.
    pub(super) fn describe_delta_net(&self, metadata: &mut Metadata) {
        let (arch, DeltaShape { keys, values, head }) = (self.architecture, self.delta_shape());
        let number = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let mut set = |key: &str, size: usize| metadata.set(format!("{arch}.{key}"), number(size));
        set("full_attention_interval", ATTENTION_INTERVAL);
        set("ssm.conv_kernel", TAPS);
        set("ssm.state_size", head);
        set("ssm.group_count", keys);
        set("ssm.time_step_rank", values);
        set("ssm.inner_size", values * head);
        if let Some(experts) = self.experts {
            set("expert_shared_feed_forward_length", experts.feed_forward);
        }
        if arch != "qwen3next" {
            // Pairs of time, height and width, and of a fourth axis that nothing uses.
            let pairs = self.rotated() as i32 / 2;
            let third = pairs / 3;
            let sections = [pairs - 2 * third, third, third, 0];
            metadata.set(format!("{arch}.rope.dimension_sections"), Array::numbers(&sections));
        }
    }
}
