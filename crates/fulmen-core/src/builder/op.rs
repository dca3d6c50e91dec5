//! The ops of a logical graph, with the tensors they read.

use crate::{DType, Heads, RopeSpec};

/// Index of a tensor in [`LogicalGraph::tensors`](super::LogicalGraph::tensors).
pub type TensorId = usize;

/// A weight with an optional bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// `[n, k]`.
    pub weight: TensorId,
    /// `[1, n]`.
    pub bias: Option<TensorId>,
}

/// The KV cache of one layer: pages of keys and of values, and the table that assigns them to sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheRef {
    /// Keys.
    pub k: TensorId,
    /// Values.
    pub v: TensorId,
    /// The pages of each sequence, `[n_seqs][seq_pages]`.
    pub table: TensorId,
    /// F32, F16 or Q8_0.
    pub dtype: DType,
    /// Pages of the layer.
    pub n_pages: u32,
    /// Sequences.
    pub n_seqs: u32,
    /// Pages per sequence.
    pub seq_pages: u32,
}

/// The cache slots of the rows of a batch: their positions and, if there is more than one sequence, their
/// sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slots {
    /// Positions.
    pub positions: TensorId,
    /// Sequence numbers; all 0 if not given.
    pub sequences: Option<TensorId>,
}

/// Element-wise ops of one operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnaryKind {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)`.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `x · factor`.
    Scale(f32),
    /// `cap · tanh(x / cap)`.
    SoftCap(f32),
}

/// Element-wise ops of two operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BinaryKind {
    /// `a + b`.
    Add,
    /// `a · b`.
    Mul,
    /// `silu(a) · b`.
    SwiGlu,
}

/// What a logical node computes; see the [`TensorOp`](crate::TensorOp) of the same name.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Op {
    Embed {
        table: TensorId,
        tokens: TensorId,
    },
    /// One output per weight.
    MulMat {
        x: TensorId,
        weights: Vec<Linear>,
        residual: Option<TensorId>,
    },
    GateUp {
        x: TensorId,
        gate: TensorId,
        up: TensorId,
    },
    /// A gain shorter than the row gives the norm per head.
    RmsNorm {
        x: TensorId,
        gamma: TensorId,
        epsilon: f32,
    },
    /// Outputs: the norm, the sum.
    AddRmsNorm {
        a: TensorId,
        b: TensorId,
        gamma: TensorId,
        epsilon: f32,
    },
    Binary {
        kind: BinaryKind,
        a: TensorId,
        b: TensorId,
    },
    Unary {
        kind: UnaryKind,
        x: TensorId,
    },
    Rope {
        x: TensorId,
        positions: TensorId,
        factors: Option<TensorId>,
        head_dim: u32,
        rope: RopeSpec,
    },
    SoftMax {
        x: TensorId,
        scale: f32,
    },
    /// Attention among the rows of the batch.
    Attention {
        q: TensorId,
        k: TensorId,
        v: TensorId,
        heads: Heads,
        scale: f32,
    },
    CacheAttention {
        q: TensorId,
        cache: CacheRef,
        slots: Slots,
        heads: Heads,
        scale: f32,
    },
    /// No output: the cache is written.
    KvStore {
        k: TensorId,
        v: TensorId,
        cache: CacheRef,
        slots: Slots,
        heads: Heads,
    },
    RopeStore {
        q: TensorId,
        k: TensorId,
        v: TensorId,
        q_gamma: Option<TensorId>,
        k_gamma: Option<TensorId>,
        epsilon: f32,
        rope: RopeSpec,
        factors: Option<TensorId>,
        cache: CacheRef,
        slots: Slots,
        heads: Heads,
    },
    Copy {
        x: TensorId,
    },
    ArgMax {
        x: TensorId,
    },
    Sample {
        logits: TensorId,
        states: TensorId,
    },
    Penalize {
        logits: TensorId,
        penalties: TensorId,
        history: TensorId,
        slots: Slots,
    },
    /// No output: the tokens and positions of the next step and the history are written.
    Advance {
        drawn: TensorId,
        tokens: TensorId,
        positions: TensorId,
        history: TensorId,
        sequences: Option<TensorId>,
    },
}

impl Op {
    /// Every tensor that the op reads or, for caches and sampling states, updates.
    fn operands_mut(&mut self) -> Vec<&mut TensorId> {
        fn cached<'a>(cache: &'a mut CacheRef, slots: &'a mut Slots) -> Vec<&'a mut TensorId> {
            let mut ids = vec![&mut cache.k, &mut cache.v, &mut cache.table, &mut slots.positions];
            ids.extend(&mut slots.sequences);
            ids
        }
        match self {
            Op::Embed { table, tokens } => vec![table, tokens],
            Op::MulMat { x, weights, residual } => {
                let mut ids = vec![x];
                for linear in weights {
                    ids.push(&mut linear.weight);
                    ids.extend(&mut linear.bias);
                }
                ids.extend(residual);
                ids
            }
            Op::GateUp { x, gate, up } => vec![x, gate, up],
            Op::RmsNorm { x, gamma, .. } => vec![x, gamma],
            Op::AddRmsNorm { a, b, gamma, .. } => vec![a, b, gamma],
            Op::Binary { a, b, .. } => vec![a, b],
            Op::Unary { x, .. } | Op::SoftMax { x, .. } | Op::Copy { x } | Op::ArgMax { x } => vec![x],
            Op::Rope { x, positions, factors, .. } => {
                let mut ids = vec![x, positions];
                ids.extend(factors);
                ids
            }
            Op::Attention { q, k, v, .. } => vec![q, k, v],
            Op::CacheAttention { q, cache, slots, .. } => {
                let mut ids = vec![q];
                ids.extend(cached(cache, slots));
                ids
            }
            Op::KvStore { k, v, cache, slots, .. } => {
                let mut ids = vec![k, v];
                ids.extend(cached(cache, slots));
                ids
            }
            Op::RopeStore { q, k, v, q_gamma, k_gamma, factors, cache, slots, .. } => {
                let mut ids = vec![q, k, v];
                ids.extend(cached(cache, slots));
                ids.extend(q_gamma.iter_mut().chain(k_gamma).chain(factors));
                ids
            }
            Op::Sample { logits, states } => vec![logits, states],
            Op::Penalize { logits, penalties, history, slots } => {
                let mut ids = vec![logits, penalties, history, &mut slots.positions];
                ids.extend(&mut slots.sequences);
                ids
            }
            Op::Advance { drawn, tokens, positions, history, sequences } => {
                let mut ids = vec![drawn, tokens, positions, history];
                ids.extend(sequences);
                ids
            }
        }
    }

    /// Every tensor that the op reads.
    pub fn operands(&self) -> Vec<TensorId> {
        self.clone().operands_mut().into_iter().map(|id| *id).collect()
    }

    /// Pairs (output number, operand) that may share one address.
    pub fn in_place(&self) -> Vec<(usize, TensorId)> {
        let mut pairs = match self {
            Op::RmsNorm { x, .. } | Op::Unary { x, .. } | Op::SoftMax { x, .. } | Op::Rope { x, .. } => {
                vec![(0, *x)]
            }
            Op::Binary { a, b, .. } => vec![(0, *a), (0, *b)],
            Op::AddRmsNorm { a, b, .. } => vec![(1, *a), (1, *b)],
            Op::MulMat { residual: Some(residual), .. } => vec![(0, *residual)],
            Op::RopeStore { q, .. } => vec![(0, *q)],
            Op::Penalize { logits, .. } => vec![(0, *logits)],
            _ => Vec::new(),
        };
        // An operand that is also read in another role must keep its value until the op is done. Only
        // element-wise ops read each element of every operand right where they write it.
        if !matches!(self, Op::Binary { .. }) {
            let operands = self.operands();
            pairs.retain(|(_, id)| operands.iter().filter(|operand| *operand == id).count() == 1);
        }
        pairs
    }

    /// A short name.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::MulMat { .. } => "mul_mat",
            Op::GateUp { .. } => "gate_up",
            Op::RmsNorm { .. } => "rms_norm",
            Op::AddRmsNorm { .. } => "add_rms_norm",
            Op::Binary { kind: BinaryKind::Add, .. } => "add",
            Op::Binary { kind: BinaryKind::Mul, .. } => "mul",
            Op::Binary { kind: BinaryKind::SwiGlu, .. } => "swiglu",
            Op::Unary { kind: UnaryKind::Silu, .. } => "silu",
            Op::Unary { kind: UnaryKind::Gelu, .. } => "gelu",
            Op::Unary { kind: UnaryKind::GeluTanh, .. } => "gelu_tanh",
            Op::Unary { kind: UnaryKind::Scale(_), .. } => "scale",
            Op::Unary { kind: UnaryKind::SoftCap(_), .. } => "softcap",
            Op::Rope { .. } => "rope",
            Op::SoftMax { .. } => "softmax",
            Op::Attention { .. } => "attention",
            Op::CacheAttention { .. } => "cache_attention",
            Op::KvStore { .. } => "kv_store",
            Op::RopeStore { .. } => "rope_store",
            Op::Copy { .. } => "copy",
            Op::ArgMax { .. } => "argmax",
            Op::Sample { .. } => "sample",
            Op::Penalize { .. } => "penalize",
            Op::Advance { .. } => "advance",
        }
    }
}
