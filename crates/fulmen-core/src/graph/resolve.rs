//! Lowering of a node to a typed call. Inputs and shapes are checked here, the call by itself.

mod divided_norm;
mod recurrent;

use super::call::*;
use super::checks::{Checked, check_heads, same};
use super::collective::{AllGatherCall, AllReduceCall};
use super::experts::{ExpertDownCall, ExpertGateUpCall};
use super::host_segment::{HostInput, HostSegmentCall};
use super::routing::RouteCall;
use super::{ComputeGraph, KvCache, OpCall, RopeSpec, Scores, TensorNode, TensorOp, TokenHistory};
use crate::{DType, Problem};

/// The call of a node; `None` for leaves, views and nodes without elements.
pub(super) fn resolve(graph: &ComputeGraph, index: usize) -> Checked<Option<OpCall>> {
    let node = Node { graph, index, node: &graph.nodes[index] };
    if node.shape[3] > 1 {
        return Err(Problem::Size { what: "shape[3]", expected: 0, got: node.shape[3].into() });
    }
    if !node.op.takes(node.inputs.len()) {
        return Err(Problem::Arity { expected: node.op.inputs(), got: node.inputs.len() });
    }
    let call = match node.op {
        TensorOp::None => {
            node.own("its data")?;
            return Ok(None);
        }
        TensorOp::View => {
            node.view()?;
            return Ok(None);
        }
        TensorOp::Embed => OpCall::Embed(node.embed()?),
        TensorOp::MulMat => OpCall::MulMat(node.mul_mat()?),
        TensorOp::GateUp => OpCall::GateUp(node.gate_up()?),
        TensorOp::Route => OpCall::Route(node.route()?),
        TensorOp::ExpertGateUp => OpCall::ExpertGateUp(node.expert_gate_up()?),
        TensorOp::ExpertDown => OpCall::ExpertDown(node.expert_down()?),
        TensorOp::RmsNorm => OpCall::RmsNorm(node.rms_norm()?),
        TensorOp::AddRmsNorm => OpCall::AddRmsNorm(node.add_rms_norm()?),
        TensorOp::Add => OpCall::Add(node.binary()?),
        TensorOp::Mul => OpCall::Mul(node.binary()?),
        TensorOp::SwiGlu => OpCall::SwiGlu(node.binary()?),
        TensorOp::Silu => OpCall::Silu(node.unary(1.0)?),
        TensorOp::Gelu => OpCall::Gelu(node.unary(1.0)?),
        TensorOp::GeluTanh => OpCall::GeluTanh(node.unary(1.0)?),
        TensorOp::Relu2 => OpCall::Relu2(node.unary(1.0)?),
        TensorOp::Scale => OpCall::Scale(node.unary(node.params.scalar)?),
        TensorOp::SoftCap => OpCall::SoftCap(node.unary(node.params.scalar)?),
        TensorOp::Rope => OpCall::Rope(node.rope()?),
        TensorOp::SoftMax if node.inputs.len() == 1 => OpCall::SoftMax(node.softmax()?),
        TensorOp::SoftMax => OpCall::Attention(node.attention_rows()?),
        TensorOp::Attention => OpCall::Attention(node.attention_cache()?),
        TensorOp::KvStore => {
            let call = node.kv_store(0)?;
            same("the node's address", call.cache.k_ptr, node.data_ptr)?;
            OpCall::KvStore(call)
        }
        TensorOp::RopeStore => OpCall::RopeStore(node.rope_store()?),
        TensorOp::AllReduce => OpCall::AllReduce(node.all_reduce()?),
        TensorOp::AllGather => OpCall::AllGather(node.all_gather()?),
        TensorOp::MeanSquares => OpCall::MeanSquares(node.mean_squares()?),
        TensorOp::RmsScale => OpCall::RmsScale(node.rms_scale()?),
        TensorOp::HostSegment => OpCall::HostSegment(node.host_segment()?),
        TensorOp::CausalConv => OpCall::CausalConv(node.causal_conv()?),
        TensorOp::GatedDeltaRule => OpCall::GatedDeltaRule(node.gated_delta_rule()?),
        TensorOp::SigmoidGate => OpCall::SigmoidGate(node.sigmoid_gate()?),
        TensorOp::Copy => OpCall::Copy(node.copy()?),
        TensorOp::ArgMax => {
            let (input, n) = node.rows_to_index()?;
            OpCall::ArgMax(ArgMaxCall { input, output: node.data_ptr, m: node.m(), n })
        }
        TensorOp::TopK => OpCall::TopK(node.top_k()?),
        TensorOp::Sample => {
            let ((logits, n), states) = (node.rows_to_index()?, node.params.sample_ptr);
            let m = node.m();
            let tokens = node.optional_indices(1, "the tokens", m.saturating_mul(n))?;
            OpCall::Sample(SampleCall { logits, tokens, states, output: node.data_ptr, m, n })
        }
        TensorOp::Penalize => OpCall::Penalize(node.penalize()?),
        TensorOp::GatherTokens => OpCall::GatherTokens(node.gather_tokens()?),
        TensorOp::MaskLogits => OpCall::MaskLogits(node.mask_logits()?),
        TensorOp::LogProbs => OpCall::LogProbs(node.log_probs()?),
        TensorOp::Advance => OpCall::Advance(node.advance()?),
    };
    call.check()?;
    Ok((!call.is_empty()).then_some(call))
}

struct Node<'a> {
    graph: &'a ComputeGraph,
    index: usize,
    node: &'a TensorNode,
}

impl std::ops::Deref for Node<'_> {
    type Target = TensorNode;
    fn deref(&self) -> &TensorNode {
        self.node
    }
}

impl<'a> Node<'a> {
    fn input(&self, position: usize) -> Checked<&'a TensorNode> {
        let Some(&input) = self.inputs.get(position) else {
            return Err(Problem::Arity { expected: self.op.inputs(), got: self.inputs.len() });
        };
        let nodes = self.graph.nodes.len();
        if input >= self.index {
            return Err(Problem::Order { position, input, nodes });
        }
        Ok(&self.graph.nodes[input])
    }

    /// The address of a leaf or view; null only where there is no data.
    fn own(&self, what: &'static str) -> Checked<u64> {
        let is_missing = self.data_ptr == 0 && self.n_elements() > 0;
        if is_missing { Err(Problem::Null { what }) } else { Ok(self.data_ptr) }
    }

    /// An f32 input with `m` rows of `width`.
    fn rows(&self, position: usize, what: &'static str, width: u32, m: u32) -> Checked<u64> {
        let input = self.input(position)?;
        if input.dtype != DType::F32 {
            return Err(Problem::Type { what, expected: "F32", got: input.dtype });
        }
        // A view or leaf may hold the same elements under another division into heads.
        same(what, u64::from(width) * u64::from(m), input.n_elements() as u64)?;
        same(what, m, input.m())?;
        Ok(input.data_ptr)
    }

    /// An input of `m` integers.
    fn indices(&self, position: usize, what: &'static str, m: u32) -> Checked<u64> {
        let input = self.input(position)?;
        if input.dtype != DType::U32 {
            return Err(Problem::Type { what, expected: "U32", got: input.dtype });
        }
        same(what, m, input.n_elements() as u64)?;
        Ok(input.data_ptr)
    }

    fn optional_indices(&self, position: usize, what: &'static str, m: u32) -> Checked<Option<u64>> {
        if self.inputs.len() > position { self.indices(position, what, m).map(Some) } else { Ok(None) }
    }

    fn weight(&self, ptr: u64, dtype: Option<DType>, rows: u32) -> Checked<WeightArg> {
        let dtype = dtype.ok_or(Problem::Missing { what: "the type of the weight" })?;
        Ok(WeightArg { ptr, dtype, rows })
    }

    fn view(&self) -> Checked<()> {
        let input = self.input(0)?;
        let ptr = self.own("the viewed output")?;
        let extra = input.params.extra_weights.iter().map(|w| w.output_ptr);
        let mut outputs = extra.chain([input.data_ptr, input.params.second_ptr]).filter(|&p| p != 0);
        if self.n_elements() == 0 || outputs.any(|output| output == ptr) {
            return Ok(());
        }
        Err(Problem::NotAnOutput { ptr, node: self.inputs[0] })
    }

    fn embed(&self) -> Checked<EmbedCall> {
        let (m, width, params) = (self.m(), self.width(), &self.params);
        let table = self.weight(params.weight_ptr, params.weight_qtype, params.table_rows)?;
        let tokens = self.indices(0, "tokens", m)?;
        Ok(EmbedCall { table, part: params.table_part, tokens, output: self.data_ptr, m, width })
    }

    fn mul_mat(&self) -> Checked<MulMatCall> {
        let ([n, k, m, _], params) = (self.shape, &self.params);
        let input = self.rows(0, "the input", k, m)?;
        let weight = self.weight(params.weight_ptr, params.weight_qtype, n)?;
        let bias = (params.bias_ptr != 0 || params.bias_len != 0).then_some(params.bias_ptr);
        if params.bias_ptr != 0 {
            same("bias_len", n, params.bias_len)?;
        }
        let mut parts = vec![Projection { weight, bias, output: self.data_ptr }];
        for extra in &params.extra_weights {
            let weight = self.weight(extra.weight_ptr, Some(extra.weight_qtype), extra.rows)?;
            let bias = (extra.bias_ptr != 0).then_some(extra.bias_ptr);
            parts.push(Projection { weight, bias, output: extra.output_ptr });
        }
        if self.inputs.len() == 2 && parts.len() > 1 {
            return Err(Problem::Arity { expected: "1 (with extra weights)", got: 2 });
        }
        let residual = match self.inputs.len() {
            2 => Some(self.rows(1, "the residual", n, m)?),
            _ => None,
        };
        Ok(MulMatCall { input, parts, residual, m, k, batch_invariant: false })
    }

    fn gate_up(&self) -> Checked<GateUpCall> {
        let ([n, k, m, _], params) = (self.shape, &self.params);
        let input = self.rows(0, "the input", k, m)?;
        let gate = self.weight(params.weight_ptr, params.weight_qtype, n)?;
        let up = self.weight(params.up_ptr, params.up_qtype, n)?;
        let activation = params.gate_activation;
        Ok(GateUpCall { input, gate, up, activation, output: self.data_ptr, m, k, batch_invariant: false })
    }

    fn route(&self) -> Checked<RouteCall> {
        let (m, params, n_experts) = (self.m(), &self.params, self.input(0)?.width());
        let route = params.route.ok_or(Problem::Missing { what: "route" })?;
        same("the output's width", route.top, self.width())?;
        if params.bias_ptr != 0 {
            same("bias_len", n_experts, params.bias_len)?;
        }
        Ok(RouteCall {
            logits: self.rows(0, "the logits", n_experts, m)?,
            bias: (params.bias_ptr != 0).then_some(params.bias_ptr),
            weights: self.data_ptr,
            ids: params.second_ptr,
            m,
            n_experts,
            route,
            part: params.expert_part,
        })
    }

    /// The address of the expert ids and their number per row.
    fn expert_ids(&self) -> Checked<(u64, u32)> {
        let (top, m) = (self.input(1)?.width(), self.m());
        same("the rows of the expert ids", m, self.input(1)?.m())?;
        let ids = self.input(1)?;
        if ids.dtype != DType::U32 {
            return Err(Problem::Type { what: "the expert ids", expected: "U32", got: ids.dtype });
        }
        Ok((ids.data_ptr, top))
    }

    fn expert_gate_up(&self) -> Checked<ExpertGateUpCall> {
        let ([width, k, m, _], params) = (self.shape, &self.params);
        let ((ids, top), n_experts) = (self.expert_ids()?, params.n_experts);
        let n = width.checked_div(top).unwrap_or(0);
        same("the output's width", u64::from(n) * u64::from(top), width)?;
        let rows = n.saturating_mul(n_experts);
        Ok(ExpertGateUpCall {
            input: self.rows(0, "the input", k, m)?,
            ids,
            gate: self.weight(params.weight_ptr, params.weight_qtype, rows)?,
            up: self.weight(params.up_ptr, params.up_qtype, rows)?,
            gate_bias: (params.bias_ptr != 0).then_some(params.bias_ptr),
            up_bias: (params.up_bias_ptr != 0).then_some(params.up_bias_ptr),
            output: self.data_ptr,
            m,
            k,
            top,
            n_experts,
            activation: params.activation,
            batch_invariant: false,
        })
    }

    fn expert_down(&self) -> Checked<ExpertDownCall> {
        let ([n, k, m, _], params) = (self.shape, &self.params);
        let ((ids, top), n_experts) = (self.expert_ids()?, params.n_experts);
        let residual = match self.inputs.len() {
            4 => Some(self.rows(3, "the residual", n, m)?),
            _ => None,
        };
        Ok(ExpertDownCall {
            input: self.rows(0, "the input", k.saturating_mul(top), m)?,
            ids,
            weights: self.rows(2, "the routing weights", top, m)?,
            down: self.weight(params.weight_ptr, params.weight_qtype, n.saturating_mul(n_experts))?,
            bias: (params.bias_ptr != 0).then_some(params.bias_ptr),
            residual,
            output: self.data_ptr,
            m,
            k,
            top,
            n_experts,
            batch_invariant: false,
        })
    }

    fn rms_norm(&self) -> Checked<RmsNormCall> {
        let (width, rows) = self.rows_of_width()?;
        Ok(RmsNormCall {
            input: self.rows(0, "the input", self.width(), self.m())?,
            gamma: self.params.gamma_ptr,
            output: self.data_ptr,
            width,
            rows,
            epsilon: self.params.scalar,
        })
    }

    fn add_rms_norm(&self) -> Checked<AddRmsNormCall> {
        let (width, rows) = self.rows_of_width()?;
        Ok(AddRmsNormCall {
            a: self.rows(0, "the first input", self.width(), self.m())?,
            b: self.rows(1, "the second input", self.width(), self.m())?,
            gamma: self.params.gamma_ptr,
            sum: self.params.second_ptr,
            output: self.data_ptr,
            width,
            rows,
            epsilon: self.params.scalar,
        })
    }

    /// `shape[0]` and the number of such rows in the node.
    fn rows_of_width(&self) -> Checked<(u32, u32)> {
        let rows = u64::from(self.shape[1].max(1)) * u64::from(self.m());
        let got = rows as f64;
        let rows = u32::try_from(rows).map_err(|_| Problem::Value {
            what: "rows",
            expected: "less than 2^32",
            got,
        })?;
        Ok((self.shape[0], rows))
    }

    fn binary(&self) -> Checked<BinaryCall> {
        Ok(BinaryCall {
            a: self.rows(0, "the first input", self.width(), self.m())?,
            b: self.rows(1, "the second input", self.width(), self.m())?,
            output: self.data_ptr,
            n_elements: self.n_elements(),
        })
    }

    fn unary(&self, scalar: f32) -> Checked<UnaryCall> {
        Ok(UnaryCall {
            input: self.rows(0, "the input", self.width(), self.m())?,
            output: self.data_ptr,
            n_elements: self.n_elements(),
            scalar,
        })
    }

    fn rope_params(&self) -> Checked<(RopeSpec, Option<u64>)> {
        let rope = self.params.rope.ok_or(Problem::Missing { what: "rope" })?;
        let factors = self.params.rope_factors_ptr;
        Ok((rope, (factors != 0).then_some(factors)))
    }

    fn rope(&self) -> Checked<RopeCall> {
        let [head_dim, n_heads, m, _] = self.shape;
        let (rope, factors) = self.rope_params()?;
        Ok(RopeCall {
            input: self.rows(0, "the input", self.width(), m)?,
            positions: self.indices(1, "positions", m)?,
            factors,
            output: self.data_ptr,
            m,
            n_heads: n_heads.max(1),
            head_dim,
            rope,
        })
    }

    fn softmax(&self) -> Checked<SoftMaxCall> {
        let (width, rows) = self.rows_of_width()?;
        Ok(SoftMaxCall {
            input: self.rows(0, "the input", self.width(), self.m())?,
            output: self.data_ptr,
            width,
            rows,
            scale: self.params.scalar,
        })
    }

    fn attention(&self, kv: KvSource) -> Checked<AttentionCall> {
        let (heads, m) = (self.params.heads, self.m());
        same("the output's width", heads.q_width(), self.width())?;
        Ok(AttentionCall {
            q: self.rows(0, "q", heads.q_width(), m)?,
            kv,
            output: self.data_ptr,
            m,
            heads,
            rows: self.params.attention_rows,
            scores: Scores {
                scale: self.params.scalar,
                window: self.params.window,
                chunk: self.params.attention_chunk,
                softcap: self.params.softcap,
                temperature: self.params.temperature,
                sinks: Some(self.params.sinks_ptr).filter(|ptr| *ptr != 0),
            },
            layer: self.params.int_param as usize,
            batch_invariant: false,
        })
    }

    fn attention_rows(&self) -> Checked<AttentionCall> {
        let (heads, m) = (self.params.heads, self.m());
        check_heads(heads)?;
        let k = self.rows(1, "k", heads.kv_width(), m)?;
        let v = self.rows(2, "v", heads.kv_width(), m)?;
        self.attention(KvSource::Rows { k, v })
    }

    fn attention_cache(&self) -> Checked<AttentionCall> {
        check_heads(self.params.heads)?;
        let cache = self.cache()?;
        let positions = self.indices(1, "positions", self.m())?;
        let sequences = self.optional_indices(2, "sequences", self.m())?;
        self.attention(KvSource::Cache { cache, positions, sequences })
    }

    fn cache(&self) -> Checked<KvCache> {
        self.params.kv.ok_or(Problem::Missing { what: "kv" })
    }

    /// The store whose k is input `first`, followed by v, positions and sequences.
    fn kv_store(&self, first: usize) -> Checked<KvStoreCall> {
        let (heads, m) = (self.params.heads, self.m());
        check_heads(heads)?;
        Ok(KvStoreCall {
            k: self.rows(first, "k", heads.kv_width(), m)?,
            v: self.rows(first + 1, "v", heads.kv_width(), m)?,
            cache: self.cache()?,
            positions: self.indices(first + 2, "positions", m)?,
            sequences: self.optional_indices(first + 3, "sequences", m)?,
            m,
            heads,
        })
    }

    fn rope_store(&self) -> Checked<RopeStoreCall> {
        let (params, heads) = (&self.params, self.params.heads);
        let store = self.kv_store(1)?;
        let (rope, factors) = self.rope_params()?;
        same("the output's width", heads.q_width(), self.width())?;
        Ok(RopeStoreCall {
            q: self.rows(0, "q", heads.q_width(), self.m())?,
            store,
            q_gamma: (params.gamma_ptr != 0).then_some(params.gamma_ptr),
            k_gamma: (params.k_gamma_ptr != 0).then_some(params.k_gamma_ptr),
            epsilon: params.scalar,
            rope,
            factors,
            output: self.data_ptr,
        })
    }

    fn copy(&self) -> Checked<CopyCall> {
        let input = self.input(0)?;
        same("the elements of the input", self.n_elements() as u64, input.n_elements() as u64)?;
        let bytes = input.dtype.bytes(self.n_elements())?;
        Ok(CopyCall { input: input.data_ptr, output: self.data_ptr, bytes })
    }

    fn all_reduce(&self) -> Checked<AllReduceCall> {
        let (n_elements, ranks) = (self.n_elements(), self.params.ranks);
        let input = self.rows(0, "the input", self.width(), self.m())?;
        Ok(AllReduceCall { input, output: self.data_ptr, n_elements, ranks })
    }

    fn all_gather(&self) -> Checked<AllGatherCall> {
        let (ranks, m) = (self.params.ranks, self.m());
        let width = self.width().checked_div(ranks).unwrap_or(0);
        same("the width of the output", width.saturating_mul(ranks), self.width())?;
        let input = match self.input(0)?.dtype {
            DType::U32 => self.indices(0, "the input", m.saturating_mul(width))?,
            _ => self.rows(0, "the input", width, m)?,
        };
        Ok(AllGatherCall { input, output: self.data_ptr, m, width, ranks })
    }

    fn host_segment(&self) -> Checked<HostSegmentCall> {
        let (segment, m, n) = (self.params.int_param, self.m(), self.width());
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for position in 0..self.inputs.len() {
            let input = self.input(position)?;
            if !matches!(input.dtype, DType::F32 | DType::U32) {
                let (what, expected) = ("an input", "F32 or U32");
                return Err(Problem::Type { what, expected, got: input.dtype });
            }
            same("the rows of an input", m, input.m())?;
            let width = input.n_elements().checked_div(m as usize).unwrap_or(0);
            inputs.push(HostInput { ptr: input.data_ptr, width: u32::try_from(width).unwrap_or(u32::MAX) });
        }
        Ok(HostSegmentCall { segment, inputs, output: self.data_ptr, m, n, batch_invariant: false })
    }

    fn history(&self) -> Checked<TokenHistory> {
        self.params.history.ok_or(Problem::Missing { what: "history" })
    }

    fn penalize(&self) -> Checked<PenalizeCall> {
        let (m, n) = (self.m(), self.width());
        Ok(PenalizeCall {
            logits: self.rows(0, "the logits", n, m)?,
            penalties: self.params.penalty_ptr,
            history: self.history()?,
            positions: self.indices(1, "positions", m)?,
            sequences: self.optional_indices(2, "sequences", m)?,
            output: self.data_ptr,
            m,
            n,
        })
    }

    fn gather_tokens(&self) -> Checked<GatherTokensCall> {
        let m = self.m();
        same("the width", 1u32, self.width())?;
        Ok(GatherTokensCall {
            history: self.history()?,
            positions: self.indices(0, "positions", m)?,
            sequences: self.optional_indices(1, "sequences", m)?,
            output: self.data_ptr,
            m,
        })
    }

    fn mask_logits(&self) -> Checked<MaskLogitsCall> {
        let (m, n) = (self.m(), self.width());
        Ok(MaskLogitsCall {
            logits: self.rows(0, "the logits", n, m)?,
            state: self.params.logit_slots.ok_or(Problem::Missing { what: "logit_slots" })?,
            slots: self.optional_indices(1, "the sampling slots", m)?,
            output: self.data_ptr,
            m,
            n,
        })
    }

    fn log_probs(&self) -> Checked<LogProbsCall> {
        let (m, n, top) = (self.m(), self.input(0)?.width(), self.params.int_param);
        same("the output's width", u64::from(top) + 1, self.width())?;
        Ok(LogProbsCall {
            logits: self.rows(0, "the logits", n, m)?,
            tokens: self.indices(1, "tokens", m)?,
            values: self.data_ptr,
            indices: self.params.second_ptr,
            m,
            n,
            top,
        })
    }

    fn top_k(&self) -> Checked<TopKCall> {
        let (m, n, k) = (self.m(), self.input(0)?.width(), self.width());
        Ok(TopKCall {
            input: self.rows(0, "the input", n, m)?,
            values: self.data_ptr,
            indices: self.params.second_ptr,
            m,
            n,
            k,
            first: self.params.int_param,
        })
    }

    fn advance(&self) -> Checked<AdvanceCall> {
        let (m, tokens) = (self.m(), self.params.tokens_ptr);
        same("the width", 1u32, self.width())?;
        same("the node's address", tokens, self.data_ptr)?;
        Ok(AdvanceCall {
            drawn: self.indices(0, "the sampled tokens", m)?,
            tokens,
            positions: self.params.positions_ptr,
            sequences: self.optional_indices(1, "sequences", m)?,
            history: self.history()?,
            m,
        })
    }

    /// The input and its columns, for ops that give one integer per row.
    fn rows_to_index(&self) -> Checked<(u64, u32)> {
        let n = self.input(0)?.width();
        same("the output's width", 1u32, self.width())?;
        Ok((self.rows(0, "the input", n, self.m())?, n))
    }
}
