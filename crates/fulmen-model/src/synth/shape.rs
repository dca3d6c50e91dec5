//! Model shapes: tiny ones for tests, and those of well-known models.

use fulmen_core::{DType, DTypeError};

use super::tokenizer;
use crate::gguf::Metadata;
use crate::quantize::Recipe;
use crate::source::TensorInfo;

/// The dimensions of a model. Start from a preset and change what a test needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// The name of the preset.
    pub name: &'static str,
    /// `llama`, `qwen2` or `qwen3`.
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

macro_rules! presets {
    ($($name:literal, $architecture:literal, $layers:literal, $embedding:literal, $heads:literal, $kv:literal,
        $head:literal, $ff:literal, $vocabulary:literal, $tied:literal, $base:literal, $factor:expr,
        $eps:literal, $context:literal;)*) => {
        /// Every preset.
        pub const PRESETS: &[ModelShape] = &[$(ModelShape {
            name: $name, architecture: $architecture, layers: $layers, embedding: $embedding, heads: $heads,
            kv_heads: $kv, head_size: $head, feed_forward: $ff, vocabulary: $vocabulary, tied: $tied,
            rope_base: $base, rope_factor: $factor, epsilon: $eps, context: $context,
        }),*];
    };
}
presets! {
    // name, architecture, layers, embedding, heads, KV heads, head size, feed-forward, vocabulary, tied, RoPE
    // base, RoPE factor, epsilon, context
    "tiny-llama", "llama", 4, 256, 4, 2, 64, 512, 1024, true, 5e5, Some(32.0), 1e-5, 2048;
    "tiny-llama-untied", "llama", 3, 256, 8, 8, 32, 512, 1024, false, 1e4, None, 1e-5, 2048;
    "tiny-qwen2", "qwen2", 4, 256, 8, 2, 32, 512, 1024, true, 1e6, None, 1e-6, 2048;
    "tiny-qwen3", "qwen3", 4, 256, 4, 2, 128, 512, 1024, true, 1e6, None, 1e-6, 2048;
    "tiny-qwen3-untied", "qwen3", 3, 256, 4, 1, 64, 768, 1024, false, 1e6, None, 1e-6, 2048;
    "qwen2.5-0.5b", "qwen2", 24, 896, 14, 2, 64, 4864, 151936, true, 1e6, None, 1e-6, 32768;
    "qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, true, 1e6, None, 1e-6, 40960;
    "qwen3-1.7b", "qwen3", 28, 2048, 16, 8, 128, 6144, 151936, true, 1e6, None, 1e-6, 40960;
    "qwen3-4b", "qwen3", 36, 2560, 32, 8, 128, 9728, 151936, true, 1e6, None, 1e-6, 40960;
    "qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, false, 1e6, None, 1e-6, 40960;
    "qwen3-14b", "qwen3", 40, 5120, 40, 8, 128, 17408, 151936, false, 1e6, None, 1e-6, 40960;
    "qwen3-32b", "qwen3", 64, 5120, 64, 8, 128, 25600, 151936, false, 1e6, None, 1e-6, 40960;
    "qwen2.5-7b", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, false, 1e6, None, 1e-6, 32768;
    "llama3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, true, 5e5, Some(32.0), 1e-5, 131072;
    "llama3.1-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, false, 5e5, Some(8.0), 1e-5, 131072;
    "llama3.1-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256, false, 5e5, Some(8.0), 1e-5, 131072;
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
        let (q, kv) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        let mut list: Vec<(String, Vec<usize>)> = Vec::new();
        let mut add = |name: String, dims: &[usize]| list.push((name, dims.to_vec()));
        if !self.tied {
            add("output.weight".into(), &[embedding, self.vocabulary]);
        }
        add("output_norm.weight".into(), &[embedding]);
        if self.rope_factor.is_some() {
            add("rope_freqs.weight".into(), &[self.head_size / 2]);
        }
        add("token_embd.weight".into(), &[embedding, self.vocabulary]);
        for layer in 0..self.layers {
            let mut add_to_layer = |name: &str, dims: &[usize]| add(format!("blk.{layer}.{name}"), dims);
            if self.architecture == "qwen2" {
                add_to_layer("attn_k.bias", &[kv]);
            }
            add_to_layer("attn_k.weight", &[embedding, kv]);
            if self.architecture == "qwen3" {
                add_to_layer("attn_k_norm.weight", &[self.head_size]);
            }
            add_to_layer("attn_norm.weight", &[embedding]);
            add_to_layer("attn_output.weight", &[q, embedding]);
            if self.architecture == "qwen2" {
                add_to_layer("attn_q.bias", &[q]);
            }
            add_to_layer("attn_q.weight", &[embedding, q]);
            if self.architecture == "qwen3" {
                add_to_layer("attn_q_norm.weight", &[self.head_size]);
            }
            if self.architecture == "qwen2" {
                add_to_layer("attn_v.bias", &[kv]);
            }
            add_to_layer("attn_v.weight", &[embedding, kv]);
            add_to_layer("ffn_down.weight", &[ff, embedding]);
            add_to_layer("ffn_gate.weight", &[embedding, ff]);
            add_to_layer("ffn_norm.weight", &[embedding]);
            add_to_layer("ffn_up.weight", &[embedding, ff]);
        }
        let typed = |(name, dims): (String, Vec<usize>)| {
            let plain = TensorInfo::new(&name, &dims, DType::F32)?;
            TensorInfo::new(name, &dims, recipe.choose(&plain, self.layers, self.tied).dtype)
        };
        list.into_iter().map(typed).collect()
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
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.embedding),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
        ] {
            metadata.set(format!("{arch}.{key}"), number(size));
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
        tokenizer::describe(self, &mut metadata);
        metadata
    }
}
