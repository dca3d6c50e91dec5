//! The dimensions and constants of a model, from its metadata. Every number is validated before it is used.

use std::fmt::Display;

use fulmen_core::{DType, Heads, RopeSpec};

use super::rope::{self, LongRope};
use super::{Architecture, DeltaNet, Experts, Shard, Variant, names};
use crate::error::ModelError;
use crate::gguf::{Metadata, MetadataError, Value};
use crate::source::ModelSource;

/// More layers than any model has: a file with more is damaged.
const MAX_LAYERS: u32 = 1024;
/// Wider than any model's hidden states.
pub(super) const MAX_WIDTH: u32 = 1 << 20;
/// More heads than any model has.
const MAX_HEADS: u32 = 1 << 12;

/// The dimensions and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The architecture.
    pub architecture: Architecture,
    /// Number of layers.
    pub layers: u32,
    /// Layers of the file behind them that predict further tokens. They are not run.
    pub draft_layers: u32,
    /// Width of a hidden state.
    pub hidden: u32,
    /// Width of the feed-forward layer.
    pub inner: u32,
    /// The mixture of experts in place of it.
    pub experts: Option<Experts>,
    /// Number of heads and their size.
    pub heads: Heads,
    /// The delta net of layers without attention.
    pub delta_net: Option<DeltaNet>,
    /// Vocabulary size.
    pub vocabulary: u32,
    /// The context length the model was trained for.
    pub context: u32,
    /// Epsilon of the RMS norms.
    pub epsilon: f32,
    /// Rotary position embedding of queries and keys.
    pub rope: RopeSpec,
    /// Divisors of the RoPE frequencies, if not all are 1.
    pub rope_factors: Option<Vec<f32>>,
    /// Other divisors for long contexts.
    pub long_rope: Option<LongRope>,
    /// What deviates from the plain transformer.
    pub variant: Variant,
    /// Whether the token embedding is also the output matrix.
    pub tied: bool,
    /// The rank whose sizes `heads`, `inner` and `experts` are; `None` for those of the whole model.
    pub shard: Option<Shard>,
}

/// What is known of a model when its [`Variant`] is read.
pub(super) struct Dimensions {
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) heads: Heads,
    pub(super) rope: RopeSpec,
}

/// The keys of one architecture: `block_count` is looked up as `llama.block_count`.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub(super) fn u32(&self, key: &str) -> Result<u32, MetadataError> {
        self.metadata.u32(&self.key(key))
    }

    pub(super) fn opt_u32(&self, key: &str) -> Result<Option<u32>, MetadataError> {
        self.metadata.opt_u32(&self.key(key))
    }

    pub(super) fn opt_f32(&self, key: &str) -> Result<Option<f32>, MetadataError> {
        self.metadata.opt_f32(&self.key(key))
    }

    pub(super) fn opt_bool(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        self.metadata.opt_bool(&self.key(key))
    }

    pub(super) fn opt_integers(&self, key: &str) -> Result<Option<Vec<i64>>, MetadataError> {
        self.metadata.opt_integers(&self.key(key))
    }

    /// Whether the file has the key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.metadata.get(&self.key(key)).is_some()
    }

    pub(super) fn opt_string(&self, key: &str) -> Result<Option<&str>, MetadataError> {
        self.metadata.opt_string(&self.key(key))
    }

    /// A list of flags.
    pub(super) fn flags(&self, key: &str) -> Result<Vec<bool>, MetadataError> {
        Ok(self.metadata.numbers::<bool>(&self.key(key))?.collect())
    }

    /// A number from 1 to `limit` for each layer: a list, or one number for all of them.
    pub(super) fn opt_each_layer(
        &self,
        key: &str,
        layers: u32,
        limit: u32,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        let numbers = match self.metadata.get(&self.key(key)) {
            None => return Ok(None),
            Some(Value::Array(_)) => self.opt_integers(key)?.unwrap_or_default(),
            Some(_) => return Ok(Some(vec![self.within(key, limit)?; layers as usize])),
        };
        if numbers.len() != layers as usize {
            let expected = format!("one number for each of the {layers} layers");
            return Err(self.wrong(key, expected, numbers.len()));
        }
        let number = |found: i64| match u32::try_from(found).ok().filter(|n| (1..=limit).contains(n)) {
            Some(number) => Ok(number),
            None => Err(self.wrong(key, format!("from 1 to {limit} in each layer"), found)),
        };
        numbers.into_iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// The error for an invalid value.
    pub(super) fn wrong(&self, key: &str, expected: impl Into<String>, found: impl Display) -> ModelError {
        ModelError::Value { key: self.key(key), expected: expected.into(), found: found.to_string() }
    }

    /// A number from 1 to `limit`.
    pub(super) fn within(&self, key: &str, limit: u32) -> Result<u32, ModelError> {
        let value = self.u32(key)?;
        match (1..=limit).contains(&value) {
            true => Ok(value),
            false => Err(self.wrong(key, format!("from 1 to {limit}"), value)),
        }
    }
}

impl Config {
    /// Reads and checks the metadata of a model.
    pub fn read(source: &dyn ModelSource) -> Result<Config, ModelError> {
        let architecture = Architecture::of(source)?;
        let description = architecture.description();
        let keys = Keys { metadata: source.metadata(), prefix: description.name };
        let all_layers = keys.within("block_count", MAX_LAYERS)?;
        let draft_layers = match architecture.has_draft_layers() {
            true => keys.opt_u32("nextn_predict_layers")?.unwrap_or(0),
            false => 0,
        };
        if draft_layers >= all_layers {
            let expected = format!("less than the {all_layers} layers");
            return Err(keys.wrong("nextn_predict_layers", expected, draft_layers));
        }
        let layers = all_layers - draft_layers;
        let hidden = keys.within("embedding_length", MAX_WIDTH)?;
        let is_hybrid = description.key_heads.is_some();
        let mut layer_inner = Vec::new();
        let inner = match (description.route, keys.has("feed_forward_length")) {
            // All layers have experts, and files need not say what they would have otherwise.
            (Some(_), false) if is_hybrid => keys.within("expert_feed_forward_length", MAX_WIDTH)?,
            _ if description.differs_by_layer => {
                layer_inner =
                    keys.opt_each_layer("feed_forward_length", all_layers, MAX_WIDTH)?.unwrap_or_default();
                match layer_inner.iter().max() {
                    Some(&widest) => widest,
                    None => keys.within("feed_forward_length", MAX_WIDTH)?,
                }
            }
            _ => keys.within("feed_forward_length", MAX_WIDTH)?,
        };
        // Of some architectures there are models with experts and models without.
        let is_dense = description.differs_by_layer && keys.opt_u32("expert_count")?.unwrap_or(0) == 0;
        let experts = match description.route.filter(|_| !is_dense) {
            Some(route) => Some(Experts::read(&keys, route, description.inner_of_expert, layers)?),
            None => None,
        };
        if let (None, Some(count @ 1..)) = (experts, keys.opt_u32("expert_count")?) {
            let expected = format!("0 ({architecture} has no mixture of experts)");
            return Err(keys.wrong("expert_count", expected, count));
        }
        let delta_net = match description.key_heads {
            Some(order) => Some(DeltaNet::read(&keys, order, layers)?),
            None => None,
        };
        if let (Some(_), Some(Experts { shared_inner: 0, .. })) = (delta_net, experts) {
            return Err(keys.wrong("expert_shared_feed_forward_length", "at least 1", 0));
        }
        let heads = heads(&keys, hidden, description.differs_by_layer.then_some(all_layers))?;
        let epsilon = keys.metadata.f32(&keys.key("attention.layer_norm_rms_epsilon"))?;
        if !(epsilon.is_finite() && epsilon > 0.0) {
            return Err(keys.wrong("attention.layer_norm_rms_epsilon", "a positive finite number", epsilon));
        }
        let context = keys.within("context_length", 1 << 28)?;
        let rope = rope::read(source, &keys, description.pairing, heads.head_dim)?;
        let mut variant =
            (description.variant)(&keys, &Dimensions { layers, hidden, heads, rope: rope.spec })?;
        if description.differs_by_layer {
            variant.layer_inner = layer_inner;
            variant.layer_scales = layer_scales(source, layers)?;
        }
        let vocabulary = vocabulary(source, &keys)?;
        let tied = source.tensor("output.weight").is_none();
        Ok(Config {
            architecture,
            layers,
            draft_layers,
            hidden,
            inner,
            experts,
            heads,
            delta_net,
            vocabulary,
            context,
            epsilon,
            rope: rope.spec,
            rope_factors: rope.factors,
            long_rope: rope.long,
            variant,
            tied,
            shard: None,
        })
    }

    /// Number of heads of a layer and their size.
    pub fn heads_of(&self, layer: u32) -> Heads {
        let local = self.variant.local_heads.filter(|_| self.variant.window_of(layer).is_some());
        local.unwrap_or(self.heads)
    }

    /// Width of the feed-forward layer of a layer.
    pub(super) fn inner_of(&self, layer: u32) -> u32 {
        self.variant.layer_inner.get(layer as usize).copied().unwrap_or(self.inner)
    }

    /// The layer whose KV cache a layer reads: its own, but for layers that share one.
    pub fn cache_layer(&self, layer: u32) -> u32 {
        self.variant.cache_layer(layer, self.layers).unwrap_or(layer)
    }

    /// The constants that graphs read and that are no tensors of the file, by name.
    pub fn constants(&self) -> Vec<(&'static str, &[f32])> {
        let ones = |name, heads: Heads| {
            self.variant.unit_gain.get(..heads.head_dim as usize).map(|gain| (name, gain))
        };
        let gain = ones(names::UNIT_GAIN, self.heads).filter(|_| !self.variant.unit_gain.is_empty());
        let local = self.variant.local_heads.and_then(|heads| ones(names::UNIT_GAIN_LOCAL, heads));
        let factors = self.rope_factors.as_deref().map(|factors| (names::ROPE_FACTORS, factors));
        let long = self.long_rope.as_ref().map(|long| (names::ROPE_FACTORS_LONG, &long.factors[..]));
        factors.into_iter().chain(long).chain(gain).chain(local).collect()
    }

    /// The RoPE factors of sequences of up to `capacity` positions: the name of the constant and its length.
    pub(super) fn rope_constant(&self, capacity: u32) -> Option<(&'static str, u32)> {
        let long = self.long_rope.as_ref().filter(|long| capacity > long.original_context);
        match (long, &self.rope_factors) {
            (Some(long), _) => Some((names::ROPE_FACTORS_LONG, long.factors.len() as u32)),
            (None, Some(factors)) => Some((names::ROPE_FACTORS, factors.len() as u32)),
            (None, None) => None,
        }
    }
}

/// The heads of all layers or, where layers differ, of the last one of `by_layer`.
fn heads(keys: &Keys<'_>, hidden: u32, by_layer: Option<u32>) -> Result<Heads, ModelError> {
    const KV: &str = "attention.head_count_kv";
    let n_heads = keys.within("attention.head_count", MAX_HEADS)?;
    let n_kv_heads = match (by_layer, keys.has(KV)) {
        (_, false) => n_heads,
        (Some(layers), true) => {
            let counts = keys.opt_each_layer(KV, layers, n_heads)?.unwrap_or_default();
            counts.last().copied().unwrap_or(n_heads)
        }
        (None, true) => keys.within(KV, n_heads)?,
    };
    if !n_heads.is_multiple_of(n_kv_heads) {
        let expected = format!("a divisor of the {n_heads} query heads");
        return Err(keys.wrong("attention.head_count_kv", expected, n_kv_heads));
    }
    let head_dim = match keys.opt_u32("attention.key_length")? {
        Some(_) => keys.within("attention.key_length", 1 << 14)?,
        None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
        None => {
            let expected = format!("a divisor of the embedding length {hidden}");
            return Err(keys.wrong("attention.head_count", expected, n_heads));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(keys.wrong("attention.key_length", "even", head_dim));
    }
    if let Some(value) = keys.opt_u32("attention.value_length")?.filter(|value| *value != head_dim) {
        let expected = format!("the key length {head_dim}");
        return Err(keys.wrong("attention.value_length", expected, value));
    }
    Ok(Heads { n_heads, n_kv_heads, head_dim })
}

/// What each layer multiplies its output by, if a layer of the file says so.
fn layer_scales(source: &dyn ModelSource, layers: u32) -> Result<Vec<f32>, ModelError> {
    let mut scales = Vec::new();
    for layer in 0..layers {
        let name = layer_scale(layer);
        let Some(info) = source.tensor(&name) else { continue };
        if info.dtype() != DType::F32 || info.elements() != 1 {
            let (expected, found) =
                ("[1] of F32".to_owned(), format!("{:?} of {}", info.dims(), info.dtype()));
            return Err(ModelError::Shape { name, expected, found, transposed: false });
        }
        let data = source.data(&name)?;
        let bytes: [u8; 4] = (*data).as_ref().first_chunk().copied().unwrap_or([0xff; 4]);
        let scale = f32::from_le_bytes(bytes);
        if !scale.is_finite() {
            return Err(ModelError::NotFinite { name, element: 0 });
        }
        scales.resize(layers as usize, 1.0);
        scales[layer as usize] = scale;
    }
    Ok(scales)
}

/// The name of the scale of a layer's output.
pub(super) fn layer_scale(layer: u32) -> String {
    format!("blk.{layer}.layer_output_scale.weight")
}

/// The vocabulary size: the rows of the embedding, which other counts of tokens must match.
fn vocabulary(source: &dyn ModelSource, keys: &Keys<'_>) -> Result<u32, ModelError> {
    const EMBEDDING: &str = "token_embd.weight";
    let info = source.tensor(EMBEDDING).ok_or_else(|| ModelError::MissingTensor {
        name: EMBEDDING.to_owned(),
        expected: "[embedding length, vocabulary]".to_owned(),
    })?;
    let rows = info.rows();
    let differs = |key: String, found: u64| ModelError::Value {
        key,
        expected: format!("the {rows} rows of {EMBEDDING}"),
        found: found.to_string(),
    };
    if let Some(size) = keys.opt_u32("vocab_size")?.filter(|size| *size as usize != rows) {
        return Err(differs(keys.key("vocab_size"), size.into()));
    }
    const TOKENS: &str = "tokenizer.ggml.tokens";
    if source.metadata().get(TOKENS).is_some() {
        let tokens = source.metadata().array(TOKENS)?.len();
        if tokens != rows {
            return Err(differs(TOKENS.to_owned(), tokens as u64));
        }
    }
    u32::try_from(rows).map_err(|_| differs(EMBEDDING.to_owned(), rows as u64))
}
