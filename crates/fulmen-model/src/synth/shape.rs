//! Model shapes: tiny ones for tests, and those of well-known models.

use fulmen_core::{DType, DTypeError, ExpertGroups};

use super::tokenizer;
use crate::gguf::Metadata;
use crate::quantize::Recipe;
use crate::source::TensorInfo;

/// The dimensions of a model. Start from a preset and change what a test needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// The name of the preset.
    pub name: &'static str,
    /// The architecture's name in GGUF files: `llama`, `qwen3`, `gemma3`, …
    pub architecture: &'static str,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub embedding: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Head size. For `qwen2` it must be `embedding / heads`, because its files do not store it.
    pub head_size: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// The mixture of experts in place of the feed-forward layer.
    pub experts: Option<ExpertShape>,
    /// Vocabulary size; at least 512.
    pub vocabulary: usize,
    /// Whether the embedding is also the output matrix.
    pub tied: bool,
    /// RoPE base frequency.
    pub rope_base: f32,
    /// The factor of Llama 3's RoPE scaling, stored as frequency factors.
    pub rope_factor: Option<f32>,
    /// Epsilon of the RMS norms.
    pub epsilon: f32,
    /// The nominal context length.
    pub context: usize,
}

/// The dimensions of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token uses.
    pub used: usize,
    /// Width of an expert's feed-forward layer.
    pub feed_forward: usize,
    /// The groups that experts are in, if they are.
    pub groups: Option<ExpertGroups>,
}

const fn experts(count: usize, used: usize, feed_forward: usize) -> ExpertShape {
    ExpertShape { count, used, feed_forward, groups: None }
}

const fn grouped(experts: ExpertShape, count: u32, used: u32) -> ExpertShape {
    ExpertShape { groups: Some(ExpertGroups { count, used }), ..experts }
}

macro_rules! presets {
    ($($name:literal, $architecture:literal, $layers:literal, $embedding:literal, $heads:literal, $kv:literal,
        $head:literal, $ff:literal, $vocabulary:literal, $tied:literal, $base:literal, $factor:expr,
        $eps:literal, $context:literal $(, $experts:expr)?;)*) => {
        /// Every preset.
        pub const PRESETS: &[ModelShape] = &[$(ModelShape {
            name: $name, architecture: $architecture, layers: $layers, embedding: $embedding, heads: $heads,
            kv_heads: $kv, head_size: $head, feed_forward: $ff, vocabulary: $vocabulary, tied: $tied,
            rope_base: $base, rope_factor: $factor, epsilon: $eps, context: $context,
            experts: presets!(@experts $($experts)?),
        }),*];
    };
    (@experts) => { None };
    (@experts $experts:expr) => { Some($experts) };
}
presets! {
    // name, architecture, layers, embedding, heads, KV heads, head size, feed-forward, vocabulary, tied, RoPE
    // base, RoPE factor, epsilon, context, experts: their number, those used, feed-forward
    "tiny-llama", "llama", 4, 256, 4, 2, 64, 512, 1024, true, 5e5, Some(32.0), 1e-5, 2048;
    "tiny-llama-untied", "llama", 3, 256, 8, 8, 32, 512, 1024, false, 1e4, None, 1e-5, 2048;
    "tiny-qwen2", "qwen2", 4, 256, 8, 2, 32, 512, 1024, true, 1e6, None, 1e-6, 2048;
    "tiny-qwen3", "qwen3", 4, 256, 4, 2, 128, 512, 1024, true, 1e6, None, 1e-6, 2048;
    "tiny-qwen3-untied", "qwen3", 3, 256, 4, 1, 64, 768, 1024, false, 1e6, None, 1e-6, 2048;
    "tiny-gemma3", "gemma3", 7, 128, 4, 2, 64, 192, 512, true, 1e6, None, 1e-6, 2048;
    "tiny-gemma4", "gemma4", 9, 128, 4, 2, 64, 192, 512, true, 1e6, None, 1e-6, 2048;
    "tiny-gemma4moe", "gemma4", 3, 128, 4, 2, 64, 192, 512, true, 1e6, None, 1e-6, 2048, experts(8, 3, 64);
    "tiny-mistral3", "mistral3", 3, 128, 4, 2, 32, 192, 512, false, 1e6, None, 1e-5, 2048;
    "tiny-phi", "phi3", 3, 128, 4, 2, 32, 192, 512, false, 1e4, None, 1e-5, 2048;
    "tiny-granite", "granite", 3, 128, 4, 2, 32, 192, 512, true, 1e4, None, 1e-5, 2048;
    "tiny-smollm3", "smollm3", 5, 128, 4, 2, 32, 192, 512, true, 2e6, None, 1e-6, 2048;
    "tiny-olmo2", "olmo2", 3, 128, 4, 4, 32, 192, 512, false, 5e5, None, 1e-6, 2048;
    "tiny-olmo3", "olmo2", 5, 128, 4, 2, 32, 192, 512, false, 5e5, None, 1e-6, 2048;
    "tiny-olmoe", "olmoe", 3, 128, 4, 4, 32, 64, 512, false, 1e4, None, 1e-5, 2048, experts(8, 3, 64);
    "tiny-qwen3moe", "qwen3moe", 3, 256, 4, 2, 64, 768, 1024, false, 1e6, None, 1e-6, 2048,
        experts(8, 3, 256);
    "tiny-gpt-oss", "gpt-oss", 3, 96, 4, 2, 32, 64, 512, false, 1.5e5, None, 1e-5, 2048, experts(8, 3, 64);
    "tiny-glm4moe", "glm4moe", 3, 128, 4, 2, 32, 192, 512, false, 1e6, None, 1e-5, 2048, experts(8, 3, 64);
    "tiny-glm4moe-groups", "glm4moe", 3, 128, 4, 2, 32, 192, 512, false, 1e6, None, 1e-5, 2048,
        grouped(experts(16, 3, 64), 4, 2);
    "tiny-qwen3next", "qwen3next", 5, 128, 4, 2, 32, 192, 512, false, 1e6, None, 1e-6, 2048,
        experts(8, 3, 64);
    "tiny-qwen35", "qwen35", 5, 128, 4, 2, 32, 192, 512, true, 1e6, None, 1e-6, 2048;
    "tiny-qwen35moe", "qwen35moe", 5, 128, 4, 2, 32, 192, 512, false, 1e6, None, 1e-6, 2048,
        experts(8, 3, 64);
    "qwen2.5-0.5b", "qwen2", 24, 896, 14, 2, 64, 4864, 151936, true, 1e6, None, 1e-6, 32768;
    "qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, true, 1e6, None, 1e-6, 40960;
    "qwen3-1.7b", "qwen3", 28, 2048, 16, 8, 128, 6144, 151936, true, 1e6, None, 1e-6, 40960;
    "qwen3-4b", "qwen3", 36, 2560, 32, 8, 128, 9728, 151936, true, 1e6, None, 1e-6, 40960;
    "qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, false, 1e6, None, 1e-6, 40960;
    "qwen3-14b", "qwen3", 40, 5120, 40, 8, 128, 17408, 151936, false, 1e6, None, 1e-6, 40960;
    "qwen3-32b", "qwen3", 64, 5120, 64, 8, 128, 25600, 151936, false, 1e6, None, 1e-6, 40960;
    "olmoe-1b-7b", "olmoe", 16, 2048, 16, 16, 128, 1024, 50304, false, 1e4, None, 1e-5, 4096,
        experts(64, 8, 1024);
    "qwen3-30b-a3b", "qwen3moe", 48, 2048, 32, 4, 128, 6144, 151936, false, 1e6, None, 1e-6, 40960,
        experts(128, 8, 768);
    "qwen3-next-80b-a3b", "qwen3next", 48, 2048, 16, 2, 256, 5120, 151936, false, 1e7, None, 1e-6, 262144,
        experts(512, 10, 512);
    "qwen3.5-4b", "qwen35", 32, 2560, 16, 4, 256, 9216, 248320, true, 1e7, None, 1e-6, 262144;
    "qwen3.5-9b", "qwen35", 32, 4096, 16, 4, 256, 12288, 248320, false, 1e7, None, 1e-6, 262144;
    "qwen3.5-35b-a3b", "qwen35moe", 40, 2048, 16, 2, 256, 5120, 248320, false, 1e7, None, 1e-6, 262144,
        experts(256, 8, 512);
    "qwen2.5-7b", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, false, 1e6, None, 1e-6, 32768;
    "llama3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, true, 5e5, Some(32.0), 1e-5, 131072;
    "llama3.1-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, false, 5e5, Some(8.0), 1e-5, 131072;
    "llama3.1-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, false, 5e5, Some(8.0), 1e-5, 131072;
    "gemma3-4b", "gemma3", 34, 2560, 8, 4, 256, 10240, 262144, true, 1e6, None, 1e-6, 131072;
    "gemma3-12b", "gemma3", 48, 3840, 16, 8, 256, 15360, 262144, true, 1e6, None, 1e-6, 131072;
    "gemma4-e4b", "gemma4", 42, 2560, 8, 2, 512, 10240, 262144, true, 1e6, None, 1e-6, 131072;
    "gemma4-26b-a4b", "gemma4", 30, 2816, 16, 8, 512, 2112, 262144, true, 1e6, None, 1e-6, 262144,
        experts(128, 8, 704);
    "mistral-small", "llama", 40, 5120, 32, 8, 128, 32768, 131072, false, 1e9, None, 1e-5, 131072;
    "gpt-oss-20b", "gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, false, 1.5e5, None, 1e-5, 131072,
        experts(32, 4, 2880);
    "gpt-oss-120b", "gpt-oss", 36, 2880, 64, 8, 64, 2880, 201088, false, 1.5e5, None, 1e-5, 131072,
        experts(128, 4, 2880);
    "glm4.5-air", "glm4moe", 46, 4096, 96, 8, 128, 10944, 151552, false, 1e6, None, 1e-5, 131072,
        experts(128, 8, 1408);
    "llama2-7b", "llama", 32, 4096, 32, 32, 128, 11008, 32000, false, 1e4, None, 1e-5, 4096;
}

impl ModelShape {
    /// The preset with this name.
    pub fn preset(name: &str) -> Option<ModelShape> {
        PRESETS.iter().find(|shape| shape.name == name).cloned()
    }

    /// The tensors with the types of a recipe, in the order that converters use.
    pub fn tensors(&self, recipe: Recipe) -> Result<Vec<TensorInfo>, DTypeError> {
        let (embedding, ff) = (self.embedding, self.feed_forward);
        let mut list: Vec<(String, Vec<usize>)> = Vec::new();
        let mut add = |name: String, dims: &[usize]| list.push((name, dims.to_vec()));
        if !self.tied {
            add("output.weight".into(), &[embedding, self.vocabulary]);
        }
        add("output_norm.weight".into(), &[embedding]);
        if self.rope_factor.is_some() {
            add("rope_freqs.weight".into(), &[self.head_size / 2]);
        }
        if self.architecture == "phi3" {
            add("rope_factors_long.weight".into(), &[self.rotated() / 2]);
            add("rope_factors_short.weight".into(), &[self.rotated() / 2]);
        }
        if self.is_gemma4() {
            self.add_gemma4(&mut |name, dims| add(name.into(), dims));
        }
        add("token_embd.weight".into(), &[embedding, self.vocabulary]);
        for layer in 0..self.layers + self.draft_layers() {
            let mut add_to_layer = |name: &str, dims: &[usize]| add(format!("blk.{layer}.{name}"), dims);
            if self.is_gemma4() {
                self.add_gemma4_layer(layer, &mut add_to_layer);
                continue;
            }
            match (self.is_recurrent(layer), self.is_hybrid()) {
                (true, _) => self.add_delta_net(&mut add_to_layer),
                (_, true) => self.add_gated_attention(&mut add_to_layer),
                _ => self.add_attention(&mut add_to_layer),
            }
            match self.experts.filter(|_| layer >= self.leading_dense()) {
                None => {
                    add_to_layer("ffn_down.weight", &[ff, embedding]);
                    if !self.is_fused() {
                        add_to_layer("ffn_gate.weight", &[embedding, ff]);
                    }
                    if self.has_pre_norms() {
                        add_to_layer(self.feed_forward_norm(), &[embedding]);
                    }
                    add_to_layer("ffn_up.weight", &[embedding, if self.is_fused() { 2 * ff } else { ff }]);
                }
                Some(ExpertShape { count, feed_forward: ff, .. }) => {
                    add_to_layer("ffn_down_exps.weight", &[ff, embedding, count]);
                    add_to_layer("ffn_gate_exps.weight", &[embedding, ff, count]);
                    add_to_layer("ffn_gate_inp.weight", &[embedding, count]);
                    if self.has_all_biases() {
                        add_to_layer("ffn_down_exps.bias", &[embedding, count]);
                        add_to_layer("ffn_gate_exps.bias", &[ff, count]);
                        add_to_layer("ffn_gate_inp.bias", &[count]);
                        add_to_layer("ffn_up_exps.bias", &[ff, count]);
                    }
                    add_to_layer(self.feed_forward_norm(), &[embedding]);
                    add_to_layer("ffn_up_exps.weight", &[embedding, ff, count]);
                    if self.has_shared_expert() {
                        match self.is_hybrid() {
                            true => add_to_layer("ffn_gate_inp_shexp.weight", &[embedding]),
                            false => add_to_layer("exp_probs_b.bias", &[count]),
                        }
                        add_to_layer("ffn_down_shexp.weight", &[ff, embedding]);
                        add_to_layer("ffn_gate_shexp.weight", &[embedding, ff]);
                        add_to_layer("ffn_up_shexp.weight", &[embedding, ff]);
                    }
                }
            }
            if layer >= self.layers {
                add_to_layer("nextn.eh_proj.weight", &[2 * embedding, embedding]);
                add_to_layer("nextn.enorm.weight", &[embedding]);
                add_to_layer("nextn.hnorm.weight", &[embedding]);
            }
            if self.has_post_norms() {
                add_to_layer("post_attention_norm.weight", &[embedding]);
                add_to_layer("post_ffw_norm.weight", &[embedding]);
            }
        }
        let typed = |(name, dims): (String, Vec<usize>)| {
            let plain = TensorInfo::new(&name, &dims, DType::F32)?;
            TensorInfo::new(name, &dims, recipe.choose(&plain, self.layers, self.tied).dtype)
        };
        list.into_iter().map(typed).collect()
    }

    fn add_attention(&self, add: &mut impl FnMut(&str, &[usize])) {
        let embedding = self.embedding;
        let (q, kv) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        if self.is_fused() {
            add("attn_qkv.weight", &[embedding, q + 2 * kv]);
        } else {
            if self.has_qkv_biases() {
                add("attn_k.bias", &[kv]);
            }
            add("attn_k.weight", &[embedding, kv]);
        }
        if let Some([_, k]) = self.head_norms() {
            add("attn_k_norm.weight", &[k]);
        }
        if self.has_pre_norms() {
            add("attn_norm.weight", &[embedding]);
        }
        if self.has_all_biases() {
            add("attn_output.bias", &[embedding]);
        }
        add("attn_output.weight", &[q, embedding]);
        if self.has_qkv_biases() {
            add("attn_q.bias", &[q]);
        }
        if !self.is_fused() {
            add("attn_q.weight", &[embedding, q]);
        }
        if let Some([q, _]) = self.head_norms() {
            add("attn_q_norm.weight", &[q]);
        }
        if self.has_all_biases() {
            add("attn_sinks.weight", &[self.heads]);
        }
        if self.has_qkv_biases() {
            add("attn_v.bias", &[kv]);
        }
        if !self.is_fused() {
            add("attn_v.weight", &[embedding, kv]);
        }
    }

    /// The metadata that converters write, including a small byte-level vocabulary.
    pub fn metadata(&self, recipe: Recipe) -> Metadata {
        let mut metadata = Metadata::new();
        let number = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let arch = self.architecture;
        metadata.set("general.architecture", arch);
        metadata.set("general.type", "model");
        metadata.set("general.name", format!("{} (random weights)", self.name));
        metadata.set("general.file_type", recipe.file_type());
        metadata.set("general.quantization_version", 2u32);
        for (key, size) in [
            ("block_count", self.layers + self.draft_layers()),
            ("context_length", self.context),
            ("embedding_length", self.embedding),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
        ] {
            metadata.set(format!("{arch}.{key}"), number(size));
        }
        if let Some(ExpertShape { count, used, feed_forward, groups }) = self.experts {
            metadata.set(format!("{arch}.expert_count"), number(count));
            metadata.set(format!("{arch}.expert_used_count"), number(used));
            metadata.set(format!("{arch}.expert_feed_forward_length"), number(feed_forward));
            if let Some(groups) = groups {
                metadata.set(format!("{arch}.expert_group_count"), groups.count);
                metadata.set(format!("{arch}.expert_group_used_count"), groups.used);
            }
        }
        metadata.set(format!("{arch}.rope.freq_base"), self.rope_base);
        metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), self.epsilon);
        if arch != "qwen2" {
            metadata.set(format!("{arch}.attention.key_length"), number(self.head_size));
            metadata.set(format!("{arch}.attention.value_length"), number(self.head_size));
        }
        if arch == "llama" {
            metadata.set("llama.vocab_size", number(self.vocabulary));
            metadata.set("llama.rope.dimension_count", number(self.head_size));
        }
        self.describe_family(&mut metadata);
        tokenizer::describe(self, &mut metadata);
        metadata
    }
}
