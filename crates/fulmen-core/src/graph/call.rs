//! Typed calls: the arguments of kernels. All sizes are consistent with each other, and no address that a
//! kernel must read or write is null. Whether an address belongs to the device is checked by the backend.

use super::{AttentionRows, Heads, KvCache, LogitSlots, RopeSpec, Scores, TokenHistory};
use crate::DType;

/// A weight matrix `[rows, k]`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightArg {
    /// Its address.
    pub ptr: u64,
    /// Its type; a row is a whole number of blocks.
    pub dtype: DType,
    /// Its rows: columns of the output.
    pub rows: u32,
}

/// One projection of a matmul call: a weight, its bias and its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Projection {
    /// The weight, `[n, k]`.
    pub weight: WeightArg,
    /// Address of `n` f32 values that are added to each row.
    pub bias: Option<u64>,
    /// Address of the result, `[m, n]`.
    pub output: u64,
}

/// `output = input · Wᵀ (+ bias) (+ residual)` for each projection; all projections read the same input.
#[derive(Clone, Debug, PartialEq)]
pub struct MulMatCall {
    /// `[m, k]`.
    pub input: u64,
    /// One or more projections (Q, K and V); a call with several has no residual.
    pub parts: Vec<Projection>,
    /// `[m, n]`, added to the result. May be the output's address.
    pub residual: Option<u64>,
    /// Rows of the input.
    pub m: u32,
    /// Columns of the input.
    pub k: u32,
    /// Whether a row must get the same bits in a call of any number of rows; see
    /// [`PlanOptions::batch_invariant`](crate::PlanOptions::batch_invariant).
    pub batch_invariant: bool,
}

/// The activation of the gate in gate-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GateActivation {
    /// `x · sigmoid(x)`: SwiGLU.
    #[default]
    Silu,
    /// GELU's tanh approximation: GeGLU.
    GeluTanh,
}

/// `output = activation(input · gateᵀ) ∘ (input · upᵀ)`.
#[derive(Clone, Debug, PartialEq)]
pub struct GateUpCall {
    /// `[m, k]`.
    pub input: u64,
    /// `[n, k]`.
    pub gate: WeightArg,
    /// `[n, k]`.
    pub up: WeightArg,
    /// Of the gate.
    pub activation: GateActivation,
    /// `[m, n]`.
    pub output: u64,
    /// Rows of the input.
    pub m: u32,
    /// Columns of the input.
    pub k: u32,
    /// Whether a row must get the same bits in a call of any number of rows; see
    /// [`PlanOptions::batch_invariant`](crate::PlanOptions::batch_invariant).
    pub batch_invariant: bool,
}

/// Which rows of a table a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TablePart {
    /// The first of them.
    pub first: u32,
    /// Rows of the whole table.
    pub of: u32,
}

/// Rows of an embedding table by token id.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedCall {
    /// The table, `[rows, width]`.
    pub table: WeightArg,
    /// The larger table that it is a part of, if it is: tokens of the other rows give zeros.
    pub part: Option<TablePart>,
    /// `m` token ids.
    pub tokens: u64,
    /// `[m, width]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub width: u32,
}

/// RMS norm of `rows` rows of `width` values. In place is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNormCall {
    /// `[rows, width]`.
    pub input: u64,
    /// `width` values.
    pub gamma: u64,
    /// `[rows, width]`.
    pub output: u64,
    /// Columns.
    pub width: u32,
    /// Rows; heads times rows of the batch for a norm per head.
    pub rows: u32,
    /// Added to the mean square.
    pub epsilon: f32,
}

impl RmsNormCall {
    /// Whether its output is the `[m, k]` input of another call.
    pub fn feeds(&self, input: u64, m: u32, k: u32) -> bool {
        self.output == input && self.rows == m && self.width == k
    }
}

/// `sum = a + b`, `output = rms_norm(sum)`. `sum` may be the address of `a` or `b`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRmsNormCall {
    /// `[rows, width]`.
    pub a: u64,
    /// `[rows, width]`.
    pub b: u64,
    /// `width` values.
    pub gamma: u64,
    /// `[rows, width]`.
    pub sum: u64,
    /// `[rows, width]`.
    pub output: u64,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub rows: u32,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// An element-wise op of two operands. In place with either is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct BinaryCall {
    /// First operand.
    pub a: u64,
    /// Second operand.
    pub b: u64,
    /// Result.
    pub output: u64,
    /// Elements.
    pub n_elements: usize,
}

/// An element-wise op of one operand. In place is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct UnaryCall {
    /// Operand.
    pub input: u64,
    /// Result.
    pub output: u64,
    /// Elements.
    pub n_elements: usize,
    /// The factor of Scale, the cap of SoftCap; 1 otherwise.
    pub scalar: f32,
}

/// Rotary position embedding. In place is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeCall {
    /// `[m, n_heads, head_dim]`.
    pub input: u64,
    /// `m` positions.
    pub positions: u64,
    /// `n_rot / 2` frequency factors.
    pub factors: Option<u64>,
    /// `[m, n_heads, head_dim]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Heads in a row.
    pub n_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// The rotation.
    pub rope: RopeSpec,
}

/// Softmax of `input · scale` over rows. In place is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftMaxCall {
    /// `[rows, width]`.
    pub input: u64,
    /// `[rows, width]`.
    pub output: u64,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub rows: u32,
    /// Multiplies the input.
    pub scale: f32,
}

/// Where the keys and values of an attention come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvSource {
    /// Rows of the same batch, `[m, n_kv_heads · head_dim]`: row `r` sees rows 0 to `r`.
    Rows {
        /// Keys.
        k: u64,
        /// Values.
        v: u64,
    },
    /// Pages of a cache: row `r` sees positions 0 to `positions[r]` of sequence `sequences[r]`.
    Cache {
        /// The cache.
        cache: KvCache,
        /// `m` positions.
        positions: u64,
        /// `m` sequence numbers; all 0 if not given.
        sequences: Option<u64>,
    },
}

/// Causal grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionCall {
    /// `[m, n_heads · head_dim]`.
    pub q: u64,
    /// Keys and values.
    pub kv: KvSource,
    /// `[m, n_heads · head_dim]`.
    pub output: u64,
    /// Rows of queries.
    pub m: u32,
    /// Heads.
    pub heads: Heads,
    /// Which of them decode and which prefill, over a cache.
    pub rows: AttentionRows,
    /// What scores are, and the keys that a row sees.
    pub scores: Scores,
    /// Layer number, for profiles.
    pub layer: usize,
    /// Whether a row must get the same bits in a call of any number of rows; see
    /// [`PlanOptions::batch_invariant`](crate::PlanOptions::batch_invariant).
    pub batch_invariant: bool,
}

impl AttentionCall {
    /// The scores, without a window, chunks or a temperature that no position of the call can reach.
    pub fn scores(&self) -> Scores {
        let capacity = match &self.kv {
            KvSource::Rows { .. } => self.m,
            KvSource::Cache { cache, .. } => cache.capacity(),
        };
        self.scores.up_to(capacity)
    }
}

/// Rows of keys and values into a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct KvStoreCall {
    /// `[m, n_kv_heads · head_dim]`.
    pub k: u64,
    /// `[m, n_kv_heads · head_dim]`.
    pub v: u64,
    /// The cache.
    pub cache: KvCache,
    /// `m` positions.
    pub positions: u64,
    /// `m` sequence numbers; all 0 if not given.
    pub sequences: Option<u64>,
    /// Rows.
    pub m: u32,
    /// Heads.
    pub heads: Heads,
}

/// Norm per head (optional), RoPE and store, in one: see [`TensorOp::RopeStore`](super::TensorOp::RopeStore).
#[derive(Clone, Debug, PartialEq)]
pub struct RopeStoreCall {
    /// `[m, n_heads · head_dim]`.
    pub q: u64,
    /// Keys and values, cache, positions, rows and heads.
    pub store: KvStoreCall,
    /// Gain of the query heads' norm.
    pub q_gamma: Option<u64>,
    /// Gain of the key heads' norm.
    pub k_gamma: Option<u64>,
    /// Epsilon of both norms.
    pub epsilon: f32,
    /// The rotation.
    pub rope: RopeSpec,
    /// `n_rot / 2` frequency factors.
    pub factors: Option<u64>,
    /// The rotated queries. May be the address of `q`.
    pub output: u64,
}

/// A copy of bytes that do not overlap.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyCall {
    /// Source.
    pub input: u64,
    /// Destination.
    pub output: u64,
    /// Number of bytes.
    pub bytes: usize,
}

/// Index of the largest element of each row: the lowest index on a tie, never a NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgMaxCall {
    /// `[m, n]`.
    pub input: u64,
    /// `m` indices.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
}

/// The largest values of each row in descending order, of equal ones the lowest index first; never NaN or
/// -inf. Where a row has fewer, the other values are -inf and their index is
/// [`NO_TOKEN`](crate::sampling::NO_TOKEN).
#[derive(Clone, Debug, PartialEq)]
pub struct TopKCall {
    /// `[m, n]`.
    pub input: u64,
    /// `[m, k]`.
    pub values: u64,
    /// `[m, k]`: their columns, each plus `first`.
    pub indices: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
    /// How many are wanted: 1 to [`MAX_TOP_K`](crate::sampling::MAX_TOP_K).
    pub k: u32,
    /// The index of the first column.
    pub first: u32,
}

/// A token sampled from each row of logits; see [`crate::sampling`].
#[derive(Clone, Debug, PartialEq)]
pub struct SampleCall {
    /// `[m, n]`.
    pub logits: u64,
    /// `[m, n]`: whose they are, of equal logits the lowest token first; the column is the token if not
    /// given.
    pub tokens: Option<u64>,
    /// One state per row; its step is incremented.
    pub states: u64,
    /// `m` tokens.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
}

/// Repetition, frequency and presence penalties on logits; see [`Penalties`](crate::sampling::Penalties). In
/// place is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct PenalizeCall {
    /// `[m, n]`.
    pub logits: u64,
    /// One `Penalties` per row.
    pub penalties: u64,
    /// The tokens so far: those of row `r` end at `positions[r]`.
    pub history: TokenHistory,
    /// `m` positions.
    pub positions: u64,
    /// `m` sequence numbers; all 0 if not given.
    pub sequences: Option<u64>,
    /// `[m, n]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
}

/// The token of each row from the history: see
/// [`TensorOp::GatherTokens`](super::TensorOp::GatherTokens).
#[derive(Clone, Debug, PartialEq)]
pub struct GatherTokensCall {
    /// The tokens by sequence and position. A [`NO_TOKEN`](crate::sampling::NO_TOKEN) that a row finds is
    /// replaced by 0.
    pub history: TokenHistory,
    /// `m` positions.
    pub positions: u64,
    /// `m` sequence numbers; all 0 if not given.
    pub sequences: Option<u64>,
    /// `m` tokens.
    pub output: u64,
    /// Rows.
    pub m: u32,
}

/// Logit biases and token masks on logits; see [`LogitEdits`](crate::sampling::LogitEdits). In place is
/// allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskLogitsCall {
    /// `[m, n]`.
    pub logits: u64,
    /// Biases and masks.
    pub state: LogitSlots,
    /// The slot of each row, or [`NO_SLOT`](crate::sampling::NO_SLOT); row `r` has slot `r` if not given.
    pub slots: Option<u64>,
    /// `[m, n]`.
    pub output: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
}

/// Log-probabilities of one token of each row and of the most likely ones; see
/// [`log_probs`](crate::sampling#log-probabilities).
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbsCall {
    /// `[m, n]`.
    pub logits: u64,
    /// `m` tokens.
    pub tokens: u64,
    /// `[m, 1 + top]` log-probabilities.
    pub values: u64,
    /// `[m, 1 + top]`: whose they are.
    pub indices: u64,
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
    /// How many of the most likely tokens are wanted.
    pub top: u32,
}

/// The sampled tokens become the inputs of the next decode step: see
/// [`TensorOp::Advance`](super::TensorOp::Advance).
#[derive(Clone, Debug, PartialEq)]
pub struct AdvanceCall {
    /// `m` sampled tokens.
    pub drawn: u64,
    /// `m` tokens: the input of the next step.
    pub tokens: u64,
    /// `m` positions, each incremented but kept below `history.capacity`.
    pub positions: u64,
    /// `m` sequence numbers; all 0 if not given. Of several rows of one sequence at one position, any one
    /// leaves its token in the history.
    pub sequences: Option<u64>,
    /// Each token is stored at its new position.
    pub history: TokenHistory,
    /// Rows.
    pub m: u32,
}
