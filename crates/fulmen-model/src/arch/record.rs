//! The operations that architectures are described in: each records ops and looks up the weights they need.

use std::collections::HashSet;

use fulmen_core::{AttentionRows, Cache, DType, GraphBuilder, Heads, Rotation, Scores, Tensor, UnaryKind};

use super::Config;
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
    /// Names of the tensors used so far.
    pub(super) used: HashSet<String>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(config: &'a Config, source: &'a dyn ModelSource) -> Recorder<'a> {
        Recorder { builder: GraphBuilder::new(), config, source, used: HashSet::new() }
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
    /// Sequences: slots of recurrent states.
    pub(super) slots: u32,
    /// What is known of the rows.
    pub(super) rows: AttentionRows<Tensor>,
}

impl Layer<'_, '_> {
    /// Number of heads and their size.
    pub(super) fn heads(&self) -> Heads {
        self.recorder.config.heads
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

    /// RMS norm of whole rows, all heads together, with the weight `name`.
    pub(super) fn row_norm(&mut self, x: Tensor, name: &str) -> Result<Tensor, ModelError> {
        self.recorder.refuse_on_ranks("a norm of all heads together")?;
        let (_, width) = self.recorder.builder.shape(x)?;
        self.norm(x, name, width)
    }

    fn norm(&mut self, x: Tensor, name: &str, width: u32) -> Result<Tensor, ModelError> {
        let gain = self.recorder.vector(&self.name(name, "weight"), width)?;
        Ok(self.recorder.builder.rms_norm(x, gain, self.recorder.config.epsilon)?)
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
        let scores = self.recorder.config.variant.scores(self.number, self.heads().head_dim);
        let scores = Scores { sinks, ..scores };
        let cache = self.cache.ok_or(ModelError::Without { what: "KV cache in this layer" })?;
        let (positions, builder) = (self.positions, &mut self.recorder.builder);
        builder.kv_store(k, v, cache, positions, self.sequences)?;
        Ok(builder.step_attention(q, cache, positions, self.sequences, self.rows, scores)?)
    }

    /// Whether the file has the weight `name` in this layer.
    pub(super) fn has(&self, name: &str) -> bool {
        self.recorder.source.tensor(&self.name(name, "weight")).is_some()
    }

    /// The feed-forward layer: `down(silu(gate(x)) · up(x))`.
    pub(super) fn swiglu(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        self.gated(x, ["ffn_gate", "ffn_up", "ffn_down"], self.recorder.config.inner)
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
        let (hidden, inner) = (self.hidden(), self.recorder.config.inner);
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
}
