//! The operations that architectures are described in: each records ops and looks up the weights they need.

use std::collections::HashSet;

use fulmen_core::{AttentionRows, Cache, DType, GraphBuilder, Heads, Rotation, Tensor};

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
    fn find(&mut self, name: &str, dims: &[u32]) -> Result<&'a TensorInfo, ModelError> {
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

    /// An f32 vector: a norm weight or a bias. F16 and BF16 vectors are converted when they are loaded.
    pub(super) fn vector(&mut self, name: &str, len: u32) -> Result<Tensor, ModelError> {
        let dtype = self.find(name, &[len])?.dtype();
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            let expected = "F32, F16 or BF16";
            return Err(ModelError::TensorType { name: name.to_owned(), expected, found: dtype });
        }
        Ok(self.builder.vector(name, len)?)
    }
}

/// One layer of a graph under construction.
pub(super) struct Layer<'r, 'a> {
    pub(super) recorder: &'r mut Recorder<'a>,
    pub(super) number: u32,
    pub(super) rotation: Rotation,
    pub(super) cache: Cache,
    pub(super) sequences: Option<Tensor>,
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

    fn name(&self, name: &str, kind: &str) -> String {
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

    fn norm(&mut self, x: Tensor, name: &str, width: u32) -> Result<Tensor, ModelError> {
        let gain = self.recorder.vector(&self.name(name, "weight"), width)?;
        Ok(self.recorder.builder.rms_norm(x, gain, self.recorder.config.epsilon)?)
    }

    /// Linear layer with the weight `name` of `n` rows.
    pub(super) fn linear(&mut self, x: Tensor, name: &str, n: u32, bias: Bias) -> Result<Tensor, ModelError> {
        let (_, k) = self.recorder.builder.shape(x)?;
        let weight = self.recorder.weight(&self.name(name, "weight"), n, k)?;
        let bias_name = self.name(name, "bias");
        let wanted = match bias {
            Bias::None => false,
            Bias::Optional => self.recorder.source.tensor(&bias_name).is_some(),
            Bias::Required => true,
        };
        let bias = if wanted { Some(self.recorder.vector(&bias_name, n)?) } else { None };
        Ok(self.recorder.builder.linear(x, weight, bias, None)?)
    }

    /// Applies RoPE to query or key heads.
    pub(super) fn rope(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        Ok(self.recorder.builder.rope(x, self.heads().head_dim, self.rotation)?)
    }

    /// Stores keys and values in the KV cache, then computes attention of the queries over the cache.
    pub(super) fn attention(&mut self, q: Tensor, k: Tensor, v: Tensor) -> Result<Tensor, ModelError> {
        let scale = 1.0 / (self.heads().head_dim as f32).sqrt();
        let (positions, builder) = (self.rotation.positions, &mut self.recorder.builder);
        builder.kv_store(k, v, self.cache, positions, self.sequences)?;
        Ok(builder.step_attention(q, self.cache, positions, self.sequences, self.rows, scale)?)
    }

    /// The feed-forward layer: `down(silu(gate(x)) · up(x))`.
    pub(super) fn swiglu(&mut self, x: Tensor) -> Result<Tensor, ModelError> {
        let (hidden, inner) = (self.hidden(), self.recorder.config.inner);
        let gate = self.linear(x, "ffn_gate", inner, Bias::None)?;
        let up = self.linear(x, "ffn_up", inner, Bias::None)?;
        let gate = self.recorder.builder.silu(gate)?;
        let gated = self.recorder.builder.mul(gate, up)?;
        self.linear(gated, "ffn_down", hidden, Bias::None)
    }

    /// `a + b`.
    pub(super) fn add(&mut self, a: Tensor, b: Tensor) -> Result<Tensor, ModelError> {
        Ok(self.recorder.builder.add(a, b)?)
    }
}
