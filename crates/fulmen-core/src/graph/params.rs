//! The parameters of a node, beyond its inputs and its shape.

use super::{
    AttentionRows, DeltaHeads, ExpertPart, GateActivation, GatedActivation, KvCache, RecurrentState,
    RouteSpec, TablePart, Temperature,
};
use crate::DType;

/// Which two elements of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// Elements 2i and 2i+1 (GPT-J style): Llama's GGUF files.
    #[default]
    Interleaved,
    /// Elements i and i + n_rot/2 (GPT-NeoX style): Qwen.
    NeoX,
}

/// How rotary position embedding (RoPE) rotates a head.
///
/// Pair `i` of a row at position `p` is rotated by the angle `p · freq_scale · base^(-2i/n_rot) / factor[i]`,
/// and multiplied by `magnitude`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Which elements form a pair.
    pub pairing: RopePairing,
    /// How many elements of a head are rotated; the rest is copied. Even, at most the size of the head.
    pub n_rot: u32,
    /// The base of the frequencies, e.g. 10 000.
    pub base: f32,
    /// Multiplies the position: 1 / factor for linear scaling, else 1.
    pub freq_scale: f32,
    /// Multiplies sine and cosine (YaRN's attention factor), else 1.
    pub magnitude: f32,
}

impl RopeSpec {
    /// Plain RoPE over the whole head.
    pub fn new(pairing: RopePairing, head_dim: u32, base: f32) -> RopeSpec {
        RopeSpec { pairing, n_rot: head_dim, base, freq_scale: 1.0, magnitude: 1.0 }
    }
}

/// How the columns of a row are divided into heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
}

impl Heads {
    /// Columns of a query row.
    pub fn q_width(self) -> u32 {
        self.n_heads.saturating_mul(self.head_dim)
    }

    /// Columns of a key or value row.
    pub fn kv_width(self) -> u32 {
        self.n_kv_heads.saturating_mul(self.head_dim)
    }
}

/// The tokens of every sequence by position: `[n_seqs][capacity]` u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenHistory {
    /// Address of the tokens.
    pub ptr: u64,
    /// Sequences.
    pub n_seqs: u32,
    /// Positions per sequence.
    pub capacity: u32,
}

/// Logit biases and token masks of sampling slots, as laid out in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogitSlots {
    /// Address of the edits: `[n_slots, 2 + 2 · capacity]` words, see
    /// [`LogitEdits`](crate::sampling::LogitEdits).
    pub edits_ptr: u64,
    /// Address of the masks: `[n_slots, ⌈n / 32⌉]` words. Bit `t % 32` of word `t / 32` allows token `t`.
    pub masks_ptr: u64,
    /// Slots.
    pub n_slots: u32,
    /// Room for biases in each.
    pub capacity: u32,
}

impl LogitSlots {
    /// Words of a slot's edits.
    pub fn edit_words(&self) -> u32 {
        self.capacity.saturating_mul(2).saturating_add(2)
    }
}

/// A further weight of a MulMat node with several (Q, K and V projections in one node), with its own output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtraWeight {
    /// Address of the weight, `[rows, k]`.
    pub weight_ptr: u64,
    /// Its type.
    pub weight_qtype: DType,
    /// Its rows: columns of the output.
    pub rows: u32,
    /// Address of the bias of `rows` f32 values, or 0.
    pub bias_ptr: u64,
    /// Address of the output, `[m, rows]`.
    pub output_ptr: u64,
}

/// Parameters of a node. [`TensorOp`](super::TensorOp) documents which of them each op reads; the others are
/// ignored. A parameter that an op needs and that is not set is an error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpParams {
    /// Address of the weight: `[n, k]`, row-major; in GatedDeltaRule of the rates of decay.
    pub weight_ptr: u64,
    /// Type of the weight.
    pub weight_qtype: Option<DType>,
    /// Address of the second weight of a gate-up node.
    pub up_ptr: u64,
    /// Type of the second weight of a gate-up node.
    pub up_qtype: Option<DType>,
    /// The activation of GateUp.
    pub gate_activation: GateActivation,
    /// Further weights that share the input of a MulMat node.
    pub extra_weights: Vec<ExtraWeight>,
    /// Address of the bias of a MulMat node, of the selection bias of Route, or of the biases of all experts
    /// (the gate's in ExpertGateUp); or 0. In GatedDeltaRule that of dt.
    pub bias_ptr: u64,
    /// Length of the bias.
    pub bias_len: u32,
    /// Address of the biases of all experts' up projections in ExpertGateUp, or 0.
    pub up_bias_ptr: u64,
    /// Experts of the layer, for ExpertGateUp and ExpertDown.
    pub n_experts: u32,
    /// How Route chooses experts.
    pub route: Option<RouteSpec>,
    /// The experts of Route that are here, if not all are.
    pub expert_part: Option<ExpertPart>,
    /// The activation of ExpertGateUp.
    pub activation: GatedActivation,
    /// Address of the gain of a norm (of the query heads' norm in RopeStore, where 0 means none).
    pub gamma_ptr: u64,
    /// Address of the gain of the key heads' norm in RopeStore, or 0.
    pub k_gamma_ptr: u64,
    /// Epsilon of a norm or of GatedDeltaRule; factor of Scale; cap of SoftCap; scale of the scores in
    /// SoftMax and Attention.
    pub scalar: f32,
    /// Layer number, for messages and profiles; in LogProbs how many of the most likely tokens are wanted;
    /// in CausalConv the taps; in TopK the index of the first column, in RmsScale
    /// the column of the means; in HostSegment which one it is.
    pub int_param: u32,
    /// Address of a second output: the sum in AddRmsNorm, the tokens in LogProbs, the ids in
    /// Route, the indices in TopK.
    pub second_ptr: u64,
    /// Rows of the table of an Embed node.
    pub table_rows: u32,
    /// What the table of an Embed node is a part of, if it is.
    pub table_part: Option<TablePart>,
    /// Heads of Rope, Attention, KvStore, RopeStore.
    pub heads: Heads,
    /// Heads of GatedDeltaRule.
    pub delta_heads: Option<DeltaHeads>,
    /// The state of CausalConv and GatedDeltaRule.
    pub recurrent: Option<RecurrentState>,
    /// Rotation of Rope and RopeStore.
    pub rope: Option<RopeSpec>,
    /// Address of RoPE's frequency factors (n_rot / 2 f32 values), or 0.
    pub rope_factors_ptr: u64,
    /// The KV cache of Attention, KvStore, RopeStore.
    pub kv: Option<KvCache>,
    /// Which rows of Attention decode and which prefill.
    pub attention_rows: AttentionRows,
    /// Sliding window of Attention; see [`Scores`](super::Scores).
    pub window: Option<u32>,
    /// Chunks of Attention; see [`Scores`](super::Scores).
    pub attention_chunk: Option<u32>,
    /// Cap of the scores of Attention.
    pub softcap: Option<f32>,
    /// Temperature of Attention for long contexts.
    pub temperature: Option<Temperature>,
    /// Address of the sinks of Attention, one f32 per query head, or 0.
    pub sinks_ptr: u64,
    /// Address of one `SampleState` per row, for Sample.
    pub sample_ptr: u64,
    /// Address of one `Penalties` per row, for Penalize.
    pub penalty_ptr: u64,
    /// The tokens so far, for GatherTokens, Penalize and Advance.
    pub history: Option<TokenHistory>,
    /// Logit biases and token masks, for MaskLogits.
    pub logit_slots: Option<LogitSlots>,
    /// Address of the tokens that the next step reads, for Advance.
    pub tokens_ptr: u64,
    /// Address of the positions that the next step reads, for Advance.
    pub positions_ptr: u64,
    /// Ranks of AllReduce, AllGather and RmsScale.
    pub ranks: u32,
}
