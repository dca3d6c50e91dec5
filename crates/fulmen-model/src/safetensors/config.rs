//! Translates the `config.json` of a Hugging Face folder to GGUF metadata.

use serde::Deserialize;

use super::error::SafetensorsProblem;
use crate::gguf::{Array, Metadata};
use crate::rope_factors::Llama3Scaling;

/// The relevant fields of `config.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    model_type: String,
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    rms_norm_eps: f32,
    vocab_size: u32,
    max_position_embeddings: u32,
    hidden_act: Option<String>,
    #[serde(default)]
    tie_word_embeddings: bool,
    rope_theta: Option<f32>,
    rope_scaling: Option<Rope>,
    /// Where newer files store both of the above.
    rope_parameters: Option<Rope>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    partial_rotary_factor: Option<f32>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<Ids>,
}

#[derive(Clone, Debug, Deserialize)]
struct Rope {
    rope_theta: Option<f32>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<u32>,
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
}

impl Config {
    /// The GGUF name of the architecture.
    pub(super) fn architecture(&self) -> Result<&'static str, SafetensorsProblem> {
        match self.model_type.as_str() {
            // Mistral models use the Llama architecture.
            "llama" | "mistral" => Ok("llama"),
            "qwen2" => Ok("qwen2"),
            "qwen3" => Ok("qwen3"),
            other => Err(SafetensorsProblem::Unsupported {
                key: "model_type",
                found: format!("{other:?}"),
                expected: "llama, mistral, qwen2, qwen3",
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

    fn head_size(&self) -> u32 {
        self.head_dim.unwrap_or_else(|| self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0))
    }

    fn rope_base(&self) -> f32 {
        let newer = self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta);
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
        let Some(rope) = self.rope_scaling.as_ref().or(self.rope_parameters.as_ref()) else {
            return Ok(Scaling::None);
        };
        let missing = |key: &'static str| SafetensorsProblem::Unsupported {
            key: "rope_scaling",
            found: format!("without {key}"),
            expected: "all parameters of its type",
        };
        let number = |value: Option<f32>, key| value.map(f64::from).ok_or_else(|| missing(key));
        match rope.rope_type.as_deref() {
            None | Some("default") => Ok(Scaling::None),
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
            Some(other) => Err(SafetensorsProblem::Unsupported {
                key: "rope_scaling.rope_type",
                found: format!("{other:?}"),
                expected: "default, linear, llama3",
            }),
        }
    }

    /// The RoPE frequency factors, which GGUF files store as a tensor.
    pub(super) fn rope_factors(&self) -> Result<Option<Vec<f32>>, SafetensorsProblem> {
        let Scaling::Llama3(scaling) = self.scaling()? else { return Ok(None) };
        let head_size = usize::try_from(self.head_size()).unwrap_or(usize::MAX);
        // A head is never wider than a hidden state, so larger values are invalid.
        if !(2..=1 << 20).contains(&head_size) {
            let found = head_size.to_string();
            return Err(SafetensorsProblem::Unsupported { key: "head_dim", found, expected: "2 to 1048576" });
        }
        Ok(Some(scaling.factors(f64::from(self.rope_base()), head_size)))
    }

    /// The metadata of an equivalent GGUF file. Fails if the configuration requires something unsupported.
    pub(super) fn metadata(&self, name: &str) -> Result<Metadata, SafetensorsProblem> {
        let arch = self.architecture()?;
        let unsupported = |key, found, expected| SafetensorsProblem::Unsupported { key, found, expected };
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(unsupported("hidden_act", format!("{act:?}"), "silu"));
        }
        if let Some(factor) = self.partial_rotary_factor.filter(|factor| *factor != 1.0) {
            return Err(unsupported("partial_rotary_factor", factor.to_string(), "1"));
        }
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", arch);
        metadata.set("general.name", name);
        for (key, number) in [
            ("block_count", self.num_hidden_layers),
            ("context_length", self.context()),
            ("embedding_length", self.hidden_size),
            ("feed_forward_length", self.intermediate_size),
            ("attention.head_count", self.num_attention_heads),
            ("attention.head_count_kv", self.kv_heads()),
            ("attention.key_length", self.head_size()),
            ("attention.value_length", self.head_size()),
            ("rope.dimension_count", self.head_size()),
            ("vocab_size", self.vocab_size),
        ] {
            metadata.set(format!("{arch}.{key}"), number);
        }
        metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), self.rms_norm_eps);
        metadata.set(format!("{arch}.rope.freq_base"), self.rope_base());
        if let Scaling::Linear { factor } = self.scaling()? {
            metadata.set(format!("{arch}.rope.scaling.type"), "linear");
            metadata.set(format!("{arch}.rope.scaling.factor"), factor);
        }
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
