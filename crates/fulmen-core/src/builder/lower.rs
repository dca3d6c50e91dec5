//! Lowering of the ops of a plan to typed calls: tensors become addresses.

use super::op::{CacheRef, Linear, Op, Slots, TensorId};
use super::{OpNode, TensorDef};
use crate::graph::*;
use crate::{GateActivation, GraphError, Problem};

/// The tensors of a plan and their addresses.
pub(super) struct Lowering<'a> {
    pub(super) tensors: &'a [TensorDef],
    pub(super) addresses: &'a [u64],
    pub(super) batch_invariant: bool,
}

impl Lowering<'_> {
    /// The calls of the ops, without those that have nothing to write. Errors name the op by its index.
    pub(super) fn run(&self, ops: &[OpNode]) -> Result<Program, GraphError> {
        let mut calls = Vec::with_capacity(ops.len());
        for (node, OpNode { op, outputs }) in ops.iter().enumerate() {
            let name = outputs.first().and_then(|&id| self.tensors[id].name.clone());
            let failed = |problem| GraphError { node, op: op.op(), name: name.clone(), problem };
            let call = self.call(op, outputs).map_err(failed)?;
            if !call.is_empty() {
                call.check().map_err(failed)?;
                calls.push(ProgramCall { node, name, call });
            }
        }
        Ok(Program::from_calls(calls))
    }

    fn at(&self, id: TensorId) -> u64 {
        self.addresses[id]
    }

    fn at_option(&self, id: Option<TensorId>) -> Option<u64> {
        id.map(|id| self.at(id))
    }

    fn weight(&self, id: TensorId) -> WeightArg {
        let TensorDef { dtype, rows, .. } = self.tensors[id];
        WeightArg { ptr: self.at(id), dtype, rows }
    }

    fn cache(&self, cache: &CacheRef) -> KvCache {
        let &CacheRef { k, v, table, dtype, n_pages, n_seqs, seq_pages } = cache;
        let (k_ptr, v_ptr, table_ptr) = (self.at(k), self.at(v), self.at(table));
        KvCache { k_ptr, v_ptr, dtype, n_pages, table_ptr, n_seqs, seq_pages }
    }

    fn history(&self, id: TensorId) -> TokenHistory {
        let TensorDef { rows, width, .. } = self.tensors[id];
        TokenHistory { ptr: self.at(id), n_seqs: rows, capacity: width }
    }

    fn logit_slots(&self, edits: TensorId, masks: TensorId) -> LogitSlots {
        let TensorDef { rows: n_slots, width, .. } = self.tensors[edits];
        let (edits_ptr, masks_ptr) = (self.at(edits), self.at(masks));
        LogitSlots { edits_ptr, masks_ptr, n_slots, capacity: width.saturating_sub(2) / 2 }
    }

    /// How many rows of `width` elements a tensor has: its rows times its heads.
    fn rows_of(&self, id: TensorId, width: u32) -> Result<u32, Problem> {
        let TensorDef { rows, width: all, .. } = self.tensors[id];
        let rows = u64::from(rows) * u64::from(all.checked_div(width).unwrap_or(0));
        let (what, expected) = ("rows", "less than 2^32");
        u32::try_from(rows).map_err(|_| Problem::Value { what, expected, got: rows as f64 })
    }

    fn call(&self, op: &Op, outputs: &[TensorId]) -> Result<OpCall, Problem> {
        let at = |id: TensorId| self.at(id);
        let output = outputs.first().map_or(0, |&id| at(id));
        Ok(match *op {
            Op::Embed { table, tokens, part } => {
                let (m, width) = (self.rows_of(tokens, 1)?, self.tensors[table].width);
                let (table, tokens) = (self.weight(table), at(tokens));
                OpCall::Embed(EmbedCall { table, part, tokens, output, m, width })
            }
            Op::MulMat { x, ref weights, residual } => self.mul_mat(x, weights, residual, outputs),
            Op::GateUp { x, gate, up, activation } => self.gate_up(x, [gate, up], activation, output),
            Op::CausalConv { .. } | Op::GatedDeltaRule { .. } | Op::SigmoidGate { .. } => {
                self.recurrent(op, output)?
            }
            Op::MeanSquares { a, b } => {
                let TensorDef { rows: m, width, .. } = self.tensors[a];
                let (inputs, widths) = ([at(a), at(b)], [width, self.tensors[b].width]);
                OpCall::MeanSquares(MeanSquaresCall { inputs, output, m, widths })
            }
            Op::RmsScale { x, means, column, gamma, ranks, epsilon } => {
                let TensorDef { rows: m, width, .. } = self.tensors[x];
                let columns = self.tensors[means].width;
                let [input, means, gamma] = [x, means, gamma].map(at);
                OpCall::RmsScale(RmsScaleCall {
                    input,
                    means,
                    gamma,
                    output,
                    m,
                    width,
                    columns,
                    column,
                    ranks,
                    epsilon,
                })
            }
            Op::Route { .. } | Op::ExpertGateUp { .. } | Op::ExpertDown { .. } => {
                self.experts(op, outputs)?
            }
            Op::RmsNorm { x, gamma, epsilon } => {
                let width = self.tensors[gamma].width;
                let (rows, gamma) = (self.rows_of(x, width)?, at(gamma));
                OpCall::RmsNorm(RmsNormCall { input: at(x), gamma, output, width, rows, epsilon })
            }
            Op::AddRmsNorm { a, b, gamma, epsilon } => {
                let TensorDef { rows, width, .. } = self.tensors[a];
                let [a, b, gamma, sum] = [a, b, gamma, outputs[1]].map(at);
                OpCall::AddRmsNorm(AddRmsNormCall { a, b, gamma, sum, output, width, rows, epsilon })
            }
            Op::Binary { kind, a, b } => {
                let n_elements = self.tensors[a].elements();
                kind.call(BinaryCall { a: at(a), b: at(b), output, n_elements })
            }
            Op::Unary { kind, x } => {
                let n_elements = self.tensors[x].elements();
                kind.call(UnaryCall { input: at(x), output, n_elements, scalar: kind.scalar() })
            }
            Op::Rope { x, positions, factors, head_dim, rope } => {
                let TensorDef { rows: m, width, .. } = self.tensors[x];
                let (factors, n_heads) = (self.at_option(factors), width.checked_div(head_dim).unwrap_or(0));
                let (input, positions) = (at(x), at(positions));
                OpCall::Rope(RopeCall { input, positions, factors, output, m, n_heads, head_dim, rope })
            }
            Op::SoftMax { x, scale } => {
                let TensorDef { rows, width, .. } = self.tensors[x];
                OpCall::SoftMax(SoftMaxCall { input: at(x), output, width, rows, scale })
            }
            Op::Attention { q, k, v, heads, scores } => {
                let kv = KvSource::Rows { k: at(k), v: at(v) };
                OpCall::Attention(self.attention(q, kv, AttentionRows::Any, output, heads, scores))
            }
            Op::CacheAttention { q, cache, slots, rows, heads, scores } => {
                let Slots { positions, sequences } = slots;
                let (cache, sequences) = (self.cache(&cache), self.at_option(sequences));
                let kv = KvSource::Cache { cache, positions: at(positions), sequences };
                OpCall::Attention(self.attention(q, kv, rows.map(at), output, heads, scores))
            }
            Op::KvStore { k, v, cache, slots, heads } => {
                OpCall::KvStore(self.kv_store(k, v, &cache, slots, heads))
            }
            Op::RopeStore { q, k, v, q_gamma, k_gamma, epsilon, rope, factors, cache, slots, heads } => {
                OpCall::RopeStore(RopeStoreCall {
                    q: at(q),
                    store: self.kv_store(k, v, &cache, slots, heads),
                    q_gamma: self.at_option(q_gamma),
                    k_gamma: self.at_option(k_gamma),
                    epsilon,
                    rope,
                    factors: self.at_option(factors),
                    output,
                })
            }
            Op::AllReduce { x, ranks } => self.all_reduce(x, ranks, output),
            Op::AllGather { x, ranks } => self.all_gather(x, ranks, output),
            Op::HostSegment { segment, ref inputs } => self.host_segment(segment, inputs, outputs),
            Op::Copy { x } => self.copy(x, output)?,
            Op::ArgMax { x } => {
                let TensorDef { rows: m, width: n, .. } = self.tensors[x];
                OpCall::ArgMax(ArgMaxCall { input: at(x), output, m, n })
            }
            Op::TopK { .. }
            | Op::Sample { .. }
            | Op::Penalize { .. }
            | Op::GatherTokens { .. }
            | Op::MaskLogits { .. }
            | Op::LogProbs { .. }
            | Op::Advance { .. } => self.logits(op, outputs)?,
        })
    }

    /// The calls from logits to the tokens of the next step.
    fn logits(&self, op: &Op, outputs: &[TensorId]) -> Result<OpCall, Problem> {
        let at = |id: TensorId| self.at(id);
        let output = outputs.first().map_or(0, |&id| at(id));
        Ok(match *op {
            Op::TopK { x, k, first } => {
                let TensorDef { rows: m, width: n, .. } = self.tensors[x];
                let indices = outputs.get(1).map_or(0, |&id| at(id));
                OpCall::TopK(TopKCall { input: at(x), values: output, indices, m, n, k, first })
            }
            Op::Sample { logits, tokens, states } => {
                let TensorDef { rows: m, width: n, .. } = self.tensors[logits];
                let (logits, tokens, states) = (at(logits), self.at_option(tokens), at(states));
                OpCall::Sample(SampleCall { logits, tokens, states, output, m, n })
            }
            Op::Penalize { logits, penalties, history, slots } => {
                let TensorDef { rows: m, width: n, .. } = self.tensors[logits];
                OpCall::Penalize(PenalizeCall {
                    logits: at(logits),
                    penalties: at(penalties),
                    history: self.history(history),
                    positions: at(slots.positions),
                    sequences: self.at_option(slots.sequences),
                    output,
                    m,
                    n,
                })
            }
            Op::GatherTokens { history, slots } => OpCall::GatherTokens(GatherTokensCall {
                history: self.history(history),
                positions: at(slots.positions),
                sequences: self.at_option(slots.sequences),
                output,
                m: self.tensors[slots.positions].rows,
            }),
            Op::MaskLogits { logits, edits, masks, slots } => {
                let TensorDef { rows: m, width: n, .. } = self.tensors[logits];
                let (state, slots) = (self.logit_slots(edits, masks), self.at_option(slots));
                OpCall::MaskLogits(MaskLogitsCall { logits: at(logits), state, slots, output, m, n })
            }
            Op::LogProbs { logits, tokens, top } => {
                let TensorDef { rows: m, width: n, .. } = self.tensors[logits];
                let indices = outputs.get(1).map_or(0, |&id| at(id));
                let (logits, tokens) = (at(logits), at(tokens));
                OpCall::LogProbs(LogProbsCall { logits, tokens, values: output, indices, m, n, top })
            }
            Op::Advance { drawn, tokens, positions, history, sequences } => {
                let (history, sequences) = (self.history(history), self.at_option(sequences));
                let m = self.tensors[drawn].rows;
                let [drawn, tokens, positions] = [drawn, tokens, positions].map(at);
                OpCall::Advance(AdvanceCall { drawn, tokens, positions, sequences, history, m })
            }
            _ => return Err(Problem::Missing { what: "the logits of the op" }),
        })
    }

    fn copy(&self, x: TensorId, output: u64) -> Result<OpCall, Problem> {
        Ok(OpCall::Copy(CopyCall { input: self.at(x), output, bytes: self.tensors[x].bytes()? }))
    }

    /// The calls of layers with a recurrent state.
    fn recurrent(&self, op: &Op, output: u64) -> Result<OpCall, Problem> {
        let state = |id: TensorId| RecurrentState { ptr: self.at(id), n_seqs: self.tensors[id].rows };
        Ok(match *op {
            Op::CausalConv { x, weight, state: slot, slots, decode } => OpCall::CausalConv(CausalConvCall {
                input: self.at(x),
                weight: self.at(weight),
                state: state(slot),
                positions: self.at(slots.positions),
                sequences: self.at_option(slots.sequences),
                output,
                m: self.tensors[x].rows,
                channels: self.tensors[x].width,
                taps: self.tensors[weight].width,
                decode,
            }),
            Op::GatedDeltaRule {
                qkv,
                alpha,
                beta,
                decay,
                dt,
                state: slot,
                slots,
                decode,
                heads,
                epsilon,
            } => OpCall::GatedDeltaRule(GatedDeltaRuleCall {
                input: self.at(qkv),
                alpha: self.at(alpha),
                beta: self.at(beta),
                decay: self.at(decay),
                dt: self.at(dt),
                state: state(slot),
                positions: self.at(slots.positions),
                sequences: self.at_option(slots.sequences),
                output,
                m: self.tensors[qkv].rows,
                heads,
                epsilon,
                decode,
                batch_invariant: self.batch_invariant,
            }),
            Op::SigmoidGate { x, gate } => OpCall::SigmoidGate(SigmoidGateCall {
                input: self.at(x),
                gate: self.at(gate),
                output,
                m: self.tensors[x].rows,
                n: self.tensors[x].width,
                gates: self.tensors[gate].width,
            }),
            _ => return Err(Problem::Missing { what: "the recurrent state of the op" }),
        })
    }

    /// The calls of a mixture of experts.
    fn experts(&self, op: &Op, outputs: &[TensorId]) -> Result<OpCall, Problem> {
        let at = |id: TensorId| self.at(id);
        let output = outputs.first().map_or(0, |&id| at(id));
        Ok(match *op {
            Op::Route { logits, bias, route, part } => {
                let TensorDef { rows: m, width: n_experts, .. } = self.tensors[logits];
                let (bias, ids) = (self.at_option(bias), outputs.get(1).map_or(0, |&id| at(id)));
                let logits = at(logits);
                OpCall::Route(RouteCall { logits, bias, weights: output, ids, m, n_experts, route, part })
            }
            Op::ExpertGateUp { x, ids, gate, up, n_experts, activation } => {
                let TensorDef { rows: m, width: k, .. } = self.tensors[x];
                OpCall::ExpertGateUp(ExpertGateUpCall {
                    input: at(x),
                    ids: at(ids),
                    gate: self.weight(gate.weight),
                    up: self.weight(up.weight),
                    gate_bias: self.at_option(gate.bias),
                    up_bias: self.at_option(up.bias),
                    output,
                    m,
                    k,
                    top: self.tensors[ids].width,
                    n_experts,
                    activation,
                    batch_invariant: self.batch_invariant,
                })
            }
            Op::ExpertDown { x, ids, weights, down, residual, n_experts } => {
                OpCall::ExpertDown(ExpertDownCall {
                    input: at(x),
                    ids: at(ids),
                    weights: at(weights),
                    down: self.weight(down.weight),
                    bias: self.at_option(down.bias),
                    residual: self.at_option(residual),
                    output,
                    m: self.tensors[x].rows,
                    k: self.tensors[down.weight].width,
                    top: self.tensors[ids].width,
                    n_experts,
                    batch_invariant: self.batch_invariant,
                })
            }
            _ => return Err(Problem::Missing { what: "the experts of the op" }),
        })
    }

    fn gate_up(
        &self,
        x: TensorId,
        [gate, up]: [TensorId; 2],
        activation: GateActivation,
        output: u64,
    ) -> OpCall {
        let TensorDef { rows: m, width: k, .. } = self.tensors[x];
        let (input, gate, up) = (self.at(x), self.weight(gate), self.weight(up));
        let batch_invariant = self.batch_invariant;
        OpCall::GateUp(GateUpCall { input, gate, up, activation, output, m, k, batch_invariant })
    }

    /// All projections of one input; those without rows have nothing to write.
    fn all_reduce(&self, x: TensorId, ranks: u32, output: u64) -> OpCall {
        let n_elements = self.tensors[x].elements();
        OpCall::AllReduce(AllReduceCall { input: self.at(x), output, n_elements, ranks })
    }

    fn all_gather(&self, x: TensorId, ranks: u32, output: u64) -> OpCall {
        let TensorDef { rows: m, width, .. } = self.tensors[x];
        OpCall::AllGather(AllGatherCall { input: self.at(x), output, m, width, ranks })
    }

    fn host_segment(&self, segment: u32, inputs: &[TensorId], outputs: &[TensorId]) -> OpCall {
        let input = |&id: &TensorId| HostInput { ptr: self.at(id), width: self.tensors[id].width };
        let n = outputs.first().map_or(0, |&id| self.tensors[id].width);
        OpCall::HostSegment(HostSegmentCall {
            segment,
            inputs: inputs.iter().map(input).collect(),
            output: outputs.first().map_or(0, |&id| self.at(id)),
            m: inputs.first().map_or(0, |&id| self.tensors[id].rows),
            n,
            batch_invariant: self.batch_invariant,
        })
    }

    fn mul_mat(
        &self,
        x: TensorId,
        weights: &[Linear],
        residual: Option<TensorId>,
        outputs: &[TensorId],
    ) -> OpCall {
        let part = |(linear, output): (&Linear, &TensorId)| Projection {
            weight: self.weight(linear.weight),
            bias: self.at_option(linear.bias),
            output: self.at(*output),
        };
        let TensorDef { rows: m, width: k, .. } = self.tensors[x];
        let parts = weights.iter().zip(outputs).map(part).filter(|part| part.weight.rows > 0).collect();
        let (residual, batch_invariant) = (self.at_option(residual), self.batch_invariant);
        OpCall::MulMat(MulMatCall { input: self.at(x), parts, residual, m, k, batch_invariant })
    }

    fn attention(
        &self,
        q: TensorId,
        kv: KvSource,
        rows: AttentionRows,
        output: u64,
        heads: Heads,
        scores: Scores<TensorId>,
    ) -> AttentionCall {
        let (q, m, batch_invariant) = (self.at(q), self.tensors[q].rows, self.batch_invariant);
        let scores = scores.map(|sinks| self.at(sinks));
        AttentionCall { q, kv, output, m, heads, rows, scores, layer: 0, batch_invariant }
    }

    fn kv_store(
        &self,
        k: TensorId,
        v: TensorId,
        cache: &CacheRef,
        slots: Slots,
        heads: Heads,
    ) -> KvStoreCall {
        KvStoreCall {
            k: self.at(k),
            v: self.at(v),
            cache: self.cache(cache),
            positions: self.at(slots.positions),
            sequences: self.at_option(slots.sequences),
            m: self.tensors[k].rows,
            heads,
        }
    }
}
