//! Gemma 4: the keys of layers that differ in their heads, windows and widths.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::config::Config;
use super::error::SafetensorsProblem;
use super::family::unsupported;
use crate::gguf::{Array, Metadata};

/// The fields of `config.json` that only Gemma 4 has.
#[derive(Debug, Deserialize)]
pub(super) struct Gemma4 {
    hidden_size_per_layer_input: Option<u32>,
    vocab_size_per_layer_input: Option<u32>,
    num_kv_shared_layers: Option<u32>,
    #[serde(default)]
    use_double_wide_mlp: Option<bool>,
    #[serde(default)]
    attention_k_eq_v: Option<bool>,
    pub(super) enable_moe_block: Option<bool>,
    pub(super) top_k_experts: Option<u32>,
    /// Heads of layers without a window.
    global_head_dim: Option<u32>,
    num_global_key_value_heads: Option<u32>,
    /// Where newer files have those of each layer.
    per_layer_config: Option<BTreeMap<String, LayerConfig>>,
}

#[derive(Debug, Deserialize)]
struct LayerConfig {
    head_dim: Option<u32>,
    num_key_value_heads: Option<u32>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// A divisor of RoPE's frequencies that leaves no rotation.
const NO_ROTATION: f32 = 1e30;

impl Config {
    /// Whether a layer of Gemma 4 sees a window of its context.
    fn has_window(&self, layer: u32) -> bool {
        let kinds = self.family.layer_types.as_deref();
        let kind = kinds.and_then(|kinds| kinds.get(usize::try_from(layer).ok()?));
        // The last layer has none whatever the file says.
        let last = layer + 1 == self.num_hidden_layers;
        !last && kind.map_or(!(layer + 1).is_multiple_of(6), |kind| kind == "sliding_attention")
    }

    /// The size of heads in layers without a window.
    pub(super) fn global_head_size(&self) -> u32 {
        let gemma = &self.family.gemma4;
        let of_layers = gemma.per_layer_config.iter().flatten().find_map(|(_, layer)| layer.head_dim);
        let default = if gemma.per_layer_config.is_some() { self.head_size() } else { 512 };
        of_layers.or(gemma.global_head_dim).unwrap_or(default)
    }

    /// KV heads of each layer.
    fn layer_kv_heads(&self) -> Result<Vec<u32>, SafetensorsProblem> {
        let gemma = &self.family.gemma4;
        let shared_projection = gemma.attention_k_eq_v == Some(true);
        let global = gemma.num_global_key_value_heads.filter(|_| shared_projection);
        let mut heads = Vec::new();
        for layer in 0..self.num_hidden_layers {
            let window = self.has_window(layer);
            let own = gemma.per_layer_config.as_ref().and_then(|layers| layers.get(&layer.to_string()));
            let size = own.and_then(|layer| layer.head_dim);
            let expected = if window { self.head_size() } else { self.global_head_size() };
            let is_listed = gemma.per_layer_config.is_some();
            if is_listed && size.unwrap_or(self.head_size()) != expected {
                let found = format!("head_dim {} in layer {layer}", size.unwrap_or(self.head_size()));
                let expected = "one size in layers with a window and one in the others";
                return Err(unsupported("per_layer_config", found, expected));
            }
            if let Some(key) = own.and_then(|layer| layer.others.keys().next()) {
                let found = format!("{key} in layer {layer}");
                return Err(unsupported("per_layer_config", found, "head_dim, num_key_value_heads"));
            }
            let local = self.kv_heads();
            let other = if window { local } else { global.unwrap_or(local) };
            heads.push(own.and_then(|layer| layer.num_key_value_heads).unwrap_or(other));
        }
        Ok(heads)
    }

    /// Adds the keys of Gemma 4.
    pub(super) fn describe_gemma4(&self, metadata: &mut Metadata) -> Result<(), SafetensorsProblem> {
        let gemma = &self.family.gemma4;
        for kind in self.family.layer_types.iter().flatten() {
            if !matches!(&kind[..], "sliding_attention" | "full_attention") {
                let expected = "sliding_attention, full_attention";
                return Err(unsupported("layer_types", format!("{kind:?}"), expected));
            }
        }
        let layers = 0..self.num_hidden_layers;
        let windows: Vec<bool> = layers.clone().map(|layer| self.has_window(layer)).collect();
        metadata.set("gemma4.attention.sliding_window_pattern", Array::numbers(&windows));
        metadata.set("gemma4.attention.head_count_kv", Array::numbers(&self.layer_kv_heads()?));
        let shared = gemma.num_kv_shared_layers.unwrap_or(0);
        let first_shared = self.num_hidden_layers.saturating_sub(shared);
        let inner = self.inner()?;
        let is_wide = |layer: u32| gemma.use_double_wide_mlp == Some(true) && layer >= first_shared;
        let width = |layer| if is_wide(layer) { inner.saturating_mul(2) } else { inner };
        let widths: Vec<u32> = layers.map(width).collect();
        metadata.set("gemma4.feed_forward_length", Array::numbers(&widths));
        let embedding = gemma.hidden_size_per_layer_input.unwrap_or(0);
        if let Some(found) = gemma.vocab_size_per_layer_input.filter(|found| *found != self.vocab_size)
            && embedding > 0
        {
            return Err(unsupported("vocab_size_per_layer_input", found, "that of vocab_size"));
        }
        let (local, global) = (self.head_size(), self.global_head_size());
        let sliding = self.rope_parameters.as_ref().and_then(|rope| rope.sliding_attention.as_deref());
        if let Some(kind) =
            sliding.and_then(|rope| rope.rope_type.as_deref()).filter(|kind| *kind != "default")
        {
            return Err(unsupported("rope_parameters.sliding_attention", format!("{kind:?}"), "default"));
        }
        let part = sliding.and_then(|rope| rope.partial_rotary_factor).unwrap_or(1.0);
        for (key, value) in [
            ("attention.key_length", global),
            ("attention.value_length", global),
            ("attention.key_length_swa", local),
            ("attention.value_length_swa", local),
            ("attention.shared_kv_layers", shared),
            ("embedding_length_per_layer_input", embedding),
            ("rope.dimension_count", global),
            ("rope.dimension_count_swa", (local as f32 * part) as u32),
        ] {
            metadata.set(format!("gemma4.{key}"), value);
        }
        let base = sliding.and_then(|rope| rope.rope_theta).unwrap_or(10_000.0);
        metadata.set("gemma4.rope.freq_base_swa", base);
        if let Some(cap) = self.family.final_logit_softcapping {
            metadata.set("gemma4.final_logit_softcapping", cap);
        }
        Ok(())
    }

    /// The divisors of RoPE's frequencies in layers without a window: the first part of the pairs rotates.
    pub(super) fn proportional_factors(&self) -> Result<Option<Vec<f32>>, SafetensorsProblem> {
        let Some(rope) = self.rope().filter(|rope| rope.rope_type.as_deref() == Some("proportional")) else {
            return Ok(None);
        };
        let head = self.global_head_size();
        if !(2..=1 << 16).contains(&head) {
            return Err(unsupported("global_head_dim", head, "2 to 65536"));
        }
        if let Some(factor) = rope.factor.filter(|factor| *factor != 1.0) {
            return Err(unsupported("rope_parameters.full_attention.factor", factor, "1"));
        }
        let rotated = (rope.partial_rotary_factor.unwrap_or(1.0) * head as f32 / 2.0) as u32;
        Ok(Some((0..head / 2).map(|pair| if pair < rotated { 1.0 } else { NO_ROTATION }).collect()))
    }
}
