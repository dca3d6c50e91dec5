//! What files of some architectures have besides the tensors and keys of all: further norms, fused weights,
//! windows, scales, RoPE scaling.

use super::ModelShape;
use crate::gguf::Metadata;

impl ModelShape {
    /// Whether it is small enough for tests, which cross its windows and contexts with few tokens.
    pub(super) fn is_tiny(&self) -> bool {
        self.context <= 4096
    }

    /// Positions of a sliding window.
    fn window(&self) -> usize {
        match (self.is_tiny(), self.architecture) {
            (true, _) => 40,
            (_, "gpt-oss") => 128,
            (_, "gemma4") if self.experts.is_none() => 512,
            _ => 1024,
        }
    }

    /// The context length before RoPE scaling.
    fn original_context(&self) -> usize {
        match (self.is_tiny(), self.architecture) {
            (true, _) => 256,
            (_, "gpt-oss") => 4096,
            _ => 16384,
        }
    }

    /// Elements of a head that RoPE rotates.
    pub(super) fn rotated(&self) -> usize {
        match self.architecture {
            "phi3" if self.is_tiny() => self.head_size / 4 * 3,
            "glm4moe" => self.head_size / 2,
            _ if self.is_hybrid() => self.head_size / 4,
            _ => self.head_size,
        }
    }

    /// Whether a layer's query, key and value weights, and its gate and up weights, are one tensor each.
    pub(super) fn is_fused(&self) -> bool {
        self.architecture == "phi3"
    }

    /// Whether the query, key and value projections have biases.
    pub(super) fn has_qkv_biases(&self) -> bool {
        matches!(self.architecture, "qwen2" | "glm4moe") || self.has_all_biases()
    }

    /// Whether all projections have biases, and heads have attention sinks.
    pub(super) fn has_all_biases(&self) -> bool {
        self.architecture == "gpt-oss"
    }

    /// The name of the norm before the feed-forward layer or the experts.
    pub(super) fn feed_forward_norm(&self) -> &'static str {
        match self.architecture {
            "gpt-oss" | "glm4moe" => "post_attention_norm.weight",
            _ if self.is_hybrid() => "post_attention_norm.weight",
            _ => "ffn_norm.weight",
        }
    }

    /// Whether every row uses one more expert.
    pub(super) fn has_shared_expert(&self) -> bool {
        self.architecture == "glm4moe" || self.is_hybrid()
    }

    /// Layers before the first one with experts.
    pub(super) fn leading_dense(&self) -> usize {
        usize::from(self.architecture == "glm4moe")
    }

    /// Layers that predict further tokens.
    pub(super) fn draft_layers(&self) -> usize {
        usize::from(self.architecture == "glm4moe")
    }

    /// Whether layers have norms before attention and feed-forward.
    pub(super) fn has_pre_norms(&self) -> bool {
        self.architecture != "olmo2"
    }

    /// Whether layers have norms after attention and feed-forward.
    pub(super) fn has_post_norms(&self) -> bool {
        matches!(self.architecture, "gemma3" | "olmo2")
    }

    /// The widths of the query and the key norm, if there are some.
    pub(super) fn head_norms(&self) -> Option<[usize; 2]> {
        match self.architecture {
            "qwen3" | "qwen3moe" | "gemma3" => Some([self.head_size; 2]),
            // Of the published models only the largest one has them.
            "glm4moe" if self.is_tiny() => Some([self.head_size; 2]),
            "olmo2" | "olmoe" => Some([self.heads * self.head_size, self.kv_heads * self.head_size]),
            _ => None,
        }
    }

    /// The keys of the architecture.
    pub(super) fn describe_family(&self, metadata: &mut Metadata) {
        let arch = self.architecture;
        let number = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let mut set_number = |key: &str, value: usize| metadata.set(format!("{arch}.{key}"), number(value));
        if self.is_hybrid() || matches!(arch, "mistral3" | "phi3" | "granite" | "smollm3" | "glm4moe") {
            set_number("rope.dimension_count", self.rotated());
        }
        if matches!(arch, "gemma3" | "gemma4" | "gpt-oss") || self.name.contains("olmo3") {
            set_number("attention.sliding_window", self.window());
        }
        if matches!(arch, "mistral3" | "phi3" | "gpt-oss") {
            set_number("rope.scaling.original_context_length", self.original_context());
        }
        if self.is_gemma4() {
            self.describe_gemma4(metadata);
        } else if self.is_hybrid() {
            self.describe_delta_net(metadata);
        } else if self.has_shared_expert() {
            set_number("expert_shared_count", 1);
            set_number("leading_dense_block_count", self.leading_dense());
            set_number("nextn_predict_layers", self.draft_layers());
            // The sigmoid.
            set_number("expert_gating_func", 2);
            metadata.set(format!("{arch}.expert_weights_norm"), true);
        }
        let scaling: Option<(&str, f32)> = match arch {
            "gemma3" => Some(("linear", 8.0)),
            "mistral3" => Some(("yarn", 16.0)),
            "gpt-oss" => Some(("yarn", 32.0)),
            _ => None,
        };
        if let Some((kind, factor)) = scaling {
            metadata.set(format!("{arch}.rope.scaling.type"), kind);
            metadata.set(format!("{arch}.rope.scaling.factor"), factor);
        }
        let factors: &[(&str, f32)] = match arch {
            "mistral3" => &[
                ("attention.temperature_scale", 0.1),
                ("rope.scaling.yarn_beta_fast", 32.0),
                ("rope.scaling.yarn_beta_slow", 1.0),
                ("rope.scaling.yarn_log_multiplier", 1.0),
            ],
            "phi3" => &[("rope.scaling.attn_factor", 1.19)],
            "granite" => &[
                ("attention.scale", 0.0625),
                ("embedding_scale", 12.0),
                ("residual_scale", 0.22),
                ("logit_scale", 8.0),
            ],
            "glm4moe" => &[("expert_weights_scale", 1.5)],
            _ => &[],
        };
        for &(key, factor) in factors {
            metadata.set(format!("{arch}.{key}"), factor);
        }
    }
}
