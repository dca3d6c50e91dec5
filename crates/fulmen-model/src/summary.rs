//! The key figures of a model file, and how much memory the model needs.

use std::collections::BTreeMap;

use fulmen_core::{DType, KV_PAGE};

use crate::gguf::{Metadata, MetadataError, Value};
use crate::source::ModelSource;

/// The prefill chunk size that [`Memory::activations`] assumes.
pub const PREFILL_ROWS: u64 = 512;

/// The key figures of a model. What the file does not specify is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// `llama`, `qwen3`, …
    pub architecture: Option<String>,
    /// The model's name (`general.name`).
    pub name: Option<String>,
    /// Total number of elements.
    pub parameters: u64,
    /// Total size of the tensors in bytes.
    pub bytes: u64,
    /// Tensors, elements and bytes per data type.
    pub types: BTreeMap<DType, TypeTotals>,
    /// Layers.
    pub layers: Option<u64>,
    /// Width of the residual stream.
    pub embedding: Option<u64>,
    /// Query heads.
    pub heads: Option<u64>,
    /// Layers with attention: all but those with a recurrent state.
    pub attention_layers: Option<u64>,
    /// The recurrent states of hybrid models.
    pub recurrent: Option<RecurrentSummary>,
    /// KV heads, summed over all layers with a KV cache of their own, but for those of `local_kv`.
    pub total_kv_heads: Option<u64>,
    /// The KV caches of layers with a window, where their heads have another size.
    pub local_kv: Option<LocalKv>,
    /// Size of a key head.
    pub key_size: Option<u64>,
    /// Size of a value head.
    pub value_size: Option<u64>,
    /// Width of the feed-forward layer.
    pub feed_forward: Option<u64>,
    /// Experts of a layer.
    pub experts: Option<u64>,
    /// Experts that a token uses.
    pub experts_used: Option<u64>,
    /// Width of an expert's feed-forward layer.
    pub expert_feed_forward: Option<u64>,
    /// Elements that a token uses: all but those of the other experts.
    pub active_parameters: u64,
    /// The context length the model was trained for.
    pub context: Option<u64>,
    /// Vocabulary size.
    pub vocabulary: Option<u64>,
    /// The tokenizer type: `gpt2` (byte-level BPE), `llama` (SentencePiece), …
    pub tokenizer: Option<String>,
    /// The pre-tokenizer.
    pub pre_tokenizer: Option<String>,
    /// Whether the file has a chat template.
    pub chat_template: bool,
}

/// The layers of a hybrid model that have a recurrent state in place of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentSummary {
    /// These layers.
    pub layers: u64,
    /// Bytes of a sequence's state in each.
    pub bytes: u64,
    /// Columns of the queries, keys and values of a row.
    pub qkv: u64,
    /// Columns of the values of a row.
    pub values: u64,
}

/// The layers with a window of a model whose heads have another size in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalKv {
    /// KV heads, summed over those of these layers that have a KV cache of their own.
    pub total_heads: u64,
    /// Size of a key head and of a value head.
    pub size: u64,
    /// KV heads of all other layers with a KV cache of their own.
    others: u64,
    /// Keys and values of a row, in the layer with the most.
    widest: u64,
}

impl LocalKv {
    /// Reads the keys of a model with this number of layers whose heads differ.
    fn of(metadata: &Metadata, arch: &str, layers: u64, size: u64) -> Result<Option<LocalKv>, MetadataError> {
        let key = |name: &str| format!("{arch}.{name}");
        let Some(local_size) = metadata.opt_u64(&key("attention.key_length_swa"))? else { return Ok(None) };
        let windows = metadata.opt_numbers::<bool>(&key("attention.sliding_window_pattern"))?;
        let heads = match metadata.get(&key("attention.head_count_kv")) {
            Some(Value::Array(_)) => metadata.integers(&key("attention.head_count_kv"))?,
            _ => Vec::new(),
        };
        let same = if heads.is_empty() { metadata.opt_u64(&key("attention.head_count_kv"))? } else { None };
        let shared = metadata.opt_u64(&key("attention.shared_kv_layers"))?.unwrap_or(0);
        let own = layers.saturating_sub(shared);
        let (mut total_heads, mut others, mut widest) = (0u64, 0u64, 0u64);
        for (layer, local) in (0..own).zip(windows.into_iter().flatten()) {
            let listed = usize::try_from(layer).ok().and_then(|layer| heads.get(layer));
            let listed = listed.and_then(|&heads| u64::try_from(heads).ok());
            let heads = listed.or(same).unwrap_or(0);
            let (total, size) = if local { (&mut total_heads, local_size) } else { (&mut others, size) };
            *total = total.saturating_add(heads);
            widest = widest.max(heads.saturating_mul(size).saturating_mul(2));
        }
        Ok(Some(LocalKv { total_heads, size: local_size, others, widest }))
    }
}

impl RecurrentSummary {
    /// Reads the keys of a hybrid model with this number of layers.
    fn of(
        number: impl Fn(&str) -> Result<Option<u64>, MetadataError>,
        layers: u64,
    ) -> Result<Option<RecurrentSummary>, MetadataError> {
        let interval = number("full_attention_interval")?.unwrap_or(4).max(1);
        let (taps, head) = (number("ssm.conv_kernel")?, number("ssm.state_size")?);
        let (keys, values) = (number("ssm.group_count")?, number("ssm.time_step_rank")?);
        let (Some(taps), Some(head), Some(keys), Some(values)) = (taps, head, keys, values) else {
            return Ok(None);
        };
        let values = values.saturating_mul(head);
        let qkv = keys.saturating_mul(head).saturating_mul(2).saturating_add(values);
        let state = taps.saturating_sub(1).saturating_mul(qkv).saturating_add(values.saturating_mul(head));
        let (layers, bytes) = (layers - layers / interval, state.saturating_mul(4));
        Ok(Some(RecurrentSummary { layers, bytes, qkv, values }))
    }
}

/// The tensors of one data type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeTotals {
    /// Tensors.
    pub tensors: u64,
    /// Elements.
    pub parameters: u64,
    /// Bytes.
    pub bytes: u64,
}

/// An estimate of the memory that a model needs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Positions in the KV cache.
    pub context: u64,
    /// The weights as stored.
    pub weights: u64,
    /// A KV cache in F16.
    pub kv_f16: u64,
    /// A KV cache in Q8_0, if the head size is a multiple of its block.
    pub kv_q8_0: Option<u64>,
    /// The recurrent states of one sequence.
    pub states: u64,
    /// Peak activations during a prefill chunk of [`PREFILL_ROWS`] rows, plus the logits of one row.
    pub activations: u64,
}

impl Memory {
    /// The total with a KV cache in F16.
    pub fn with_f16(&self) -> u64 {
        self.with_cache(self.kv_f16)
    }

    /// The total with a KV cache in Q8_0.
    pub fn with_q8_0(&self) -> Option<u64> {
        self.kv_q8_0.map(|cache| self.with_cache(cache))
    }

    fn with_cache(&self, cache: u64) -> u64 {
        let parts = [self.weights, cache, self.states, self.activations];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl Summary {
    /// Reads the metadata that is present. A missing key is not an error; a key of the wrong type is.
    pub fn of(source: &dyn ModelSource) -> Result<Summary, MetadataError> {
        let metadata = source.metadata();
        let text = |key: &str| metadata.opt_string(key).map(|text| text.map(str::to_owned));
        let architecture = text("general.architecture")?;
        let arch = architecture.clone().unwrap_or_default();
        let key = |name: &str| format!("{arch}.{name}");
        let number = |name: &str| metadata.opt_u64(&key(name));
        // Layers that predict further tokens are not run.
        let drafts = number("nextn_predict_layers")?.unwrap_or(0);
        let layers = number("block_count")?.map(|layers| layers.saturating_sub(drafts));
        let is_hybrid = matches!(&arch[..], "qwen3next" | "qwen35" | "qwen35moe");
        let recurrent = match layers.filter(|_| is_hybrid) {
            Some(layers) => RecurrentSummary::of(number, layers)?,
            None => None,
        };
        let attention_layers = layers.map(|layers| layers - recurrent.map_or(0, |states| states.layers));
        let (embedding, heads) =
            (number("embedding_length")?, sum(metadata, &key("attention.head_count"), Some(1))?);
        let head_size = embedding.zip(heads).and_then(|(embedding, heads)| embedding.checked_div(heads));
        let tokens = metadata.opt_strings("tokenizer.ggml.tokens")?.map(|tokens| tokens.len());
        let rows = source.tensor("token_embd.weight").map(|tensor| tensor.rows());

        let mut types: BTreeMap<DType, TypeTotals> = BTreeMap::new();
        for tensor in source.tensors() {
            let totals = types.entry(tensor.dtype()).or_default();
            totals.tensors = totals.tensors.saturating_add(1);
            totals.parameters = totals.parameters.saturating_add(count(tensor.elements()));
            totals.bytes = totals.bytes.saturating_add(count(tensor.bytes()));
        }
        let key_size = number("attention.key_length")?.or(head_size);
        let local_kv = match layers.zip(key_size) {
            Some((layers, size)) => LocalKv::of(metadata, &arch, layers, size)?,
            None => None,
        };
        let experts = number("expert_count")?.filter(|count| *count > 0);
        let experts_used = number("expert_used_count")?.filter(|_| experts.is_some());
        Ok(Summary {
            name: text("general.name")?,
            parameters: types.values().map(|totals| totals.parameters).fold(0, u64::saturating_add),
            bytes: types.values().map(|totals| totals.bytes).fold(0, u64::saturating_add),
            types,
            layers,
            embedding,
            heads,
            attention_layers,
            recurrent,
            total_kv_heads: match metadata.get(&key("attention.head_count_kv")) {
                _ if local_kv.is_some() => local_kv.map(|local| local.others),
                None => heads.zip(attention_layers).and_then(|(heads, layers)| heads.checked_mul(layers)),
                Some(_) => sum(metadata, &key("attention.head_count_kv"), attention_layers)?,
            },
            local_kv,
            key_size,
            value_size: number("attention.value_length")?.or(head_size),
            feed_forward: sum(metadata, &key("feed_forward_length"), Some(1))?,
            experts,
            experts_used,
            expert_feed_forward: number("expert_feed_forward_length")?,
            active_parameters: active_parameters(source, experts.zip(experts_used)),
            context: number("context_length")?,
            vocabulary: tokens.or(rows).map(count).or(number("vocab_size")?),
            tokenizer: text("tokenizer.ggml.model")?,
            pre_tokenizer: text("tokenizer.ggml.pre")?,
            chat_template: metadata.opt_string("tokenizer.chat_template")?.is_some(),
            architecture,
        })
    }

    /// KV heads per layer, if all layers have the same number.
    pub fn kv_heads(&self) -> Option<u64> {
        let (all, layers) = self.total_kv_heads.zip(self.attention_layers)?;
        (layers > 0 && self.local_kv.is_none() && all.is_multiple_of(layers)).then(|| all / layers)
    }

    /// Bytes per KV cache position in this type.
    pub fn kv_bytes(&self, dtype: DType) -> Option<u64> {
        let size = |elements: Option<u64>| {
            let elements = usize::try_from(elements?).ok()?;
            dtype.bytes(elements).ok().map(count)
        };
        let local = match self.local_kv {
            Some(local) => local.total_heads.checked_mul(size(Some(local.size))?.checked_mul(2)?)?,
            None => 0,
        };
        let others =
            self.total_kv_heads?.checked_mul(size(self.key_size)?.checked_add(size(self.value_size)?)?)?;
        others.checked_add(local)
    }

    /// The memory for a context; `None` if the file has no weights or too little metadata.
    pub fn memory(&self, context: u64) -> Option<Memory> {
        if self.types.is_empty() {
            return None;
        }
        // A sequence has whole pages.
        let positions = context.checked_next_multiple_of(KV_PAGE.into())?;
        let kv = |dtype| self.kv_bytes(dtype)?.checked_mul(positions);
        Some(Memory {
            context,
            weights: self.bytes,
            kv_f16: kv(DType::F16)?,
            kv_q8_0: kv(DType::Q8_0),
            states: self.state_bytes(),
            activations: self.activations()?,
        })
    }

    /// Bytes of the recurrent states of one sequence.
    pub fn state_bytes(&self) -> u64 {
        self.recurrent.map_or(0, |states| states.layers.saturating_mul(states.bytes))
    }

    fn activations(&self) -> Option<u64> {
        let (embedding, layers) = (self.embedding?, self.attention_layers?.max(1));
        let q = self.heads?.checked_mul(self.key_size?)?;
        let kv = match self.local_kv {
            Some(local) => local.widest,
            None => {
                (self.total_kv_heads? / layers).checked_mul(self.key_size?.checked_add(self.value_size?)?)?
            }
        };
        // Alive beside the residual: the normed row with Q, K and V or with the feed-forward row, or Q, K and
        // V with the attention output. Plus the token and its position.
        let (qkv, attention) = (q.checked_add(kv)?, q.checked_mul(2)?.checked_add(kv)?);
        let widest = embedding.checked_add(qkv.max(self.feed_forward_row()?))?.max(attention);
        let widest = widest.max(self.delta_net_row(embedding, q)?);
        let row = embedding.checked_add(widest)?.checked_add(2)?;
        let rows = row.checked_mul(PREFILL_ROWS)?.checked_add(self.vocabulary?)?;
        rows.checked_mul(4)
    }

    /// Values of a row of a hybrid model: those of the delta net, before and after its convolution, or the
    /// output gate beside what attention has anyway.
    fn delta_net_row(&self, embedding: u64, q: u64) -> Option<u64> {
        let Some(RecurrentSummary { qkv, values, .. }) = self.recurrent else { return Some(0) };
        let convolution = qkv.checked_mul(2)?.checked_add(values)?;
        let projections = embedding.checked_add(qkv)?.checked_add(values)?;
        let gated = q.checked_mul(3)?.checked_add(embedding)?;
        Some(convolution.max(projections).max(gated))
    }

    /// Values of a row of the feed-forward layer: for a mixture of experts, the weights and ids of the row's
    /// experts with the router's logits or with the results of these experts.
    fn feed_forward_row(&self) -> Option<u64> {
        let Some((experts, used)) = self.experts.zip(self.experts_used) else { return self.feed_forward };
        let inner = match self.expert_feed_forward {
            Some(inner) => inner,
            None => self.feed_forward?.checked_div(used)?,
        };
        experts.max(used.checked_mul(inner)?).checked_add(used.checked_mul(2)?)
    }

    /// The longest context that fits into `bytes` with a KV cache of this type, capped at the model's own
    /// context.
    pub fn longest_context(&self, dtype: DType, bytes: u64) -> Option<u64> {
        let left = bytes.checked_sub(self.bytes)?.checked_sub(self.activations()?)?;
        let left = left.checked_sub(self.state_bytes())?;
        let page = self.kv_bytes(dtype)?.checked_mul(KV_PAGE.into())?;
        let fits = left.checked_div(page)?.saturating_mul(KV_PAGE.into());
        Some(self.context.map_or(fits, |context| fits.min(context)))
    }
}

/// Elements of all tensors, of those of experts the share of `used` of `experts`.
fn active_parameters(source: &dyn ModelSource, experts: Option<(u64, u64)>) -> u64 {
    let mut total: u64 = 0;
    for tensor in source.tensors() {
        let elements = count(tensor.elements());
        let active = match experts.filter(|_| tensor.name().contains("_exps.")) {
            Some((experts, used)) => elements / experts * used.min(experts),
            None => elements,
        };
        total = total.saturating_add(active);
    }
    total
}

/// A number times `times`, or the sum of an array with one number per layer.
fn sum(metadata: &Metadata, key: &str, times: Option<u64>) -> Result<Option<u64>, MetadataError> {
    if !matches!(metadata.get(key), Some(Value::Array(_))) {
        let one = metadata.opt_u64(key)?;
        return Ok(one.zip(times).and_then(|(one, times)| one.checked_mul(times)));
    }
    let items = metadata.integers(key)?;
    // A single value represents all layers: the largest.
    if times == Some(1) {
        return Ok(items.iter().copied().max().and_then(|most| u64::try_from(most).ok()));
    }
    let add = |sum: u64, &item: &i64| sum.checked_add(u64::try_from(item).ok()?);
    Ok(items.iter().try_fold(0, add))
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fulmen_core::{PlanOptions, SharedBytes};

    use super::*;
    use crate::arch::{Config, GraphSpec, Step};
    use crate::gguf::{Array, GgufFile, GgufWriter};
    use crate::source::{SourceError, TensorInfo};
    use crate::synth::{ModelShape, Synth};

    fn file(change: impl FnOnce(&mut Metadata)) -> GgufFile {
        let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
        let synth = Synth::new(shape, "q8_0".parse().unwrap(), 1);
        let (mut metadata, tensors) = (synth.metadata(), synth.tensors().unwrap());
        change(&mut metadata);
        let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
        tensors.iter().for_each(|t| writer.write(t.name(), &vec![0; t.bytes()]).unwrap());
        GgufFile::from_bytes(std::sync::Arc::new(writer.finish().unwrap())).unwrap()
    }

    #[test]
    fn a_small_model_in_numbers() {
        let summary = Summary::of(&file(|_| ())).unwrap();
        assert_eq!(summary.architecture.as_deref(), Some("qwen3"));
        assert_eq!((summary.layers, summary.heads, summary.kv_heads()), (Some(2), Some(4), Some(2)));
        assert_eq!((summary.key_size, summary.vocabulary), (Some(128), Some(1024)));
        // Embedding 1024 x 256; per layer q, o: 256 x 512, k, v: 256 x 256, three of 256 x 512; norms.
        let matrices = 1024 * 256 + 2 * (5 * 256 * 512 + 2 * 256 * 256);
        let vectors = 256 + 2 * (2 * 256 + 2 * 128);
        assert_eq!(summary.parameters, matrices + vectors);
        assert_eq!(summary.bytes, matrices / 32 * 34 + vectors * 4);
        let q8_0 = TypeTotals { tensors: 15, parameters: matrices, bytes: matrices / 32 * 34 };
        assert_eq!(summary.types[&DType::Q8_0], q8_0);
        let memory = summary.memory(1000).unwrap();
        // Keys and values of two heads of 128 in two layers, in whole pages.
        assert_eq!(memory.kv_f16, 1024 * 2 * 2 * 2 * 128 * 2);
        assert_eq!(memory.kv_q8_0, Some(1024 * 2 * 2 * 2 * 128 / 32 * 34));
        // Attention has the peak: the residual, Q, K, V and the output.
        assert_eq!(memory.activations, 4 * (512 * (256 + 2 * 512 + 2 * 256 + 2) + 1024));
        let fits = memory.with_f16();
        assert_eq!(summary.longest_context(DType::F16, fits), Some(1024));
        assert_eq!(summary.longest_context(DType::F16, fits - 1), Some(1024 - 128));
        assert_eq!(summary.longest_context(DType::F16, u64::MAX), Some(2048));
        assert_eq!(summary.longest_context(DType::F16, summary.bytes), None);
    }

    #[test]
    fn a_token_uses_a_part_of_a_mixture_of_experts() {
        let synth = Synth::new(ModelShape::preset("qwen3-30b-a3b").unwrap(), "q4_k_m".parse().unwrap(), 1);
        let source = Plain { metadata: synth.metadata(), tensors: synth.tensors().unwrap() };
        let summary = Summary::of(&source).unwrap();
        assert_eq!((summary.experts, summary.experts_used), (Some(128), Some(8)));
        assert_eq!(summary.parameters, 30_532_122_624);
        let of_experts = 48 * 3 * 2048 * 768;
        assert_eq!(summary.active_parameters, summary.parameters - 120 * of_experts);
        let dense = Summary::of(&file(|_| ())).unwrap();
        assert_eq!((dense.experts, dense.active_parameters), (None, dense.parameters));
    }

    #[test]
    fn heads_may_differ_from_layer_to_layer() {
        let kv = "qwen3.attention.head_count_kv";
        let summary = Summary::of(&file(|m| m.set(kv, Array::numbers(&[1i32, 4])))).unwrap();
        assert_eq!((summary.total_kv_heads, summary.kv_heads()), (Some(5), None));
        assert_eq!(summary.kv_bytes(DType::F16), Some(5 * 2 * 128 * 2));
        let summary = Summary::of(&file(|m| m.set(kv, Array::numbers(&[-1i32, 4])))).unwrap();
        assert_eq!(summary.memory(1), None);
    }

    #[test]
    fn what_is_missing_is_none_and_what_is_wrong_is_an_error() {
        let summary = Summary::of(&file(|m| {
            m.remove("qwen3.block_count");
            m.remove("tokenizer.chat_template");
        }));
        let summary = summary.unwrap();
        assert_eq!((summary.layers, summary.memory(10), summary.chat_template), (None, None, false));
        let error = Summary::of(&file(|m| m.set("qwen3.block_count", "two"))).unwrap_err().to_string();
        assert_eq!(error, r#"metadata key "qwen3.block_count" must be u64, is string"#);
        let huge = Summary::of(&file(|m| m.set("qwen3.block_count", u64::MAX))).unwrap();
        assert_eq!(huge.memory(u64::MAX), None);
        let zero = Summary::of(&file(|m| m.set("qwen3.attention.head_count", 0u32))).unwrap();
        assert_eq!(zero.memory(1).map(|memory| memory.kv_f16), Some(128 * 2 * 2 * 2 * 128 * 2));
    }

    /// A model without data, which is enough for planning.
    struct Plain {
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
    }

    impl ModelSource for Plain {
        fn metadata(&self) -> &Metadata {
            &self.metadata
        }

        fn tensors(&self) -> &[TensorInfo] {
            &self.tensors
        }

        fn tensor(&self, name: &str) -> Option<&TensorInfo> {
            self.tensors.iter().find(|tensor| tensor.name() == name)
        }

        fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
            // Only the frequency factors are read when a graph is planned.
            assert_eq!(name, "rope_freqs.weight");
            let bytes = self.tensor(name).map_or(0, TensorInfo::bytes);
            Ok(std::sync::Arc::new(1f32.to_le_bytes().repeat(bytes / 4)))
        }
    }

    #[test]
    fn the_estimate_is_near_what_the_engine_plans() {
        let presets = [
            "tiny-llama",
            "tiny-qwen2",
            "qwen3-0.6b",
            "qwen3-8b",
            "llama3.2-1b",
            "qwen3-30b-a3b",
            "olmoe-1b-7b",
        ];
        for preset in presets {
            // Activations do not depend on the number of layers.
            let shape = ModelShape { layers: 4, ..ModelShape::preset(preset).unwrap() };
            let synth = Synth::new(shape, "q4_k_m".parse().unwrap(), 1);
            let source = Plain { metadata: synth.metadata(), tensors: synth.tensors().unwrap() };
            let (summary, config) = (Summary::of(&source).unwrap(), Config::read(&source).unwrap());
            let memory = summary.memory(1024).unwrap();
            let step = Step::Prefill { rows: PREFILL_ROWS as u32, results: None };
            let spec = GraphSpec::contiguous(step, DType::F16, 1, 1024);
            let plan = config.graph(&source, &spec).unwrap().plan(&PlanOptions::default()).unwrap();
            let planned = plan.arena_bytes as u64;
            let ratio = memory.activations as f64 / planned as f64;
            assert!((1.0..1.15).contains(&ratio), "{preset}: {} of {planned}", memory.activations);
        }
    }
}
