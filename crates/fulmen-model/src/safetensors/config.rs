//! Translates the `config.json` of a Hugging Face folder to GGUF metadata.

use serde::Deserialize;
use serde_json::{Value, json};

use super::error::SafetensorsProblem;
use super::family::{Family, unsupported};
use crate::gguf::{Array, Metadata};
use crate::rope_factors::Llama3Scaling;

/// The relevant fields of `config.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    model_type: String,
    pub(super) hidden_size: u32,
    intermediate_size: Option<u32>,
    pub(super) num_hidden_layers: u32,
    pub(super) num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    rms_norm_eps: f32,
    pub(super) vocab_size: u32,
    pub(super) max_position_embeddings: u32,
    pub(super) hidden_act: Option<String>,
    #[serde(default)]
    tie_word_embeddings: bool,
    rope_theta: Option<f32>,
    rope_scaling: Option<Rope>,
    /// Where newer files store both of the above.
    pub(super) rope_parameters: Option<Rope>,
    pub(super) sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    partial_rotary_factor: Option<f32>,
    num_experts: Option<u32>,
    num_local_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
    moe_intermediate_size: Option<u32>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<u32>,
    mlp_only_layers: Option<Vec<u32>>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<Ids>,
    /// Whether it is the text part of a model that also takes images.
    #[serde(skip)]
    pub(super) is_text_part: bool,
    #[serde(flatten)]
    pub(super) family: Family,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Rope {
    pub(super) rope_theta: Option<f32>,
    #[serde(alias = "type")]
    pub(super) rope_type: Option<String>,
    pub(super) factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    pub(super) original_max_position_embeddings: Option<u32>,
    pub(super) partial_rotary_factor: Option<f32>,
    /// Pairs of each axis of a position in time, height and width.
    pub(super) mrope_section: Option<Vec<u32>>,
    /// YaRN.
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    pub(super) attention_factor: Option<f32>,
    truncate: Option<bool>,
    /// The attention temperature of Ministral 3.
    pub(super) llama_4_scaling_beta: Option<f32>,
    /// LongRoPE.
    pub(super) short_factor: Option<Vec<f32>>,
    pub(super) long_factor: Option<Vec<f32>>,
    /// The parameters of layers with and without a window, where they differ.
    full_attention: Option<Box<Rope>>,
    pub(super) sliding_attention: Option<Box<Rope>>,
}

/// One token id or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Several(Vec<u32>),
}

/// RoPE scaling.
enum Scaling {
    None,
    Linear { factor: f32 },
    Llama3(Llama3Scaling),
    Yarn(YarnScaling),
    LongRope,
}

/// Parameters of YaRN.
struct YarnScaling {
    factor: f32,
    original: u32,
    beta_fast: f32,
    beta_slow: f32,
    /// A factor of the magnitude of sine and cosine, beside YaRN's own.
    magnitude: f32,
    /// How much of YaRN's own is taken out again.
    log_multiplier: f32,
    /// Whether the bounds of the blended frequencies are whole numbers.
    truncate: bool,
}

impl Config {
    /// The configuration in a `config.json`; of models that also take images, that of the text part.
    pub(super) fn from_json(mut file: Value) -> Result<Config, serde_json::Error> {
        let wraps = matches!(
            file["model_type"].as_str(),
            Some("gemma3" | "gemma4" | "mistral3" | "qwen3_5" | "qwen3_5_moe")
        );
        if !(wraps && file["text_config"].is_object()) {
            return serde_json::from_value(file);
        }
        let mut text = file["text_config"].take();
        // Files leave out what the library that wrote them has as its default.
        let gemma = json!({
            "model_type": "gemma3_text", "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "vocab_size": 262_208, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": true,
        });
        let mut defaults = if file["model_type"] == "gemma3" { gemma } else { json!({}) };
        if !file["tie_word_embeddings"].is_null() {
            defaults["tie_word_embeddings"] = file["tie_word_embeddings"].take();
        }
        // The whole model knows the ends of turns, its text part only that of texts.
        for key in ["bos_token_id", "eos_token_id"] {
            if !file[key].is_null() {
                text[key] = file[key].take();
            }
        }
        for (key, value) in defaults.as_object().into_iter().flatten() {
            // Newer files have the bases of RoPE elsewhere.
            let is_elsewhere = key.starts_with("rope_") && !text["rope_parameters"].is_null();
            if text[key].is_null() && !is_elsewhere {
                text[key] = value.clone();
            }
        }
        let config: Config = serde_json::from_value(text)?;
        Ok(Config { is_text_part: true, ..config })
    }

    /// The GGUF name of the architecture.
    pub(super) fn architecture(&self) -> Result<&'static str, SafetensorsProblem> {
        match self.model_type.as_str() {
            // Mistral models use the Llama architecture.
            "llama" | "mistral" => Ok("llama"),
            "qwen2" => Ok("qwen2"),
            "qwen3" => Ok("qwen3"),
            "qwen3_moe" => Ok("qwen3moe"),
            "gemma3_text" => Ok("gemma3"),
            "ministral3" => Ok("mistral3"),
            "phi3" => Ok("phi3"),
            "granite" => Ok("granite"),
            "smollm3" => Ok("smollm3"),
            // OLMo 3 is OLMo 2 with sliding windows.
            "olmo2" | "olmo3" => Ok("olmo2"),
            "olmoe" => Ok("olmoe"),
            "gpt_oss" => Ok("gpt-oss"),
            "glm4_moe" => Ok("glm4moe"),
            "qwen3_next" => Ok("qwen3next"),
            "qwen3_5_text" => Ok("qwen35"),
            "qwen3_5_moe_text" => Ok("qwen35moe"),
            "gemma4_text" => Ok("gemma4"),
            other => Err(SafetensorsProblem::Unsupported {
                key: "model_type",
                found: format!("{other:?}"),
                expected: "llama, mistral, qwen2, qwen3, qwen3_moe, gemma3_text, ministral3, phi3, granite, \
                           smollm3, olmo2, olmo3, olmoe, gpt_oss, glm4_moe, qwen3_next, \
                           qwen3_5_text, qwen3_5_moe_text, gemma4_text, and the text of gemma3, gemma4, \
                           mistral3, qwen3_5 and qwen3_5_moe",
            }),
        }
    }

    /// Whether the token embedding is also the output matrix.
    pub(super) fn tied(&self) -> bool {
        self.tie_word_embeddings
    }

    pub(super) fn heads(&self) -> u32 {
        self.num_attention_heads
    }

    pub(super) fn kv_heads(&self) -> u32 {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Width of the feed-forward layer.
    pub(super) fn inner(&self) -> Result<u32, SafetensorsProblem> {
        self.intermediate_size.ok_or_else(|| missing_number("intermediate_size"))
    }

    /// Whether layers have a mixture of experts.
    fn has_experts(&self) -> Result<bool, SafetensorsProblem> {
        Ok(match self.architecture()? {
            "qwen3moe" | "qwen3next" | "qwen35moe" | "glm4moe" | "gpt-oss" | "olmoe" => true,
            "gemma4" => self.family.gemma4.enable_moe_block == Some(true),
            _ => false,
        })
    }

    /// Experts of a layer; 0 if there are none.
    pub(super) fn experts(&self) -> Result<u32, SafetensorsProblem> {
        if !self.has_experts()? {
            return Ok(0);
        }
        let (key, count) = match self.architecture()? {
            "gpt-oss" => ("num_local_experts", self.num_local_experts),
            "glm4moe" => ("n_routed_experts", self.family.n_routed_experts),
            // Newer files have the second name.
            _ => ("num_experts", self.num_experts.or(self.num_local_experts)),
        };
        count.ok_or_else(|| missing_number(key))
    }

    /// The keys of a mixture of experts.
    fn describe_experts(&self, arch: &str, metadata: &mut Metadata) -> Result<(), SafetensorsProblem> {
        if !self.has_experts()? {
            return Ok(());
        }
        let (inner, used) = match arch {
            "gpt-oss" | "olmoe" => (("intermediate_size", self.intermediate_size), None),
            "gemma4" => {
                let used = self.family.gemma4.top_k_experts;
                (("moe_intermediate_size", self.moe_intermediate_size), Some(("top_k_experts", used)))
            }
            _ => (("moe_intermediate_size", self.moe_intermediate_size), None),
        };
        let used = used.unwrap_or(("num_experts_per_tok", self.num_experts_per_tok));
        metadata.set(format!("{arch}.expert_count"), self.experts()?);
        for (key, (name, number)) in [("expert_used_count", used), ("expert_feed_forward_length", inner)] {
            metadata.set(format!("{arch}.{key}"), number.ok_or_else(|| missing_number(name))?);
        }
        // Of the others all models do the same.
        if matches!(arch, "qwen3moe" | "qwen3next" | "glm4moe" | "olmoe") {
            let normalizes = self.norm_topk_prob.unwrap_or(!matches!(arch, "qwen3moe" | "olmoe"));
            metadata.set(format!("{arch}.expert_weights_norm"), normalizes);
        }
        // Layers without experts.
        if let Some(step) = self.decoder_sparse_step.filter(|step| *step != 1) {
            return Err(unsupported("decoder_sparse_step", step, "1"));
        }
        if let Some(layers) = self.mlp_only_layers.as_ref().filter(|layers| !layers.is_empty()) {
            return Err(unsupported("mlp_only_layers", format!("{layers:?}"), "none"));
        }
        Ok(())
    }

    pub(super) fn head_size(&self) -> u32 {
        self.head_dim.unwrap_or_else(|| self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0))
    }

    /// Elements of a head that RoPE rotates.
    pub(super) fn rotated(&self) -> u32 {
        let newer = self.rope_parameters.as_ref().and_then(|rope| rope.partial_rotary_factor);
        let default = match self.model_type.as_str() {
            "glm4_moe" => 0.5,
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => 0.25,
            _ => 1.0,
        };
        let part = self.partial_rotary_factor.or(newer).unwrap_or(default);
        (self.head_size() as f32 * part) as u32
    }

    /// The RoPE parameters of layers that see everything.
    pub(super) fn rope(&self) -> Option<&Rope> {
        let newer = self.rope_parameters.as_ref();
        let newer = newer.and_then(|rope| rope.full_attention.as_deref()).or(newer);
        self.rope_scaling.as_ref().or(newer)
    }

    fn rope_base(&self) -> f32 {
        let newer = self.rope_parameters.as_ref();
        let newer = newer.and_then(|rope| rope.full_attention.as_deref()).or(newer);
        let newer = newer.and_then(|rope| rope.rope_theta);
        self.rope_theta.or(newer).unwrap_or(10_000.0)
    }

    /// The longest context with full attention.
    fn context(&self) -> u32 {
        // Sliding-window attention is not supported, but up to the window size it equals full attention.
        let used = self.model_type == "mistral" || self.use_sliding_window == Some(true);
        let window = self.sliding_window.filter(|_| used);
        self.max_position_embeddings.min(window.unwrap_or(u32::MAX))
    }

    fn scaling(&self) -> Result<Scaling, SafetensorsProblem> {
        let Some(rope) = self.rope() else { return Ok(Scaling::None) };
        let missing = |key: &'static str| SafetensorsProblem::Unsupported {
            key: "rope_scaling",
            found: format!("without {key}"),
            expected: "all parameters of its type",
        };
        let number = |value: Option<f32>, key| value.map(f64::from).ok_or_else(|| missing(key));
        match rope.rope_type.as_deref() {
            None | Some("default") => Ok(Scaling::None),
            // A divisor for each frequency instead.
            Some("proportional") if self.architecture()? == "gemma4" => Ok(Scaling::None),
            Some("linear") => Ok(Scaling::Linear { factor: rope.factor.ok_or_else(|| missing("factor"))? }),
            Some("llama3") => {
                let original = rope.original_max_position_embeddings;
                Ok(Scaling::Llama3(Llama3Scaling {
                    factor: number(rope.factor, "factor")?,
                    low_freq_factor: number(rope.low_freq_factor, "low_freq_factor")?,
                    high_freq_factor: number(rope.high_freq_factor, "high_freq_factor")?,
                    original_context: f64::from(
                        original.ok_or_else(|| missing("original_max_position_embeddings"))?,
                    ),
                }))
            }
            Some("yarn") => {
                let original = rope.original_max_position_embeddings;
                let factor = rope.factor.ok_or_else(|| missing("factor"))?;
                // The magnitude of sine and cosine is YaRN's own unless the file says otherwise.
                let growth = |multiplier: f32| 1.0 + 0.1 * multiplier * factor.max(1.0).ln();
                let both = rope.mscale.zip(rope.mscale_all_dim).filter(|both| both.0 != 0.0 && both.1 != 0.0);
                let (magnitude, log_multiplier) = match (rope.attention_factor, both) {
                    (Some(magnitude), _) => (magnitude / growth(1.0), 0.0),
                    // The key of the second one is read in files of few architectures only.
                    (None, Some((mscale, all))) if self.architecture()? == "mistral3" => {
                        (growth(mscale) / growth(1.0), all)
                    }
                    (None, Some((mscale, all))) => (growth(mscale) / growth(all) / growth(1.0), 0.0),
                    (None, None) => (1.0, 0.0),
                };
                Ok(Scaling::Yarn(YarnScaling {
                    factor,
                    magnitude,
                    log_multiplier,
                    original: original.ok_or_else(|| missing("original_max_position_embeddings"))?,
                    beta_fast: rope.beta_fast.unwrap_or(32.0),
                    beta_slow: rope.beta_slow.unwrap_or(1.0),
                    truncate: rope.truncate.unwrap_or(true),
                }))
            }
            Some("longrope" | "su") => Ok(Scaling::LongRope),
            Some(other) => Err(SafetensorsProblem::Unsupported {
                key: "rope_scaling.rope_type",
                found: format!("{other:?}"),
                expected: "default, linear, llama3, yarn, longrope",
            }),
        }
    }

    /// The RoPE frequency factors, which GGUF files store as tensors, with the names of these.
    pub(super) fn rope_factors(&self) -> Result<Vec<(&'static str, Vec<f32>)>, SafetensorsProblem> {
        if let Some(long) = self.long_rope()? {
            return Ok(vec![
                ("rope_factors_long.weight", long.long),
                ("rope_factors_short.weight", long.short),
            ]);
        }
        if let Some(factors) = self.proportional_factors()? {
            return Ok(vec![("rope_freqs.weight", factors)]);
        }
        let Scaling::Llama3(scaling) = self.scaling()? else { return Ok(Vec::new()) };
        let head_size = usize::try_from(self.head_size()).unwrap_or(usize::MAX);
        // A head is never wider than a hidden state, so larger values are invalid.
        if !(2..=1 << 20).contains(&head_size) {
            let found = head_size.to_string();
            return Err(SafetensorsProblem::Unsupported { key: "head_dim", found, expected: "2 to 1048576" });
        }
        Ok(vec![("rope_freqs.weight", scaling.factors(f64::from(self.rope_base()), head_size))])
    }

    /// The metadata of an equivalent GGUF file. Fails if the configuration requires something unsupported.
    pub(super) fn metadata(&self, name: &str) -> Result<Metadata, SafetensorsProblem> {
        let arch = self.architecture()?;
        self.check_activation()?;
        let newer = self.rope_parameters.as_ref().and_then(|rope| rope.partial_rotary_factor);
        let rotates_part = matches!(arch, "phi3" | "glm4moe") || self.is_hybrid()?;
        let partial = self.partial_rotary_factor.or(newer).filter(|factor| *factor != 1.0);
        if let Some(factor) = partial.filter(|factor| !rotates_part || !(0.0..1.0).contains(factor)) {
            return Err(unsupported("partial_rotary_factor", factor, "1"));
        }
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        metadata.set("general.name", name);
        for (key, number) in [
            ("block_count", self.num_hidden_layers),
            ("context_length", self.context()),
            ("embedding_length", self.hidden_size),
            ("attention.head_count", self.num_attention_heads),
            ("attention.head_count_kv", self.kv_heads()),
            ("attention.key_length", self.head_size()),
            ("attention.value_length", self.head_size()),
            ("rope.dimension_count", self.rotated()),
            ("vocab_size", self.vocab_size),
        ] {
            metadata.set(format!("{arch}.{key}"), number);
        }
        // Where all layers have experts, files need not say what they would have otherwise.
        if arch != "qwen35moe" || self.intermediate_size.is_some() {
            metadata.set(format!("{arch}.feed_forward_length"), self.inner()?);
        }
        self.describe_experts(arch, &mut metadata)?;
        metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), self.rms_norm_eps);
        metadata.set(format!("{arch}.rope.freq_base"), self.rope_base());
        if let Scaling::Linear { factor } = self.scaling()? {
            metadata.set(format!("{arch}.rope.scaling.type"), "linear");
            metadata.set(format!("{arch}.rope.scaling.factor"), factor);
        }
        if let Scaling::Yarn(yarn) = self.scaling()? {
            metadata.set(format!("{arch}.rope.scaling.type"), "yarn");
            metadata.set(format!("{arch}.rope.scaling.original_context_length"), yarn.original);
            for (key, value) in [
                ("factor", yarn.factor),
                ("yarn_beta_fast", yarn.beta_fast),
                ("yarn_beta_slow", yarn.beta_slow),
                ("yarn_log_multiplier", yarn.log_multiplier),
            ] {
                metadata.set(format!("{arch}.rope.scaling.{key}"), value);
            }
            if yarn.magnitude != 1.0 {
                metadata.set(format!("{arch}.rope.scaling.attn_factor"), yarn.magnitude);
            }
            if !yarn.truncate {
                metadata.set(format!("{arch}.rope.scaling.yarn_truncate"), false);
            }
        }
        if let Some(long) = self.long_rope()? {
            metadata.set(format!("{arch}.rope.scaling.original_context_length"), long.original);
            metadata.set(format!("{arch}.rope.scaling.attn_factor"), long.magnitude);
        }
        self.describe_family(&mut metadata)?;
        if let Some(bos) = self.bos_token_id {
            metadata.set("tokenizer.ggml.bos_token_id", bos);
        }
        let ends = match &self.eos_token_id {
            Some(Ids::One(id)) => std::slice::from_ref(id),
            Some(Ids::Several(ids)) => ids,
            None => &[],
        };
        // GGUF has three keys for end-of-generation tokens.
        for (key, &id) in ["eos", "eot", "eom"].iter().zip(ends) {
            metadata.set(format!("tokenizer.ggml.{key}_token_id"), id);
        }
        if ends.len() > 1 {
            metadata.set("tokenizer.ggml.eos_token_ids", Array::numbers(ends));
        }
        Ok(metadata)
    }
}

fn missing_number(key: &'static str) -> SafetensorsProblem {
    unsupported(key, "missing", "a number")
}

/// The relevant fields of `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    chat_template: Option<Templates>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl TokenizerConfig {
    /// Adds the keys to the metadata.
    pub(super) fn describe(self, metadata: &mut Metadata) {
        for (key, flag) in [("add_bos_token", self.add_bos_token), ("add_eos_token", self.add_eos_token)] {
            if let Some(flag) = flag {
                metadata.set(format!("tokenizer.ggml.{key}"), flag);
            }
        }
        let template = match self.chat_template {
            Some(Templates::One(template)) => Some(template),
            Some(Templates::Named(list)) => {
                list.into_iter().find(|template| template.name == "default").map(|template| template.template)
            }
            None => None,
        };
        if let Some(template) = template {
            metadata.set(TEMPLATE, template);
        }
    }
}

/// The metadata key of the chat template.
pub(super) const TEMPLATE: &str = "tokenizer.chat_template";
