//! The keys of `config.json` that only some architectures have, as GGUF keys.

use serde::Deserialize;
use serde_json::Value;

use super::config::{Config, Rope};
use super::error::SafetensorsProblem;
use super::gemma4::Gemma4;
use super::hybrid::Hybrid;
use crate::gguf::Metadata;

/// The fields of `config.json` that only some architectures have.
#[derive(Debug, Deserialize)]
pub(super) struct Family {
    hidden_activation: Option<String>,
    /// Gemma 3.
    rope_local_base_freq: Option<f32>,
    query_pre_attn_scalar: Option<f32>,
    pub(super) final_logit_softcapping: Option<f32>,
    attn_logit_softcapping: Option<f32>,
    sliding_window_pattern: Option<u32>,
    pub(super) layer_types: Option<Vec<String>>,
    /// Granite.
    embedding_multiplier: Option<f32>,
    residual_multiplier: Option<f32>,
    attention_multiplier: Option<f32>,
    logits_scaling: Option<f32>,
    /// SmolLM3: 1 for each layer with RoPE.
    no_rope_layers: Option<Vec<u32>>,
    no_rope_layer_interval: Option<u32>,
    /// OLMoE.
    clip_qkv: Option<f32>,
    /// gpt-oss.
    swiglu_limit: Option<f32>,
    swiglu_alpha: Option<f32>,
    /// GLM-4.5.
    pub(super) n_routed_experts: Option<u32>,
    n_shared_experts: Option<u32>,
    first_k_dense_replace: Option<u32>,
    routed_scaling_factor: Option<f32>,
    n_group: Option<u32>,
    topk_group: Option<u32>,
    /// Phi-3.
    original_max_position_embeddings: Option<u32>,
    /// Gemma 3 and 4: whether tokens see later ones; `vision` is said of those of images.
    use_bidirectional_attention: Option<Value>,
    #[serde(flatten)]
    pub(super) hybrid: Hybrid,
    #[serde(flatten)]
    pub(super) gemma4: Gemma4,
}

/// The error for a value that is not supported.
pub(super) fn unsupported(
    key: &'static str,
    found: impl ToString,
    expected: &'static str,
) -> SafetensorsProblem {
    SafetensorsProblem::Unsupported { key, found: found.to_string(), expected }
}

impl Config {
    /// Whether query and key rows are reordered for interleaved RoPE, as in GGUF files.
    pub(super) fn interleaves(&self) -> Result<bool, SafetensorsProblem> {
        Ok(matches!(self.architecture()?, "llama" | "mistral3" | "granite" | "smollm3"))
    }

    /// What is added to the weights of norms when they are converted to GGUF.
    pub(super) fn norm_offset(&self) -> Result<f32, SafetensorsProblem> {
        Ok(if self.architecture()? == "gemma3" || self.is_hybrid()? { 1.0 } else { 0.0 })
    }

    /// Whether sliding windows are used as the architecture's GGUF files have them, every layer but each
    /// `period`-th; an error if the configuration says otherwise.
    fn check_layer_types(&self, period: u32) -> Result<(), SafetensorsProblem> {
        if let Some(found) = self.family.sliding_window_pattern.filter(|found| *found != period) {
            return Err(unsupported("sliding_window_pattern", found, "that of the published models"));
        }
        for (layer, kind) in (0u32..).zip(self.family.layer_types.iter().flatten()) {
            let whole = layer % period == period - 1;
            if kind != if whole { "full_attention" } else { "sliding_attention" } {
                let found = format!("{kind:?} in layer {layer}");
                return Err(unsupported("layer_types", found, "the pattern of the published models"));
            }
        }
        Ok(())
    }

    /// Fails if the activation is another than the architecture's.
    pub(super) fn check_activation(&self) -> Result<(), SafetensorsProblem> {
        let gemma = matches!(self.architecture()?, "gemma3" | "gemma4");
        let found = self.family.hidden_activation.as_deref().or(self.hidden_act.as_deref());
        match found {
            Some("silu") | None if !gemma => Ok(()),
            Some("gelu_pytorch_tanh") | None if gemma => Ok(()),
            found => {
                let expected = if gemma { "gelu_pytorch_tanh" } else { "silu" };
                Err(unsupported("hidden_act", format!("{:?}", found.unwrap_or("missing")), expected))
            }
        }
    }

    /// Adds the keys that only this architecture has.
    pub(super) fn describe_family(&self, metadata: &mut Metadata) -> Result<(), SafetensorsProblem> {
        let (arch, family) = (self.architecture()?, &self.family);
        if let Some(found) = &family.use_bidirectional_attention
            && (*found == true || *found == "all")
        {
            return Err(unsupported("use_bidirectional_attention", found, "false"));
        }
        match arch {
            "gemma4" => self.describe_gemma4(metadata)?,
            _ if self.is_hybrid()? => self.describe_hybrid(metadata)?,
            _ => {}
        }
        let mut set = |key: &str, value: Option<f32>| {
            if let Some(value) = value {
                metadata.set(format!("{arch}.{key}"), value);
            }
        };
        match arch {
            "granite" => {
                set("embedding_scale", family.embedding_multiplier);
                set("residual_scale", family.residual_multiplier);
                set("attention.scale", family.attention_multiplier);
                set("logit_scale", family.logits_scaling);
            }
            "gemma3" => {
                self.check_layer_types(6)?;
                if let Some(cap) = family.attn_logit_softcapping {
                    return Err(unsupported("attn_logit_softcapping", cap, "null"));
                }
                let by_heads = self.hidden_size as f32 / self.num_attention_heads as f32;
                let scalar = if self.num_hidden_layers == 62 { by_heads } else { self.head_size() as f32 };
                if let Some(found) = family.query_pre_attn_scalar.filter(|found| *found != scalar) {
                    let expected = "the head size; in models of 62 layers hidden_size / num_attention_heads";
                    return Err(unsupported("query_pre_attn_scalar", found, expected));
                }
                let newer = |rope: &Rope| rope.sliding_attention.as_ref().and_then(|rope| rope.rope_theta);
                let newer = self.rope_parameters.as_ref().and_then(newer);
                set("rope.freq_base_swa", family.rope_local_base_freq.or(newer));
                set("final_logit_softcapping", family.final_logit_softcapping);
            }
            "glm4moe" => {
                set("expert_weights_scale", family.routed_scaling_factor);
                // The sigmoid.
                metadata.set("glm4moe.expert_gating_func", 2u32);
                if let Some(groups) = family.n_group {
                    metadata.set("glm4moe.expert_group_count", groups);
                }
                if let Some(used) = family.topk_group {
                    metadata.set("glm4moe.expert_group_used_count", used);
                }
                metadata.set("glm4moe.expert_shared_count", family.n_shared_experts.unwrap_or(1));
                let dense = family.first_k_dense_replace.unwrap_or(1);
                metadata.set("glm4moe.leading_dense_block_count", dense);
            }
            "olmo2" => self.check_layer_types(4)?,
            "olmoe" => {
                if let Some(limit) = family.clip_qkv {
                    return Err(unsupported("clip_qkv", limit, "null"));
                }
            }
            "gpt-oss" => {
                self.check_layer_types(2)?;
                if let Some(limit) = family.swiglu_limit.filter(|limit| *limit != 7.0) {
                    return Err(unsupported("swiglu_limit", limit, "7"));
                }
                if let Some(alpha) = family.swiglu_alpha.filter(|alpha| *alpha != 1.702) {
                    return Err(unsupported("swiglu_alpha", alpha, "1.702"));
                }
            }
            "smollm3" => {
                let interval = family.no_rope_layer_interval.filter(|_| family.no_rope_layers.is_none());
                if let Some(interval) = interval.filter(|interval| *interval != 4) {
                    return Err(unsupported("no_rope_layer_interval", interval, "4"));
                }
                for (layer, &found) in (0u32..).zip(family.no_rope_layers.iter().flatten()) {
                    if found != u32::from(layer % 4 != 3) {
                        let found = format!("{found} for layer {layer}");
                        return Err(unsupported("no_rope_layers", found, "0 for every fourth layer, 1 else"));
                    }
                }
            }
            "mistral3" => {
                set("attention.temperature_scale", self.rope().and_then(|r| r.llama_4_scaling_beta))
            }
            _ => {}
        }
        let windowed = matches!(arch, "gemma3" | "gemma4" | "olmo2" | "phi3" | "gpt-oss");
        if let Some(window) = self.sliding_window.filter(|_| windowed) {
            metadata.set(format!("{arch}.attention.sliding_window"), window);
        }
        Ok(())
    }

    /// The factors of LongRoPE: for short contexts, for long ones, the length of short ones, and the
    /// magnitude of sine and cosine.
    pub(super) fn long_rope(&self) -> Result<Option<LongRope>, SafetensorsProblem> {
        let Some(rope) = self.rope() else { return Ok(None) };
        if !matches!(rope.rope_type.as_deref(), Some("longrope" | "su")) {
            return Ok(None);
        }
        let missing =
            |key: &'static str| unsupported("rope_scaling", format!("without {key}"), "all parameters");
        let factors = |list: &Option<Vec<f32>>, key| match list {
            Some(list) if list.len() == self.rotated() as usize / 2 => Ok(list.clone()),
            Some(list) => {
                Err(unsupported(key, format!("{} factors", list.len()), "one for each rotated pair"))
            }
            None => Err(missing(key)),
        };
        let original = rope.original_max_position_embeddings.or(self.family.original_max_position_embeddings);
        let original = original.ok_or_else(|| missing("original_max_position_embeddings"))?;
        let growth = f64::from(self.max_position_embeddings) / f64::from(original.max(1));
        let growth = rope.factor.map_or(growth, f64::from);
        let magnitude = match (rope.attention_factor, growth > 1.0) {
            (Some(magnitude), _) => magnitude,
            (None, true) => (1.0 + growth.ln() / f64::from(original).ln()).sqrt() as f32,
            (None, false) => 1.0,
        };
        Ok(Some(LongRope {
            short: factors(&rope.short_factor, "short_factor")?,
            long: factors(&rope.long_factor, "long_factor")?,
            original,
            magnitude,
        }))
    }
}

/// The parameters of LongRoPE.
pub(super) struct LongRope {
    pub(super) short: Vec<f32>,
    pub(super) long: Vec<f32>,
    pub(super) original: u32,
    pub(super) magnitude: f32,
}
