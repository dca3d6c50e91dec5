//! Gemma 4: layers that differ in the size and number of their heads, in what they share and in the width of
//! their feed-forward layer; a dense model has embeddings for each layer, one with experts does not.

use super::{ExpertShape, ModelShape};
use crate::gguf::{Array, Metadata};

impl ModelShape {
    /// Whether it is a Gemma 4, whose head size is that of the layers without a window.
    pub(super) fn is_gemma4(&self) -> bool {
        self.architecture == "gemma4"
    }

    /// Of so many layers the last one has no window.
    fn window_period(&self) -> usize {
        if self.is_tiny() { 3 } else { 6 }
    }

    fn has_window(&self, layer: usize) -> bool {
        !(layer + 1).is_multiple_of(self.window_period())
    }

    /// KV heads and head size of a layer. Models with experts have fewer, larger ones without a window.
    fn layer_heads(&self, layer: usize) -> [usize; 2] {
        match (self.has_window(layer), self.experts) {
            (true, _) => [self.kv_heads, self.head_size / 2],
            (false, None) => [self.kv_heads, self.head_size],
            (false, Some(_)) => [(self.kv_heads / 4).max(1), self.head_size],
        }
    }

    /// Last layers that read the KV cache of earlier ones.
    fn shared_layers(&self) -> usize {
        match (self.experts, self.is_tiny()) {
            (Some(_), _) => 0,
            (None, true) => 3,
            (None, false) => 18,
        }
    }

    /// Width of a layer's embeddings.
    fn layer_embedding(&self) -> usize {
        match (self.experts, self.is_tiny()) {
            (Some(_), _) => 0,
            (None, true) => 32,
            (None, false) => 256,
        }
    }

    /// Width of a layer's feed-forward layer. Those of the smallest models are wider in layers that share.
    fn layer_feed_forward(&self, layer: usize) -> usize {
        let wide = self.is_tiny() && layer + self.shared_layers() >= self.layers;
        if wide { 2 * self.feed_forward } else { self.feed_forward }
    }

    /// Frequency factors of the layers without a window: a quarter of each head is rotated.
    pub(super) fn proportional_factors(&self) -> Vec<f32> {
        let pairs = self.head_size / 2;
        (0..pairs).map(|pair| if pair < pairs / 4 { 1.0 } else { 1e30 }).collect()
    }

    /// The tensors that belong to no layer, besides those of all models.
    pub(super) fn add_gemma4(&self, add: &mut impl FnMut(&str, &[usize])) {
        let (all, embedding) = (self.layer_embedding() * self.layers, self.embedding);
        if all > 0 {
            add("per_layer_model_proj.weight", &[embedding, all]);
            add("per_layer_proj_norm.weight", &[self.layer_embedding()]);
            add("per_layer_token_embd.weight", &[all, self.vocabulary]);
        }
        add("rope_freqs.weight", &[self.head_size / 2]);
    }

    /// The tensors of a layer.
    pub(super) fn add_gemma4_layer(&self, layer: usize, add: &mut impl FnMut(&str, &[usize])) {
        let (embedding, ff) = (self.embedding, self.layer_feed_forward(layer));
        let [kv_heads, head] = self.layer_heads(layer);
        let (q, kv) = (self.heads * head, kv_heads * head);
        if layer + self.shared_layers() < self.layers {
            add("attn_k.weight", &[embedding, kv]);
            add("attn_k_norm.weight", &[head]);
            // Values are keys in the layers without a window of models with experts.
            if self.has_window(layer) || self.experts.is_none() {
                add("attn_v.weight", &[embedding, kv]);
            }
        }
        add("attn_norm.weight", &[embedding]);
        add("attn_output.weight", &[q, embedding]);
        add("attn_q.weight", &[embedding, q]);
        add("attn_q_norm.weight", &[head]);
        add("ffn_down.weight", &[ff, embedding]);
        add("ffn_gate.weight", &[embedding, ff]);
        add("ffn_norm.weight", &[embedding]);
        add("ffn_up.weight", &[embedding, ff]);
        add("layer_output_scale.weight", &[1]);
        add("post_attention_norm.weight", &[embedding]);
        add("post_ffw_norm.weight", &[embedding]);
        if let Some(ExpertShape { count, feed_forward, .. }) = self.experts {
            add("ffn_down_exps.scale", &[count]);
            add("ffn_down_exps.weight", &[feed_forward, embedding, count]);
            add("ffn_gate_inp.scale", &[embedding]);
            add("ffn_gate_inp.weight", &[embedding, count]);
            add("ffn_gate_up_exps.weight", &[embedding, 2 * feed_forward, count]);
            add("post_ffw_norm_1.weight", &[embedding]);
            add("post_ffw_norm_2.weight", &[embedding]);
            add("pre_ffw_norm_2.weight", &[embedding]);
        }
        if self.layer_embedding() > 0 {
            add("inp_gate.weight", &[embedding, self.layer_embedding()]);
            add("post_norm.weight", &[embedding]);
            add("proj.weight", &[self.layer_embedding(), embedding]);
        }
    }

    /// The keys of the architecture.
    pub(super) fn describe_gemma4(&self, metadata: &mut Metadata) {
        let number = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let layers = || 0..self.layers;
        let windows: Vec<bool> = layers().map(|layer| self.has_window(layer)).collect();
        metadata.set("gemma4.attention.sliding_window_pattern", Array::numbers(&windows));
        if self.experts.is_some() {
            let heads: Vec<u32> = layers().map(|layer| number(self.layer_heads(layer)[0])).collect();
            metadata.set("gemma4.attention.head_count_kv", Array::numbers(&heads));
        }
        if self.is_tiny() {
            let widths: Vec<u32> = layers().map(|layer| number(self.layer_feed_forward(layer))).collect();
            metadata.set("gemma4.feed_forward_length", Array::numbers(&widths));
        }
        for (key, size) in [
            ("attention.key_length_swa", self.head_size / 2),
            ("attention.value_length_swa", self.head_size / 2),
            ("attention.shared_kv_layers", self.shared_layers()),
            ("embedding_length_per_layer_input", self.layer_embedding()),
            ("rope.dimension_count", self.head_size),
            ("rope.dimension_count_swa", self.head_size / 2),
        ] {
            metadata.set(format!("gemma4.{key}"), number(size));
        }
        metadata.set("gemma4.rope.freq_base_swa", 1e4f32);
        metadata.set("gemma4.final_logit_softcapping", 30f32);
    }
}
