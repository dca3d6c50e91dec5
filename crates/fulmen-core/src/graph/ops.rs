//! The op table: one row per op. It gives [`TensorOp`] and its list, names and arity, the [`OpCall`] of each
//! op and what is the same for every call, and the methods of [`KernelDispatch`](super::KernelDispatch).
//!
//! A row:
//!
//! ```text
//! Op(Call) {
//!     name: "op",            // in tables, options and names of kernels
//!     method: dispatch_op,   // of KernelDispatch
//!     kernel: optional,      // or required: whether every backend must have it; collective: it needs none
//!     inputs: 1 | 2 = "1 or 2 (x, residual)",   // of a node: their number, and in words for errors
//!     does: "…",             // the doc line of the op, of its call and of its method
//!     node: "…",             // how a node states it: inputs, shape, parameters
//! }
//! ```

use super::call::*;
use super::collective::{AllGatherCall, AllReduceCall};
use super::divided_norm::{MeanSquaresCall, RmsScaleCall};
use super::experts::{ExpertDownCall, ExpertGateUpCall};
use super::host_segment::HostSegmentCall;
use super::recurrent::{CausalConvCall, GatedDeltaRuleCall, SigmoidGateCall};
use super::routing::RouteCall;
use crate::{BackendError, LookUp, Problem};

/// Passes the table to the macro `$then`.
macro_rules! op_table {
    ($then:ident) => {
        $then! {
            Embed(EmbedCall) {
                name: "embed", method: dispatch_embed, kernel: optional,
                inputs: 1 = "1",
                does: "Rows of an embedding table by token id.",
                node: "Input: the token ids. The table is `weight_ptr`: `table_rows` rows of `weight_qtype`. \
If it is the `table_part` of a larger one, tokens of its other rows give zeros.",
            }
            GatherTokens(GatherTokensCall) {
                name: "gather_tokens", method: dispatch_gather_tokens, kernel: optional,
                inputs: 1 | 2 = "1 or 2 (positions, sequences)",
                does: "The token of each row from the history, at its position.",
                node: "Inputs: positions and, if there is more than one sequence, sequence numbers. The \
output is U32, `[1, 1, m, 0]`. A [`NO_TOKEN`](crate::sampling::NO_TOKEN) in `history` gives token 0 and is \
replaced by it: a row without a result does not stop the others.",
            }
            MulMat(MulMatCall) {
                name: "mul_mat", method: dispatch_mul_mat, kernel: required,
                inputs: 1 | 2 = "1 or 2",
                does: "`x · Wᵀ (+ bias) (+ residual)`: matmul of one input with one or several weights.",
                node: "Inputs: x and optionally the residual. Shape `[n, k, m, 0]`.",
            }
            GateUp(GateUpCall) {
                name: "gate_up", method: dispatch_gate_up, kernel: optional,
                inputs: 1 = "1",
                does: "`activation(x · Wgᵀ) ∘ (x · Wuᵀ)`: gate and up projections with SwiGLU or GeGLU.",
                node: "The weights are `weight_ptr` and `up_ptr`, the activation `gate_activation`. \
Shape `[n, k, m, 0]`.",
            }
            Route(RouteCall) {
                name: "route", method: dispatch_route, kernel: optional,
                inputs: 1 = "1",
                does: "The experts of each row of a mixture of experts, and their weights.",
                node: "Input: the router's logits. Shape `[top, 1, m, 0]`: the weights; the ids are at \
`second_ptr`. The selection is `route`, with the bias `bias_ptr` of `bias_len` values. With an \
`expert_part` ids are those among its experts, [`NO_EXPERT`](super::NO_EXPERT) for others.",
            }
            ExpertGateUp(ExpertGateUpCall) {
                name: "expert_gate_up", method: dispatch_expert_gate_up, kernel: optional,
                inputs: 2 = "2 (x, expert ids)",
                does: "Gate and up projections of each row by its experts, with a gated activation.",
                node: "The weights of all `n_experts` are `weight_ptr` and `up_ptr`, their biases \
`bias_ptr` and `up_bias_ptr`. Shape `[top · n, k, m, 0]`.",
            }
            ExpertDown(ExpertDownCall) {
                name: "expert_down", method: dispatch_expert_down, kernel: optional,
                inputs: 3 | 4 = "3 or 4 (x, expert ids, weights, residual)",
                does: "Down projections of each row by its experts, weighted and summed (+ residual).",
                node: "The weight of all `n_experts` is `weight_ptr`, the biases `bias_ptr`. Shape \
`[n, k, m, 0]`.",
            }
            RmsNorm(RmsNormCall) {
                name: "rms_norm", method: dispatch_rms_norm, kernel: required,
                inputs: 1 = "1",
                does: "RMS norm of rows.",
                node: "Rows of `shape[0]` values with the gain `gamma_ptr` and epsilon `scalar`. Shape \
`[head_dim, n_heads, m, 0]` gives the norm per head.",
            }
            AddRmsNorm(AddRmsNormCall) {
                name: "add_rms_norm", method: dispatch_add_rms_norm, kernel: optional,
                inputs: 2 = "2",
                does: "The residual sum `a + b`, and its RMS norm.",
                node: "The sum goes to `second_ptr`; the norm is that of RmsNorm.",
            }
            Add(BinaryCall) {
                name: "add", method: dispatch_add, kernel: required,
                inputs: 2 = "2",
                does: "`a + b`, element by element.",
                node: "",
            }
            Mul(BinaryCall) {
                name: "mul", method: dispatch_mul, kernel: required,
                inputs: 2 = "2",
                does: "`a · b`, element by element.",
                node: "",
            }
            SwiGlu(BinaryCall) {
                name: "swiglu", method: dispatch_swiglu, kernel: optional,
                inputs: 2 = "2",
                does: "`silu(a) · b`, element by element.",
                node: "",
            }
            Silu(UnaryCall) {
                name: "silu", method: dispatch_silu, kernel: required,
                inputs: 1 = "1",
                does: "`x · sigmoid(x)`.",
                node: "",
            }
            Gelu(UnaryCall) {
                name: "gelu", method: dispatch_gelu, kernel: optional,
                inputs: 1 = "1",
                does: "`x · Φ(x)`, computed with erf.",
                node: "",
            }
            GeluTanh(UnaryCall) {
                name: "gelu_tanh", method: dispatch_gelu_tanh, kernel: optional,
                inputs: 1 = "1",
                does: "GELU by its tanh approximation.",
                node: "",
            }
            Relu2(UnaryCall) {
                name: "relu2", method: dispatch_relu2, kernel: optional,
                inputs: 1 = "1",
                does: "Squared ReLU, `max(x, 0)²`.",
                node: "",
            }
            Scale(UnaryCall) {
                name: "scale", method: dispatch_scale, kernel: optional,
                inputs: 1 = "1",
                does: "Multiplication by a constant.",
                node: "The factor is `scalar`.",
            }
            SoftCap(UnaryCall) {
                name: "softcap", method: dispatch_softcap, kernel: optional,
                inputs: 1 = "1",
                does: "Logit soft capping, `cap · tanh(x / cap)`, element by element.",
                node: "The cap is `scalar`, finite and above 0.",
            }
            Rope(RopeCall) {
                name: "rope", method: dispatch_rope, kernel: required,
                inputs: 2 = "2 (the rows and their positions)",
                does: "Rotary position embedding.",
                node: "Inputs: x and positions. Shape `[head_dim, n_heads, m, 0]`, the rotation is `rope`.",
            }
            SoftMax(SoftMaxCall) {
                name: "softmax", method: dispatch_softmax, kernel: optional,
                inputs: 1 | 3 = "1 (softmax) or 3 (attention over q, k, v)",
                does: "Softmax over rows.",
                node: "With one input: softmax of `x · scalar` over rows of `shape[0]` values. With three \
inputs q, k, v: causal attention among the rows of the batch, with `heads` and the \
score scale `scalar`.",
            }
            Attention(AttentionCall) {
                name: "attention", method: dispatch_attention, kernel: required,
                inputs: 2 | 3 = "2 or 3 (q, positions, sequences)",
                does: "Causal attention over a KV cache, or among the rows of the batch.",
                node: "Inputs: q, positions and, if there is more than one sequence, sequence numbers. Row \
`r` sees positions 0 to `positions[r]` of its sequence in `kv`, or those of them that are in the `window` \
and in its `attention_chunk`; \
`softcap`, `temperature` and `sinks_ptr` change the scores ([`Scores`](super::Scores)).",
            }
            KvStore(KvStoreCall) {
                name: "kv_store", method: dispatch_kv_store, kernel: optional,
                inputs: 3 | 4 = "3 or 4 (k, v, positions, sequences)",
                does: "Rows of keys and values into the KV cache.",
                node: "Inputs: k, v, positions, (sequences). The node's address is `k_ptr` of `kv`.",
            }
            RopeStore(RopeStoreCall) {
                name: "rope_store", method: dispatch_rope_store, kernel: optional,
                inputs: 4 | 5 = "4 or 5 (q, k, v, positions, sequences)",
                does: "Norm of the query and key heads (where gains are set), RoPE of both, keys and values \
to the KV cache.",
                node: "Inputs: q, k, v, positions, (sequences). The output is the rotated q.",
            }
            AllReduce(AllReduceCall) {
                name: "all_reduce", method: dispatch_all_reduce, kernel: collective,
                inputs: 1 = "1",
                does: "The sum of the ranks' values, element by element, on every rank.",
                node: "Among `ranks` ranks.",
            }
            AllGather(AllGatherCall) {
                name: "all_gather", method: dispatch_all_gather, kernel: collective,
                inputs: 1 = "1",
                does: "The columns of all ranks beside each other, on every rank.",
                node: "Shape `[ranks · n, 1, m, 0]` of an input `[n, 1, m, 0]`, f32 or u32, among `ranks` \
ranks.",
            }
            MeanSquares(MeanSquaresCall) {
                name: "mean_squares", method: dispatch_mean_squares, kernel: optional,
                inputs: 2 = "2",
                does: "The means of the squares of each row of two inputs.",
                node: "Shape `[2, 1, m, 0]`.",
            }
            RmsScale(RmsScaleCall) {
                name: "rms_scale", method: dispatch_rms_scale, kernel: optional,
                inputs: 2 = "2 (x, means)",
                does: "RMS norm of rows by means of squares that are given.",
                node: "The means are column `int_param` of the second input, sums over `ranks` ranks. The \
gain is `gamma_ptr`, epsilon `scalar`.",
            }
            HostSegment(HostSegmentCall) {
                name: "host_segment", method: dispatch_host_segment, kernel: optional,
                inputs: 1..=4 = "1, 2, 3 or 4",
                does: "Rows that the host computes on another device, between two segments of a program.",
                node: "Inputs: rows of f32 or u32 values. Shape `[n, 1, m, 0]`; `int_param` says which \
segment it is.",
            }
            CausalConv(CausalConvCall) {
                name: "causal_conv", method: dispatch_causal_conv, kernel: optional,
                inputs: 2 | 3 = "2 or 3 (x, positions, sequences)",
                does: "Depthwise causal convolution over the last inputs of each channel, then SiLU.",
                node: "Inputs: x, positions, (sequences). The weight `[channels, int_param]` is \
`weight_ptr`, f32; the last inputs of each sequence are `recurrent`.",
            }
            GatedDeltaRule(GatedDeltaRuleCall) {
                name: "gated_delta_rule", method: dispatch_gated_delta_rule, kernel: optional,
                inputs: 4 | 5 = "4 or 5 (q k v, alpha, beta, positions, sequences)",
                does: "The gated delta rule: linear attention with a matrix as state.",
                node: "Inputs: rows of q, k and v, alpha, beta, positions, (sequences). The rates of decay \
are `weight_ptr`, dt is `bias_ptr` of `bias_len` values, epsilon `scalar`, the heads `delta_heads`, the \
states `recurrent`.",
            }
            SigmoidGate(SigmoidGateCall) {
                name: "sigmoid_gate", method: dispatch_sigmoid_gate, kernel: optional,
                inputs: 2 = "2 (x, gate)",
                does: "`x · sigmoid(gate)`, with one gate for each element or for several neighbors.",
                node: "",
            }
            Copy(CopyCall) {
                name: "copy", method: dispatch_copy, kernel: required,
                inputs: 1 = "1",
                does: "A copy of bytes.",
                node: "The whole input is copied.",
            }
            ArgMax(ArgMaxCall) {
                name: "argmax", method: dispatch_argmax, kernel: optional,
                inputs: 1 = "1",
                does: "Index of the largest element of each row.",
                node: "The output is U32, `[1, 1, m, 0]`.",
            }
            TopK(TopKCall) {
                name: "top_k", method: dispatch_top_k, kernel: optional,
                inputs: 1 = "1",
                does: "The largest values of each row in descending order, and their indices.",
                node: "Shape `[k, 1, m, 0]`. The indices, each plus `int_param`, are at `second_ptr`.",
            }
            Sample(SampleCall) {
                name: "sample", method: dispatch_sample, kernel: optional,
                inputs: 1 | 2 = "1 or 2 (logits, tokens)",
                does: "A token sampled from each row of logits.",
                node: "Inputs: logits and, if a logit's column is not its token, the token of each. The \
row's state is at `sample_ptr`; output as ArgMax.",
            }
            Penalize(PenalizeCall) {
                name: "penalize", method: dispatch_penalize, kernel: optional,
                inputs: 2 | 3 = "2 or 3 (logits, positions, sequences)",
                does: "Repetition, frequency and presence penalties on logits.",
                node: "Inputs: logits, positions, (sequences). The row's \
[`Penalties`](crate::sampling::Penalties) are at `penalty_ptr`, the tokens in \
`history`.",
            }
            MaskLogits(MaskLogitsCall) {
                name: "mask_logits", method: dispatch_mask_logits, kernel: optional,
                inputs: 1 | 2 = "1 or 2 (logits, sampling slots)",
                does: "Logit biases, and -inf for the tokens that a mask excludes.",
                node: "Inputs: logits and, if rows are not slots in order, the slot of each row or \
[`NO_SLOT`](crate::sampling::NO_SLOT). The slots' biases and masks are `logit_slots`.",
            }
            LogProbs(LogProbsCall) {
                name: "log_probs", method: dispatch_log_probs, kernel: optional,
                inputs: 2 = "2 (logits, tokens)",
                does: "Log-probabilities of a token of each row and of the row's most likely tokens.",
                node: "Inputs: logits and a token per row. Shape `[1 + int_param, 1, m, 0]`: the value of \
the token, then those of the `int_param` most likely tokens. The tokens of all values are at `second_ptr`.",
            }
            Advance(AdvanceCall) {
                name: "advance", method: dispatch_advance, kernel: optional,
                inputs: 1 | 2 = "1 or 2 (the sampled tokens, sequences)",
                does: "The sampled tokens become the inputs of the next decode step.",
                node: "Inputs: the sampled tokens and, if there is more than one sequence, sequence numbers. \
Row `r` of `tokens_ptr` is set to its token, row `r` of `positions_ptr` is \
incremented but not past the last position, and the token is appended to `history` \
at that position. The node's address is `tokens_ptr`.",
            }
        }
    };
}
pub(super) use op_table;

/// `TensorOp` and `OpCall` from the rows of the table.
macro_rules! define_ops {
    ($($op:ident($call:ident) {
        name: $name:literal, method: $method:ident, kernel: $kernel:ident,
        inputs: $inputs:pat = $words:literal, does: $does:literal, node: $node:literal,
    })*) => {
        /// What a node computes. A shape is `[width, inner, m, 0]`: `m` rows of `width · inner` f32 values.
        /// `inner` is 1 except in tensors divided into heads (`[head_dim, n_heads, m, 0]`) and in matmuls,
        /// where it is `k` and a row of the output has `width` values.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum TensorOp {
            /// A leaf: data that is on the device already.
            None,
            /// Another output of the input node (its `second_ptr`, or the output of an extra weight).
            /// Launches nothing.
            View,
            $(#[doc = $does] #[doc = ""] #[doc = $node] $op,)*
        }

        impl TensorOp {
            /// Every op, leaves and views included.
            pub const ALL: [TensorOp; 2 + [$($name),*].len()] =
                [TensorOp::None, TensorOp::View, $(TensorOp::$op),*];

            /// Its name in tables, options and kernels, in lower case: `mul_mat`.
            pub const fn name(self) -> &'static str {
                match self {
                    TensorOp::None => "leaf",
                    TensorOp::View => "view",
                    $(TensorOp::$op => $name,)*
                }
            }

            /// Whether a node of this op may have this number of inputs.
            pub const fn takes(self, inputs: usize) -> bool {
                match self {
                    TensorOp::None => inputs == 0,
                    TensorOp::View => inputs == 1,
                    $(TensorOp::$op => matches!(inputs, $inputs),)*
                }
            }

            /// How many inputs a node of this op has, in words.
            pub const fn inputs(self) -> &'static str {
                match self {
                    TensorOp::None => "no",
                    TensorOp::View => "1",
                    $(TensorOp::$op => $words,)*
                }
            }
        }

        /// One call of a kernel.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum OpCall {
            $(#[doc = $does] $op($call),)*
        }

        impl OpCall {
            /// The op that this call runs. A SoftMax node with three inputs runs as Attention.
            pub const fn op(&self) -> TensorOp {
                match self {
                    $(OpCall::$op(_) => TensorOp::$op,)*
                }
            }

            /// An error if its sizes contradict each other, a constant is out of range, or the address of
            /// something that must be read or written is null.
            pub fn check(&self) -> Result<(), Problem> {
                if let OpCall::SoftCap(call) = self {
                    super::checks::above_0("the cap", call.scalar)?;
                }
                match self {
                    $(OpCall::$op(call) => call.check(),)*
                }
            }

            /// Whether a row must get the same bits in a call of any number of rows.
            pub const fn batch_invariant(&self) -> bool {
                match self {
                    OpCall::MulMat(call) => call.batch_invariant,
                    OpCall::GateUp(call) => call.batch_invariant,
                    OpCall::ExpertGateUp(call) => call.batch_invariant,
                    OpCall::ExpertDown(call) => call.batch_invariant,
                    OpCall::HostSegment(call) => call.batch_invariant,
                    OpCall::Attention(call) => call.batch_invariant,
                    OpCall::GatedDeltaRule(call) => call.batch_invariant,
                    _ => false,
                }
            }

            /// Looks up every operand in the memory of a device.
            pub fn check_operands(&self, memory: &impl LookUp) -> Result<(), BackendError> {
                match self {
                    $(OpCall::$op(call) => call.check_operands(memory),)*
                }
            }

            /// The call, if it is of this type: `call.as_type::<UnaryCall>()` for an element-wise op of one
            /// operand.
            pub fn as_type<C: 'static>(&self) -> Option<&C> {
                let call: &dyn std::any::Any = match self {
                    $(OpCall::$op(call) => call,)*
                };
                call.downcast_ref()
            }

            /// Whether there is nothing to write. Such a call is not part of a program.
            pub fn is_empty(&self) -> bool {
                match self {
                    $(OpCall::$op(call) => call.is_empty(),)*
                }
            }

            /// The work of the call: each operand read and each result written once. Of an embedding table
            /// only the selected rows are read, of a KV cache what `cache_use` says.
            pub fn work(&self, cache_use: super::CacheUse) -> super::Work {
                match self {
                    $(OpCall::$op(call) => call.work(cache_use),)*
                }
            }
        }
    };
}
op_table!(define_ops);

impl TensorOp {
    /// Whether the op runs a kernel.
    pub const fn launches(self) -> bool {
        !matches!(self, TensorOp::None | TensorOp::View)
    }
}

impl std::fmt::Display for TensorOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TensorOp::None = self else { return f.pad(&format!("{self:?}")) };
        f.pad("leaf")
    }
}

/// The `dispatch_*` methods of `KernelDispatch`, from the rows of the table.
macro_rules! dispatch_methods {
    ($($op:ident($call:ident) {
        name: $name:literal, method: $method:ident, kernel: $kernel:ident,
        inputs: $inputs:pat = $words:literal, does: $does:literal, node: $node:literal,
    })*) => {
        $(dispatch_methods! { @$kernel $op $method($call) $does })*

        /// Runs any call by the method for its op.
        fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
            match call {
                $(OpCall::$op(call) => self.$method(call),)*
            }
        }
    };
    (@required $op:ident $method:ident($call:ident) $does:literal) => {
        #[doc = $does]
        fn $method(&mut self, call: &$call) -> Result<usize, BackendError>;
    };
    (@optional $op:ident $method:ident($call:ident) $does:literal) => {
        #[doc = $does]
        fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            unsupported(self.backend(), stringify!($op), call)
        }
    };
    (@collective $op:ident $method:ident($call:ident) $does:literal) => {
        #[doc = $does]
        ///
        /// A device alone runs that of one rank, a copy. For more ranks it must be one of a group that has a
        /// [`Communicator`](crate::Communicator).
        fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            match call.alone() {
                Some(copy) if copy.input == copy.output => Ok(0),
                Some(copy) => self.dispatch_copy(&copy),
                None => {
                    let what = format!("{} of {} ranks without a communicator", stringify!($op), call.ranks);
                    Err(BackendError::Unsupported { backend: self.backend(), what })
                }
            }
        }
    };
}
pub(super) use dispatch_methods;
