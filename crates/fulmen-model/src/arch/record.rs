//! The operations that architectures are described in: each records ops and looks up the weights they need.

use std::collections::HashSet;

use fulmen_core::{AttentionRows, Cache, DType, GraphBuilder, Heads, Rotation, Scores, Tensor, UnaryKind};

use super::config::layer_scale;
use super::host_segment::HostSegment;
use super::placement::Stage;
use super::shard::Shard;
use super::split::{LAYER_EMBEDDING, LAYER_PROJECTION};
use super::{Config, names};
use crate::error::ModelError;
use crate::source::{ModelSource, TensorInfo};

/// Whether a linear layer has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    /// Never; a file that has one is rejected.
    None,
    /// Only if the file has one.
    Optional,
    /// Always.
    Required,
}

/// A graph under construction, and the model source whose weights it uses.
pub(super) struct Recorder<'a> {
    pub(super) builder: GraphBuilder,
    pub(super) config: &'a Config,
    source: &'a dyn ModelSource,
    /// What is recorded, and what of it the host computes.
    pub(super) stage: Stage,
    pub(super) host_segments: Vec<HostSegment>,
    /// Names of the tensors used so far.
    pub(super) used: HashSet<String>,
    /// The gains of norms without one, of all heads and of those of layers with a window.
    unit_gains: [Option<Tensor>; 2],
    /// The gain of the norm of the embeddings that layers have of their own.
    layer_embedding_gain: Option<Tensor>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(config: &'a Config, source: &'a dyn ModelSource, stage: Stage) -> Recorder<'a> {
        Recorder {
            builder: GraphBuilder::new(),
            config,
            source,
            stage,
            host_segments: Vec::new(),
            used: HashSet::new(),
            unit_gains: [None; 2],
            layer_embedding_gain: None,
        }
    }

    /// The tensor with this name, which must have these dimensions (in GGUF order).
    pub(super) fn find(&mut self, name: &str, dims: &[u32]) -> Result<&'a TensorInfo, ModelError> {
        let expected: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
        let info = self.source.tensor(name).ok_or_else(|| ModelError::MissingTensor {
            name: name.to_owned(),
            expected: format!("{expected:?}"),
        })?;
        // Trailing dimensions of 1 do not matter.
        let (first, rest) = info.dims().split_at(expected.len().min(info.dims().len()));
        if first != expected || rest.iter().any(|&dim| dim != 1) {
            let transposed = info.dims().iter().rev().eq(&expected);
            return Err(ModelError::Shape {
                name: name.to_owned(),
                expected: format!("{expected:?}"),
                found: format!("{:?}", info.dims()),
                transposed,
            });
        }
        self.used.insert(name.to_owned());
        Ok(info)
    }

    /// A weight `[rows, width]`.
    pub(super) fn weight(&mut self, name: &str, rows: u32, width: u32) -> Result<Tensor, ModelError> {
        let dtype = self.find(name, &[width, rows])?.dtype();
        if matches!(dtype, DType::U32 | DType::Q8_K) {
            let expected = "a floating-point or quantized type for weights";
            return Err(ModelError::TensorType { name: name.to_owned(), expected, found: dtype });
        }
        Ok(self.builder.weight(name, dtype, rows, width)?)
    }

    /// Whether a weight has the bias `name`.
    pub(super) fn wants(&self, bias: Bias, name: &str) -> bool {
        match bias {
            Bias::None => false,
            Bias::Optional => self.source.tensor(name).is_some(),
            Bias::Required => true,
        }
    }

    /// An f32 vector: a norm weight or a bias. F16 and BF16 vectors are converted when they are loaded.
    pub(super) fn vector(&mut self, name: &str, len: u32) -> Result<Tensor, ModelError> {
        let dtype = self.find(name, &[len])?.dtype();
        check_vector(name, dtype)?;
        Ok(self.builder.vector(name, len)?)
    }

    /// A vector as a table of one value in each row.
    pub(super) fn column(&mut self, name: &str, rows: u32) -> Result<Tensor, ModelError> {
        let dtype = self.find(name, &[rows])?.dtype();
        check_vector(name, dtype)?;
        Ok(self.builder.weight(name, DType::F32, rows, 1)?)
    }

    /// Several such vectors, `[rows, len]`.
    pub(super) fn vectors(&mut self, name: &str, rows: u32, len: u32) -> Result<Tensor, ModelError> {
        let dtype = self.find(name, &[len, rows])?.dtype();
        check_vector(name, dtype)?;
        Ok(self.builder.weight(name, DType::F32, rows, len)?)
    }
}

/// A vector is stored as floats.
fn check_vector(name: &str, dtype: DType) -> Result<(), ModelError> {
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        let expected = "F32, F16 or BF16";
        return Err(ModelError::TensorType { name: name.to_owned(), expected, found: dtype });
    }
    Ok(())
}

/// Where the recurrent states of rows lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowStates {
    /// The slots of the rows; `None` if there is one slot.
    pub(super) rows: Option<Tensor>,
    /// All slots.
    pub(super) slots: u32,
}

/// One layer of a graph under construction.
pub(super) struct Layer<'r, 'a> {
    pub(super) recorder: &'r mut Recorder<'a>,
    pub(super) number: u32,
    /// Positions of the rows.
    pub(super) positions: Tensor,
    /// The RoPE of the layer, if it has one.
    pub(super) rotation: Option<Rotation>,
    /// Its KV cache; `None` if it has a recurrent state.
    pub(super) cache: Option<Cache>,
    pub(super) sequences: Option<Tensor>,
    pub(super) states: RowStates,
    /// What is known of the rows.
    pub(super) rows: AttentionRows<Tensor>,
    /// The tokens of the rows and their embeddings, where the stage embeds them.
    pub(super) embedded: Option<[Tensor; 2]>,
}

impl Layer<'_, '_> {
    /// Number of heads and their size.
    pub(super) fn heads(&self) -> Heads {
        self.recorder.config.heads_of(self.number)
    }

    /// Width of a hidden state.
    pub(super) fn hidden(&self) -> u32 {
        self.recorder.config.hidden
    }

    pub(super) fn name(&self, name: &str, kind: &str) -> String {
        format!("blk.{}.{name}.{kind}", self.number)
    }

    /// RMS norm with the weight `name`.
    pub(super) fn rms_norm(&mut self, x: Tensor, name: &str) -> Result<Tensor, ModelError> {
        self.norm(x, name, self.hidden())
    }

    /// RMS norm of each head with the weight `name`.
    pub(super) fn head_norm(&mut self, x: Tensor, name: &str) -> Result<Tensor, ModelError> {
        self.norm(x, name, self.heads().head_dim)
    }

    /// RMS norms of whole rows, all query heads together and all key heads together, with the weights
    /// `names`. Ranks have parts of the rows, whose mean squares they add up.
    pub(super) fn row_norms(
        &mut self,
        [q, k]: [Tensor; 2],
        names: [&str; 2],
    ) -> Result<[Tensor; 2], ModelError> {
        let (q_width, kv_width) = (self.heads().q_width(), self.heads().kv_width());
        let Some(Shard { ranks, .. }) = self.recorder.config.shard else {
            return Ok([self.norm(q, names[0], q_width)?, self.norm(k, names[1], kv_width)?]);
        };
        let epsilon = self.recorder.config.epsilon;
        let q_gain = self.recorder.vector(&self.name(names[0], "weight"), q_width)?;
        let k_gain = self.recorder.vector(&self.name(names[1], "weight"), kv_width)?;
        let b = &mut self.recorder.builder;
        let means = b.mean_squares(q, k)?;
        let means = b.all_reduce(means, ranks)?;
        let q = b.rms_scale(q, (means, 0), q_gain, ranks, epsilon)?;
        Ok([q, b.rms_scale(k, (means, 1), k_gain, ranks, epsilon)?])
    }

    fn norm(&mut self, x: Tensor, name: &str, width: u32) -> Result<Tensor, ModelError> {
        let gain = self.recorder.vector(&self.name(name, "weight"), width)?;
        Ok(self.recorder.builder.rms_norm(x, gain, self.recorder.config.epsilon)?)
    }

    /// RMS norm of each head without a weight.
    pub(super) fn unit_head_norm(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        let Recorder { config, unit_gains, .. } = &*self.recorder;
        let local = config.variant.local_heads.is_some() && config.variant.window_of(self.number).is_some();
        let (name, known) = match local {
            true => (names::UNIT_GAIN_LOCAL, unit_gains[1]),
            false => (names::UNIT_GAIN, unit_gains[0]),
        };
        let (head_dim, epsilon) = (self.heads().head_dim, config.epsilon);
        let gain = match known {
            Some(gain) => gain,
            None => self.recorder.builder.vector(name, head_dim)?,
        };
        self.recorder.unit_gains[usize::from(local)] = Some(gain);
        Ok(self.recorder.builder.rms_norm(x, gain, epsilon)?)
    }

    /// Linear layer with the weight `name` of `n` rows.
    pub(super) fn linear(&mut self, x: Tensor, name: &str, n: u32, bias: Bias) -> Result<Tensor, ModelError> {
        let (_, k) = self.recorder.builder.shape(x)?;
        let weight = self.recorder.weight(&self.name(name, "weight"), n, k)?;
        let bias_name = self.name(name, "bias");
        let bias = if self.recorder.wants(bias, &bias_name) {
            Some(self.recorder.vector(&bias_name, n)?)
        } else {
            None
        };
        let y = self.recorder.builder.linear(x, weight, bias, None)?;
        self.recorder.reduce(y, name)
    }

    /// Applies RoPE to query or key heads, if the layer has RoPE.
    pub(super) fn rope(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        match self.rotation {
            Some(rotation) => Ok(self.recorder.builder.rope(x, self.heads().head_dim, rotation)?),
            None => Ok(x),
        }
    }

    /// Stores keys and values in the KV cache, then computes attention of the queries over the cache.
    pub(super) fn attention(&mut self, q: Tensor, k: Tensor, v: Tensor) -> Result<Tensor, ModelError> {
        self.attention_with(q, k, v, None)
    }

    /// The attention sinks `name`: a logit for each query head.
    pub(super) fn sinks(&mut self, name: &str) -> Result<Tensor, ModelError> {
        let name = self.name(name, "weight");
        self.recorder.vector(&name, self.heads().n_heads)
    }

    /// As [`attention`](Layer::attention), with attention sinks if there are some.
    pub(super) fn attention_with(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Option<Tensor>,
    ) -> Result<Tensor, ModelError> {
        let cache = self.cache.ok_or(ModelError::Without { what: "KV cache in this layer" })?;
        self.recorder.builder.kv_store(k, v, cache, self.positions, self.sequences)?;
        self.attention_over_cache(q, sinks)
    }

    /// Attention of the queries over what the KV cache has.
    pub(super) fn attention_over_cache(
        &mut self,
        q: Tensor,
        sinks: Option<Tensor>,
    ) -> Result<Tensor, ModelError> {
        let scores = self.recorder.config.variant.scores(self.number, self.heads().head_dim);
        let scores = Scores { sinks, ..scores };
        let cache = self.cache.ok_or(ModelError::Without { what: "KV cache in this layer" })?;
        let (positions, builder) = (self.positions, &mut self.recorder.builder);
        Ok(builder.step_attention(q, cache, positions, self.sequences, self.rows, scores)?)
    }

    /// Whether the layer reads the KV cache of an earlier one.
    pub(super) fn shares_cache(&self) -> bool {
        self.recorder.config.cache_layer(self.number) != self.number
    }

    /// Allows weights in this layer that nothing reads.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        let names = names.iter().map(|name| self.name(name, "weight")).collect::<Vec<_>>();
        self.recorder.used.extend(names);
    }

    /// Whether the file has the weight `name` in this layer.
    pub(super) fn has(&self, name: &str) -> bool {
        self.recorder.source.tensor(&self.name(name, "weight")).is_some()
    }

    /// The feed-forward layer: `down(silu(gate(x)) · up(x))`.
    pub(super) fn swiglu(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        self.gated(x, ["ffn_gate", "ffn_up", "ffn_down"], self.recorder.config.inner_of(self.number))
    }

    /// A feed-forward layer of another width with other weights.
    pub(super) fn gated(
        &mut self,
        x: Tensor,
        [gate, up, down]: [&str; 3],
        inner: u32,
    ) -> Result<Tensor, ModelError> {
        let gate = self.linear(x, gate, inner, Bias::None)?;
        let up = self.linear(x, up, inner, Bias::None)?;
        let gate = self.recorder.builder.silu(gate)?;
        let gated = self.recorder.builder.mul(gate, up)?;
        self.linear(gated, down, self.hidden(), Bias::None)
    }

    /// As [`swiglu`](Layer::swiglu) with GELU: `down(gelu(gate(x)) · up(x))`.
    pub(super) fn geglu(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        let (hidden, inner) = (self.hidden(), self.recorder.config.inner_of(self.number));
        let gate = self.linear(x, "ffn_gate", inner, Bias::None)?;
        let up = self.linear(x, "ffn_up", inner, Bias::None)?;
        let gate = self.recorder.builder.unary(UnaryKind::GeluTanh, gate)?;
        let gated = self.recorder.builder.mul(gate, up)?;
        self.linear(gated, "ffn_down", hidden, Bias::None)
    }

    /// Adds what attention or feed-forward computed to the residual stream `x`, scaled where the architecture
    /// does so.
    pub(super) fn add(&mut self, x: Tensor, update: Tensor) -> Result<Tensor, ModelError> {
        let scale = self.recorder.config.variant.residual_scale;
        let builder = &mut self.recorder.builder;
        let update = if scale == 1.0 { update } else { builder.unary(UnaryKind::Scale(scale), update)? };
        Ok(builder.add(x, update)?)
    }

    /// Adds what the token's embedding of this layer contributes, if layers have embeddings of their own: it
    /// is mixed with a projection of the embedding that all layers share, gated by the residual stream and
    /// projected to its width.
    pub(super) fn add_layer_embedding(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        let config = self.recorder.config;
        let (width, hidden) = (config.variant.layer_embedding, self.hidden());
        if width == 0 {
            return Ok(x);
        }
        let [tokens, embedding] = self
            .embedded
            .ok_or(ModelError::Without { what: "embeddings in a stage that is not the first" })?;
        let gain = match self.recorder.layer_embedding_gain {
            Some(gain) => gain,
            None => self.recorder.vector("per_layer_proj_norm.weight", width)?,
        };
        self.recorder.layer_embedding_gain = Some(gain);
        let table = self.recorder.weight(&self.name(LAYER_EMBEDDING, "weight"), config.vocabulary, width)?;
        let own = self.recorder.builder.embed(table, tokens)?;
        let shared = self.linear(embedding, LAYER_PROJECTION, width, Bias::None)?;
        let b = &mut self.recorder.builder;
        let own = b.unary(UnaryKind::Scale((width as f32).sqrt()), own)?;
        // The projection is divided by the root of its width: so is the root of epsilon, in the norm.
        let shared = b.rms_norm(shared, gain, config.epsilon * hidden as f32)?;
        let mixed = b.add(shared, own)?;
        let mixed = b.unary(UnaryKind::Scale(std::f32::consts::FRAC_1_SQRT_2), mixed)?;
        let gate = self.linear(x, "inp_gate", width, Bias::None)?;
        let b = &mut self.recorder.builder;
        let gate = b.unary(UnaryKind::GeluTanh, gate)?;
        let gated = b.mul(gate, mixed)?;
        let update = self.linear(gated, "proj", hidden, Bias::None)?;
        let update = self.rms_norm(update, "post_norm")?;
        Ok(self.recorder.builder.add(x, update)?)
    }

    /// Multiplies the output of the layer by its scale, if it has one.
    pub(super) fn scale_output(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        let Some(&scale) = self.recorder.config.variant.layer_scales.get(self.number as usize) else {
            return Ok(x);
        };
        self.recorder.used.insert(layer_scale(self.number));
        Ok(self.recorder.builder.unary(UnaryKind::Scale(scale), x)?)
    }
}
