//! The ops of a logical graph, with the tensors they read.

use crate::graph::checks::{above_0, finite};
use crate::graph::{BinaryCall, ExpertPart, OpCall, TablePart, TensorOp, UnaryCall};
use crate::{
    AttentionRows, DType, DeltaHeads, GateActivation, GatedActivation, Heads, Problem, RopeSpec, RouteSpec,
    Scores,
};

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

/// An enum of element-wise ops with the [`TensorOp`] and the [`OpCall`] of the same name.
macro_rules! element_wise {
    ($(#[$doc:meta])* $kind:ident($call:ident) {
        $($(#[$op_doc:meta])* $op:ident $(($constant:ty))?,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum $kind {
            $($(#[$op_doc])* $op $(($constant))?,)*
        }

        impl $kind {
            /// The op of this name.
            pub const fn op(self) -> TensorOp {
                match self {
                    $($kind::$op { .. } => TensorOp::$op,)*
                }
            }

            /// The call of this op.
            pub(super) fn call(self, call: $call) -> OpCall {
                match self {
                    $($kind::$op { .. } => OpCall::$op(call),)*
                }
            }
        }
    };
}

element_wise! {
    /// Element-wise ops of one operand.
    UnaryKind(UnaryCall) {
        /// `x · sigmoid(x)`.
        Silu,
        /// `x · Φ(x)`.
        Gelu,
        /// GELU by its tanh approximation.
        GeluTanh,
        /// Squared ReLU, `max(x, 0)²`.
        Relu2,
        /// `x · factor`.
        Scale(f32),
        /// `cap · tanh(x / cap)`.
        SoftCap(f32),
    }
}

element_wise! {
    /// Element-wise ops of two operands.
    BinaryKind(BinaryCall) {
        /// `a + b`.
        Add,
        /// `a · b`.
        Mul,
        /// `silu(a) · b`.
        SwiGlu,
    }
}

impl UnaryKind {
    /// The constant of its call.
    pub(super) const fn scalar(self) -> f32 {
        match self {
            UnaryKind::Scale(scalar) | UnaryKind::SoftCap(scalar) => scalar,
            _ => 1.0,
        }
    }

    /// An error if its constant is out of range.
    pub(super) fn check(self) -> Result<(), Problem> {
        match self {
            UnaryKind::Scale(factor) => finite("the factor", factor).map(|_| ()),
            UnaryKind::SoftCap(cap) => above_0("the cap", cap).map(|_| ()),
            _ => Ok(()),
        }
    }
}

/// What a logical node computes; see the [`TensorOp`](crate::TensorOp) of the same name.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Op {
    Embed {
        table: TensorId,
        tokens: TensorId,
        part: Option<TablePart>,
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
        activation: GateActivation,
    },
    /// Two outputs: the weights and the ids of the experts of each row.
    Route {
        logits: TensorId,
        bias: Option<TensorId>,
        route: RouteSpec,
        part: Option<ExpertPart>,
    },
    /// The weights are those of all experts.
    ExpertGateUp {
        x: TensorId,
        ids: TensorId,
        gate: Linear,
        up: Linear,
        n_experts: u32,
        activation: GatedActivation,
    },
    /// The weight is that of all experts.
    ExpertDown {
        x: TensorId,
        ids: TensorId,
        weights: TensorId,
        down: Linear,
        residual: Option<TensorId>,
        n_experts: u32,
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
        scores: Scores<TensorId>,
    },
    CacheAttention {
        q: TensorId,
        cache: CacheRef,
        slots: Slots,
        rows: AttentionRows<TensorId>,
        heads: Heads,
        scores: Scores<TensorId>,
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
    AllReduce {
        x: TensorId,
        ranks: u32,
    },
    AllGather {
        x: TensorId,
        ranks: u32,
    },
    MeanSquares {
        a: TensorId,
        b: TensorId,
    },
    RmsScale {
        x: TensorId,
        means: TensorId,
        column: u32,
        gamma: TensorId,
        ranks: u32,
        epsilon: f32,
    },
    /// What is computed is said by a graph of its own.
    HostSegment {
        segment: u32,
        inputs: Vec<TensorId>,
    },
    /// The state has the last inputs of each sequence.
    CausalConv {
        x: TensorId,
        weight: TensorId,
        state: TensorId,
        slots: Slots,
        decode: bool,
    },
    GatedDeltaRule {
        qkv: TensorId,
        alpha: TensorId,
        beta: TensorId,
        decay: TensorId,
        dt: TensorId,
        state: TensorId,
        slots: Slots,
        decode: bool,
        heads: DeltaHeads,
        epsilon: f32,
    },
    SigmoidGate {
        x: TensorId,
        gate: TensorId,
    },
    Copy {
        x: TensorId,
    },
    ArgMax {
        x: TensorId,
    },
    /// Two outputs: the values and their indices.
    TopK {
        x: TensorId,
        k: u32,
        first: u32,
    },
    Sample {
        logits: TensorId,
        tokens: Option<TensorId>,
        states: TensorId,
    },
    Penalize {
        logits: TensorId,
        penalties: TensorId,
        history: TensorId,
        slots: Slots,
    },
    /// The history is a state: tokens that no row has drawn are replaced in it.
    GatherTokens {
        history: TensorId,
        slots: Slots,
    },
    MaskLogits {
        logits: TensorId,
        edits: TensorId,
        masks: TensorId,
        slots: Option<TensorId>,
    },
    /// Two outputs: the values and their tokens.
    LogProbs {
        logits: TensorId,
        tokens: TensorId,
        top: u32,
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

/// How many rows an operand of an op has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandRows {
    /// As many as the results of the op.
    Batch,
    /// A number that does not depend on the batch: a weight, a gain, a cache.
    Fixed,
    /// Any number: the table that rows are selected from.
    Any,
}

impl Op {
    /// Calls `visit` with every tensor that the op reads or, for caches and sampling states, updates.
    pub fn for_each_operand(&self, mut visit: impl FnMut(TensorId)) {
        self.visit_operands(|id, _| visit(id));
    }

    /// As [`for_each_operand`](Op::for_each_operand), with how many rows each operand has.
    pub(super) fn visit_operands(&self, mut visit: impl FnMut(TensorId, OperandRows)) {
        use OperandRows::{Any, Batch, Fixed};
        let mut all = |rows, ids: &[TensorId]| ids.iter().for_each(|&id| visit(id, rows));
        match self {
            Op::Embed { table, tokens, .. } => {
                all(Any, &[*table]);
                all(Batch, &[*tokens]);
            }
            Op::MulMat { x, weights, residual } => {
                all(Batch, &[*x]);
                for linear in weights {
                    all(Fixed, &[linear.weight]);
                    all(Fixed, linear.bias.as_slice());
                }
                all(Batch, residual.as_slice());
            }
            Op::GateUp { x, gate, up, .. } => {
                all(Batch, &[*x]);
                all(Fixed, &[*gate, *up]);
            }
            Op::Route { logits, bias, .. } => {
                all(Batch, &[*logits]);
                all(Fixed, bias.as_slice());
            }
            Op::ExpertGateUp { x, ids, gate, up, .. } => {
                all(Batch, &[*x, *ids]);
                for linear in [gate, up] {
                    all(Fixed, &[linear.weight]);
                    all(Fixed, linear.bias.as_slice());
                }
            }
            Op::ExpertDown { x, ids, weights, down, residual, .. } => {
                all(Batch, &[*x, *ids, *weights]);
                all(Fixed, &[down.weight]);
                all(Fixed, down.bias.as_slice());
                all(Batch, residual.as_slice());
            }
            Op::RmsNorm { x, gamma, .. } => {
                all(Batch, &[*x]);
                all(Fixed, &[*gamma]);
            }
            Op::AddRmsNorm { a, b, gamma, .. } | Op::RmsScale { x: a, means: b, gamma, .. } => {
                all(Batch, &[*a, *b]);
                all(Fixed, &[*gamma]);
            }
            Op::Binary { a, b, .. } | Op::MeanSquares { a, b } => all(Batch, &[*a, *b]),
            Op::Unary { x, .. } | Op::SoftMax { x, .. } | Op::Copy { x } => all(Batch, &[*x]),
            Op::ArgMax { x } | Op::TopK { x, .. } => all(Batch, &[*x]),
            Op::AllReduce { x, .. } | Op::AllGather { x, .. } => all(Batch, &[*x]),
            Op::HostSegment { inputs, .. } => all(Batch, inputs),
            Op::Rope { x, positions, factors, .. } => {
                all(Batch, &[*x, *positions]);
                all(Fixed, factors.as_slice());
            }
            Op::Attention { q, k, v, scores, .. } => {
                all(Batch, &[*q, *k, *v]);
                all(Fixed, scores.sinks.as_slice());
            }
            Op::CacheAttention { q, cache, slots, rows, scores, .. } => {
                all(Batch, &[*q]);
                all(Fixed, scores.sinks.as_slice());
                all(Fixed, rows.work().map(|(work, _)| *work).as_slice());
                all(Fixed, &[cache.k, cache.v, cache.table]);
                all(Batch, &[slots.positions]);
                all(Batch, slots.sequences.as_slice());
            }
            Op::KvStore { k, v, cache, slots, .. } => {
                all(Batch, &[*k, *v]);
                all(Fixed, &[cache.k, cache.v, cache.table]);
                all(Batch, &[slots.positions]);
                all(Batch, slots.sequences.as_slice());
            }
            Op::RopeStore { q, k, v, q_gamma, k_gamma, factors, cache, slots, .. } => {
                all(Batch, &[*q, *k, *v]);
                all(Fixed, &[cache.k, cache.v, cache.table]);
                all(Batch, &[slots.positions]);
                all(Batch, slots.sequences.as_slice());
                for id in [q_gamma, k_gamma, factors] {
                    all(Fixed, id.as_slice());
                }
            }
            Op::CausalConv { x, weight, state, slots, .. } => {
                all(Batch, &[*x, slots.positions]);
                all(Fixed, &[*weight, *state]);
                all(Batch, slots.sequences.as_slice());
            }
            Op::GatedDeltaRule { qkv, alpha, beta, decay, dt, state, slots, .. } => {
                all(Batch, &[*qkv, *alpha, *beta, slots.positions]);
                all(Fixed, &[*decay, *dt, *state]);
                all(Batch, slots.sequences.as_slice());
            }
            Op::SigmoidGate { x, gate } => all(Batch, &[*x, *gate]),
            Op::Sample { logits, tokens, states } => {
                all(Batch, &[*logits, *states]);
                all(Batch, tokens.as_slice());
            }
            Op::Penalize { logits, penalties, history, slots } => {
                all(Batch, &[*logits, *penalties]);
                all(Fixed, &[*history]);
                all(Batch, &[slots.positions]);
                all(Batch, slots.sequences.as_slice());
            }
            Op::GatherTokens { history, slots } => {
                all(Fixed, &[*history]);
                all(Batch, &[slots.positions]);
                all(Batch, slots.sequences.as_slice());
            }
            Op::MaskLogits { logits, edits, masks, slots } => {
                all(Batch, &[*logits]);
                all(if slots.is_some() { Fixed } else { Batch }, &[*edits, *masks]);
                all(Batch, slots.as_slice());
            }
            Op::LogProbs { logits, tokens, .. } => all(Batch, &[*logits, *tokens]),
            Op::Advance { drawn, tokens, positions, history, sequences } => {
                all(Batch, &[*drawn, *tokens, *positions]);
                all(Fixed, &[*history]);
                all(Batch, sequences.as_slice());
            }
        }
    }

    /// Every tensor that the op reads or, for caches and sampling states, updates.
    pub fn operands(&self) -> Vec<TensorId> {
        let mut operands = Vec::new();
        self.for_each_operand(|id| operands.push(id));
        operands
    }

    /// Pairs (output number, operand) that may share one address.
    pub fn in_place(&self) -> Vec<(usize, TensorId)> {
        let mut pairs = match self {
            Op::RmsNorm { x, .. }
            | Op::Unary { x, .. }
            | Op::SoftMax { x, .. }
            | Op::Rope { x, .. }
            | Op::RmsScale { x, .. }
            | Op::SigmoidGate { x, .. } => {
                vec![(0, *x)]
            }
            Op::Binary { a, b, .. } => vec![(0, *a), (0, *b)],
            Op::AddRmsNorm { a, b, .. } => vec![(1, *a), (1, *b)],
            Op::MulMat { residual: Some(residual), .. } | Op::ExpertDown { residual: Some(residual), .. } => {
                vec![(0, *residual)]
            }
            Op::RopeStore { q, .. } => vec![(0, *q)],
            Op::AllReduce { x, .. } => vec![(0, *x)],
            Op::Penalize { logits, .. } | Op::MaskLogits { logits, .. } => vec![(0, *logits)],
            _ => Vec::new(),
        };
        // An operand that is also read in another role must keep its value until the op is done. Only
        // element-wise ops read each element of every operand right where they write it.
        if !matches!(self, Op::Binary { .. }) {
            pairs.retain(|&(_, id)| {
                let mut reads = 0;
                self.for_each_operand(|operand| reads += usize::from(operand == id));
                reads == 1
            });
        }
        pairs
    }

    /// The op of its call.
    pub const fn op(&self) -> TensorOp {
        match self {
            Op::Embed { .. } => TensorOp::Embed,
            Op::MulMat { .. } => TensorOp::MulMat,
            Op::GateUp { .. } => TensorOp::GateUp,
            Op::Route { .. } => TensorOp::Route,
            Op::ExpertGateUp { .. } => TensorOp::ExpertGateUp,
            Op::ExpertDown { .. } => TensorOp::ExpertDown,
            Op::RmsNorm { .. } => TensorOp::RmsNorm,
            Op::AddRmsNorm { .. } => TensorOp::AddRmsNorm,
            Op::Binary { kind, .. } => kind.op(),
            Op::Unary { kind, .. } => kind.op(),
            Op::Rope { .. } => TensorOp::Rope,
            Op::SoftMax { .. } => TensorOp::SoftMax,
            Op::Attention { .. } | Op::CacheAttention { .. } => TensorOp::Attention,
            Op::KvStore { .. } => TensorOp::KvStore,
            Op::RopeStore { .. } => TensorOp::RopeStore,
            Op::AllReduce { .. } => TensorOp::AllReduce,
            Op::AllGather { .. } => TensorOp::AllGather,
            Op::MeanSquares { .. } => TensorOp::MeanSquares,
            Op::RmsScale { .. } => TensorOp::RmsScale,
            Op::HostSegment { .. } => TensorOp::HostSegment,
            Op::CausalConv { .. } => TensorOp::CausalConv,
            Op::GatedDeltaRule { .. } => TensorOp::GatedDeltaRule,
            Op::SigmoidGate { .. } => TensorOp::SigmoidGate,
            Op::Copy { .. } => TensorOp::Copy,
            Op::ArgMax { .. } => TensorOp::ArgMax,
            Op::TopK { .. } => TensorOp::TopK,
            Op::Sample { .. } => TensorOp::Sample,
            Op::Penalize { .. } => TensorOp::Penalize,
            Op::GatherTokens { .. } => TensorOp::GatherTokens,
            Op::MaskLogits { .. } => TensorOp::MaskLogits,
            Op::LogProbs { .. } => TensorOp::LogProbs,
            Op::Advance { .. } => TensorOp::Advance,
        }
    }

    /// Its name: that of its [`TensorOp`], and `cache_attention` for attention over a cache.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::CacheAttention { .. } => "cache_attention",
            _ => self.op().name(),
        }
    }
}
