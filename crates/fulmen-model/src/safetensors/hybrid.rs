//! Hybrid models (Qwen3-Next, Qwen3.5): the keys of their gated delta nets.

use serde::Deserialize;

use super::config::Config;
use super::error::SafetensorsProblem;
use super::family::unsupported;
use crate::gguf::{Array, Metadata};

/// The fields of `config.json` that only hybrid models have.
#[derive(Debug, Deserialize)]
pub(super) struct Hybrid {
    linear_conv_kernel_dim: Option<u32>,
    linear_key_head_dim: Option<u32>,
    linear_value_head_dim: Option<u32>,
    linear_num_key_heads: Option<u32>,
    linear_num_value_heads: Option<u32>,
    full_attention_interval: Option<u32>,
    shared_expert_intermediate_size: Option<u32>,
    attn_output_gate: Option<bool>,
}

/// The gated delta net of a configuration.
pub(super) struct DeltaNet {
    /// Key heads, value heads, their size.
    pub(super) heads: [u32; 3],
    taps: u32,
}

impl Config {
    /// Whether some layers have a delta net in place of attention.
    pub(super) fn is_hybrid(&self) -> Result<bool, SafetensorsProblem> {
        Ok(matches!(self.architecture()?, "qwen3next" | "qwen35" | "qwen35moe"))
    }

    pub(super) fn delta_net(&self) -> Result<DeltaNet, SafetensorsProblem> {
        let hybrid = &self.family.hybrid;
        let number = |key: &'static str, found: Option<u32>| match found {
            Some(number @ 1..=0xffff) => Ok(number),
            Some(found) => Err(unsupported(key, found, "1 to 65535")),
            None => Err(unsupported(key, "missing", "a number")),
        };
        let keys = number("linear_num_key_heads", hybrid.linear_num_key_heads)?;
        let values = number("linear_num_value_heads", hybrid.linear_num_value_heads)?;
        let head = number("linear_key_head_dim", hybrid.linear_key_head_dim)?;
        let taps = number("linear_conv_kernel_dim", hybrid.linear_conv_kernel_dim)?;
        if !values.is_multiple_of(keys) {
            let expected = "a multiple of linear_num_key_heads";
            return Err(unsupported("linear_num_value_heads", values, expected));
        }
        match hybrid.linear_value_head_dim.filter(|found| *found != head) {
            Some(found) => Err(unsupported("linear_value_head_dim", found, "that of linear_key_head_dim")),
            None => Ok(DeltaNet { heads: [keys, values, head], taps }),
        }
    }

    /// Of so many layers, the last one has attention.
    fn attention_interval(&self) -> Result<u32, SafetensorsProblem> {
        let kinds = self.family.layer_types.as_deref().unwrap_or_default();
        let first = (1..).zip(kinds).find(|(_, kind)| *kind == "full_attention").map(|(layer, _)| layer);
        let interval = self.family.hybrid.full_attention_interval.or(first).unwrap_or(4);
        if interval == 0 {
            return Err(unsupported("full_attention_interval", interval, "at least 1"));
        }
        for (layer, kind) in (1..).zip(kinds) {
            let attends = u32::is_multiple_of(layer, interval);
            if kind != if attends { "full_attention" } else { "linear_attention" } {
                let found = format!("{kind:?} in layer {}", layer - 1);
                return Err(unsupported("layer_types", found, "full_attention at a fixed interval"));
            }
        }
        Ok(interval)
    }

    /// Adds the keys of hybrid models.
    pub(super) fn describe_hybrid(&self, metadata: &mut Metadata) -> Result<(), SafetensorsProblem> {
        let (arch, interval) = (self.architecture()?, self.attention_interval()?);
        let DeltaNet { heads: [keys, values, head], taps } = self.delta_net()?;
        if self.family.hybrid.attn_output_gate == Some(false) {
            return Err(unsupported("attn_output_gate", false, "true"));
        }
        let mut set = |key: &str, value: u32| metadata.set(format!("{arch}.{key}"), value);
        set("full_attention_interval", interval);
        set("ssm.conv_kernel", taps);
        set("ssm.state_size", head);
        set("ssm.group_count", keys);
        set("ssm.time_step_rank", values);
        set("ssm.inner_size", values.saturating_mul(head));
        if arch != "qwen35" {
            let key = "shared_expert_intermediate_size";
            let width = self.family.hybrid.shared_expert_intermediate_size;
            set(
                "expert_shared_feed_forward_length",
                width.ok_or_else(|| unsupported(key, "missing", "a number"))?,
            );
        }
        // Pairs that rotate by time, height and width, which are the same in a text; none by a fourth axis.
        if arch != "qwen3next" {
            let pairs = self.rotated() / 2;
            let sections = self.rope().and_then(|rope| rope.mrope_section.clone());
            let mut sections =
                sections.unwrap_or_else(|| vec![pairs.div_ceil(3), (pairs + 1) / 3, pairs / 3]);
            sections.resize(4, 0);
            let number = |pairs: u32| i32::try_from(pairs).unwrap_or(i32::MAX);
            let sections: Vec<i32> = sections.into_iter().map(number).collect();
            metadata.set(format!("{arch}.rope.dimension_sections"), Array::numbers(&sections));
        }
        Ok(())
    }
}
