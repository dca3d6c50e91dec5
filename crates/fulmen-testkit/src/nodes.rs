//! A program written as nodes of a [`ComputeGraph`], so that tests can compare both front ends and change the
//! parameters of nodes at will.

use std::collections::HashMap;

use fulmen_core::*;

/// The nodes that lower to these calls: each call, leaves for what no earlier call wrote, and views of
/// further outputs.
pub fn nodes_of(program: &Program) -> ComputeGraph {
    let mut writer = Writer::default();
    for step in program.calls() {
        let node = writer.call(&step.call);
        if let Some(name) = &step.name {
            writer.graph.set_name(node, name);
        }
    }
    writer.graph
}

#[derive(Default)]
struct Writer {
    graph: ComputeGraph,
    /// The last node that holds this many rows of this many elements at an address.
    holders: HashMap<(u64, u32, u32, DType), usize>,
}

/// Op, address, shape and inputs of a node.
type Node = (TensorOp, u64, [u32; 4], Vec<usize>);

impl Writer {
    fn leaf(&mut self, ptr: u64, m: u32, width: u32, dtype: DType) -> usize {
        *self.holders.entry((ptr, m, width, dtype)).or_insert_with(|| {
            let node = self.graph.add_leaf(ptr, [width, 1, m, 0]);
            self.graph.nodes[node].dtype = dtype;
            node
        })
    }

    fn rows(&mut self, ptr: u64, m: u32, width: u32) -> usize {
        self.leaf(ptr, m, width, DType::F32)
    }

    fn slots(&mut self, mut inputs: Vec<usize>, ptrs: [Option<u64>; 2], m: u32) -> Vec<usize> {
        inputs.extend(ptrs.into_iter().flatten().map(|ptr| self.leaf(ptr, m, 1, DType::U32)));
        inputs
    }

    fn push(&mut self, (op, ptr, shape, inputs): Node, params: OpParams) -> usize {
        let node = self.graph.add_op(op, ptr, shape, inputs, params);
        let TensorNode { dtype, .. } = self.graph.nodes[node];
        let key = (ptr, shape[2], self.graph.nodes[node].width(), dtype);
        self.holders.insert(key, node);
        node
    }

    fn view(&mut self, of: usize, ptr: u64, m: u32, width: u32) {
        self.push((TensorOp::View, ptr, [width, 1, m, 0], vec![of]), OpParams::default());
    }

    fn call(&mut self, call: &OpCall) -> usize {
        let (op, none) = (call.op(), OpParams::default());
        match call {
            OpCall::Embed(c) => {
                let (table_rows, table_part) = (c.table.rows, c.part);
                let params = OpParams { table_rows, table_part, ..weight(&c.table) };
                let tokens = self.leaf(c.tokens, c.m, 1, DType::U32);
                self.push((op, c.output, [c.width, 1, c.m, 0], vec![tokens]), params)
            }
            OpCall::MulMat(c) => self.mul_mat(c),
            OpCall::GateUp(c) => {
                let gate_activation = c.activation;
                let (up_ptr, up_qtype) = (c.up.ptr, Some(c.up.dtype));
                let params = OpParams { up_ptr, up_qtype, gate_activation, ..weight(&c.gate) };
                let inputs = vec![self.rows(c.input, c.m, c.k)];
                self.push((op, c.output, [c.gate.rows, c.k, c.m, 0], inputs), params)
            }
            OpCall::Route(_) | OpCall::ExpertGateUp(_) | OpCall::ExpertDown(_) => self.experts(call),
            OpCall::RmsNorm(c) => {
                let params = OpParams { gamma_ptr: c.gamma, scalar: c.epsilon, ..none };
                let inputs = vec![self.rows(c.input, c.rows, c.width)];
                self.push((op, c.output, [c.width, 1, c.rows, 0], inputs), params)
            }
            OpCall::AddRmsNorm(c) => {
                let params = OpParams { gamma_ptr: c.gamma, scalar: c.epsilon, second_ptr: c.sum, ..none };
                let inputs = [c.a, c.b].map(|ptr| self.rows(ptr, c.rows, c.width)).to_vec();
                let node = self.push((op, c.output, [c.width, 1, c.rows, 0], inputs), params);
                self.view(node, c.sum, c.rows, c.width);
                node
            }
            OpCall::Rope(c) => {
                let inputs = vec![self.rows(c.input, c.m, c.n_heads * c.head_dim)];
                let inputs = self.slots(inputs, [Some(c.positions), None], c.m);
                let params = rotation(c.rope, c.factors);
                self.push((op, c.output, [c.head_dim, c.n_heads, c.m, 0], inputs), params)
            }
            OpCall::SoftMax(c) => {
                let inputs = vec![self.rows(c.input, c.rows, c.width)];
                let params = OpParams { scalar: c.scale, ..none };
                self.push((op, c.output, [c.width, 1, c.rows, 0], inputs), params)
            }
            OpCall::Attention(c) => self.attention(c),
            OpCall::KvStore(c) => {
                let (shape, inputs) = ([c.heads.kv_width(), 1, c.m, 0], self.store(c, Vec::new()));
                let params = OpParams { kv: Some(c.cache), heads: c.heads, ..none };
                self.push((op, c.cache.k_ptr, shape, inputs), params)
            }
            OpCall::RopeStore(c) => {
                let (m, heads) = (c.store.m, c.store.heads);
                let inputs = vec![self.rows(c.q, m, heads.q_width())];
                let inputs = self.store(&c.store, inputs);
                let params = OpParams {
                    gamma_ptr: c.q_gamma.unwrap_or(0),
                    k_gamma_ptr: c.k_gamma.unwrap_or(0),
                    scalar: c.epsilon,
                    kv: Some(c.store.cache),
                    heads,
                    ..rotation(c.rope, c.factors)
                };
                self.push((op, c.output, [heads.q_width(), 1, m, 0], inputs), params)
            }
            OpCall::AllReduce(_) | OpCall::AllGather(_) => self.collective(call),
            OpCall::MeanSquares(c) => {
                let [a, b] = [0, 1].map(|at| self.rows(c.inputs[at], c.m, c.widths[at]));
                self.push((op, c.output, [2, 1, c.m, 0], vec![a, b]), none)
            }
            OpCall::RmsScale(c) => {
                let inputs = vec![self.rows(c.input, c.m, c.width), self.rows(c.means, c.m, c.columns)];
                let params = OpParams {
                    gamma_ptr: c.gamma,
                    int_param: c.column,
                    ranks: c.ranks,
                    scalar: c.epsilon,
                    ..none
                };
                self.push((op, c.output, [c.width, 1, c.m, 0], inputs), params)
            }
            OpCall::Copy(c) => {
                let n = (c.bytes / 4) as u32;
                let inputs = vec![self.rows(c.input, 1, n)];
                self.push((op, c.output, [n, 1, 1, 0], inputs), none)
            }
            OpCall::ArgMax(c) => {
                let inputs = vec![self.rows(c.input, c.m, c.n)];
                self.push((op, c.output, [1, 1, c.m, 0], inputs), none)
            }
            OpCall::TopK(_) | OpCall::Sample(_) | OpCall::Penalize(_) | OpCall::GatherTokens(_) => {
                self.logits(call)
            }
            OpCall::MaskLogits(_) | OpCall::LogProbs(_) | OpCall::Advance(_) => self.logits(call),
            OpCall::CausalConv(_) | OpCall::GatedDeltaRule(_) | OpCall::SigmoidGate(_) => {
                self.recurrent(call)
            }
            call => self.element_wise(call),
        }
    }

    /// From logits to the tokens of the next step.
    fn logits(&mut self, call: &OpCall) -> usize {
        let (op, none) = (call.op(), OpParams::default());
        match call {
            OpCall::TopK(c) => {
                let inputs = vec![self.rows(c.input, c.m, c.n)];
                let params = OpParams { second_ptr: c.indices, int_param: c.first, ..none };
                self.push((op, c.values, [c.k, 1, c.m, 0], inputs), params)
            }
            OpCall::Sample(c) => {
                let mut inputs = vec![self.rows(c.logits, c.m, c.n)];
                inputs.extend(c.tokens.map(|tokens| self.leaf(tokens, c.m, c.n, DType::U32)));
                let params = OpParams { sample_ptr: c.states, ..none };
                self.push((op, c.output, [1, 1, c.m, 0], inputs), params)
            }
            OpCall::Penalize(c) => {
                let inputs = vec![self.rows(c.logits, c.m, c.n)];
                let inputs = self.slots(inputs, [Some(c.positions), c.sequences], c.m);
                let params = OpParams { penalty_ptr: c.penalties, history: Some(c.history), ..none };
                self.push((op, c.output, [c.n, 1, c.m, 0], inputs), params)
            }
            OpCall::GatherTokens(c) => {
                let inputs = self.slots(Vec::new(), [Some(c.positions), c.sequences], c.m);
                let params = OpParams { history: Some(c.history), ..none };
                self.push((op, c.output, [1, 1, c.m, 0], inputs), params)
            }
            OpCall::MaskLogits(c) => {
                let inputs = vec![self.rows(c.logits, c.m, c.n)];
                let inputs = self.slots(inputs, [c.slots, None], c.m);
                let params = OpParams { logit_slots: Some(c.state), ..none };
                self.push((op, c.output, [c.n, 1, c.m, 0], inputs), params)
            }
            OpCall::LogProbs(c) => {
                let inputs = vec![self.rows(c.logits, c.m, c.n)];
                let inputs = self.slots(inputs, [Some(c.tokens), None], c.m);
                let params = OpParams { second_ptr: c.indices, int_param: c.top, ..none };
                self.push((op, c.values, [1 + c.top, 1, c.m, 0], inputs), params)
            }
            OpCall::Advance(c) => {
                let inputs = self.slots(Vec::new(), [Some(c.drawn), c.sequences], c.m);
                let params = OpParams {
                    tokens_ptr: c.tokens,
                    positions_ptr: c.positions,
                    history: Some(c.history),
                    ..none
                };
                self.push((op, c.tokens, [1, 1, c.m, 0], inputs), params)
            }
            other => unreachable!("{} has no logits", other.op()),
        }
    }

    fn collective(&mut self, call: &OpCall) -> usize {
        let (ranks, output, shape, input) = match call {
            OpCall::AllReduce(c) => {
                let n = c.n_elements as u32;
                (c.ranks, c.output, [n, 1, 1, 0], self.rows(c.input, 1, n))
            }
            OpCall::AllGather(c) => {
                let shape = [c.gathered_width(), 1, c.m, 0];
                (c.ranks, c.output, shape, self.rows(c.input, c.m, c.width))
            }
            other => unreachable!("{} is not a collective", other.op()),
        };
        self.push((call.op(), output, shape, vec![input]), OpParams { ranks, ..OpParams::default() })
    }

    fn recurrent(&mut self, call: &OpCall) -> usize {
        let (op, none) = (call.op(), OpParams::default());
        match call {
            OpCall::CausalConv(c) => {
                let inputs = vec![self.rows(c.input, c.m, c.channels)];
                let inputs = self.slots(inputs, [Some(c.positions), c.sequences], c.m);
                let (weight_ptr, int_param) = (c.weight, c.taps);
                let params = OpParams { weight_ptr, int_param, recurrent: Some(c.state), ..none };
                self.push((op, c.output, [c.channels, 1, c.m, 0], inputs), params)
            }
            OpCall::GatedDeltaRule(c) => {
                let (m, values) = (c.m, c.heads.n_v_heads);
                let inputs = vec![
                    self.rows(c.input, m, c.heads.width()),
                    self.rows(c.alpha, m, values),
                    self.rows(c.beta, m, values),
                ];
                let inputs = self.slots(inputs, [Some(c.positions), c.sequences], m);
                let params = OpParams {
                    weight_ptr: c.decay,
                    bias_ptr: c.dt,
                    bias_len: values,
                    scalar: c.epsilon,
                    delta_heads: Some(c.heads),
                    recurrent: Some(c.state),
                    ..none
                };
                self.push((op, c.output, [c.heads.value_width(), 1, m, 0], inputs), params)
            }
            OpCall::SigmoidGate(c) => {
                let inputs = vec![self.rows(c.input, c.m, c.n), self.rows(c.gate, c.m, c.gates)];
                self.push((op, c.output, [c.n, 1, c.m, 0], inputs), none)
            }
            call => panic!("{call:?} has no recurrent state"),
        }
    }

    fn experts(&mut self, call: &OpCall) -> usize {
        let (op, none) = (call.op(), OpParams::default());
        match call {
            OpCall::Route(c) => {
                let inputs = vec![self.rows(c.logits, c.m, c.n_experts)];
                let params = OpParams {
                    route: Some(c.route),
                    expert_part: c.part,
                    second_ptr: c.ids,
                    bias_ptr: c.bias.unwrap_or(0),
                    bias_len: c.bias.map_or(0, |_| c.n_experts),
                    ..none
                };
                self.push((op, c.weights, [c.route.top, 1, c.m, 0], inputs), params)
            }
            OpCall::ExpertGateUp(c) => {
                let inputs = vec![self.rows(c.input, c.m, c.k), self.leaf(c.ids, c.m, c.top, DType::U32)];
                let params = OpParams {
                    up_ptr: c.up.ptr,
                    up_qtype: Some(c.up.dtype),
                    bias_ptr: c.gate_bias.unwrap_or(0),
                    up_bias_ptr: c.up_bias.unwrap_or(0),
                    n_experts: c.n_experts,
                    activation: c.activation,
                    ..weight(&c.gate)
                };
                self.push((op, c.output, [c.top * c.n(), c.k, c.m, 0], inputs), params)
            }
            OpCall::ExpertDown(c) => {
                let mut inputs = vec![
                    self.rows(c.input, c.m, c.top * c.k),
                    self.leaf(c.ids, c.m, c.top, DType::U32),
                    self.rows(c.weights, c.m, c.top),
                ];
                inputs.extend(c.residual.map(|ptr| self.rows(ptr, c.m, c.n())));
                let (bias_ptr, n_experts) = (c.bias.unwrap_or(0), c.n_experts);
                let params = OpParams { bias_ptr, n_experts, ..weight(&c.down) };
                self.push((op, c.output, [c.n(), c.k, c.m, 0], inputs), params)
            }
            call => panic!("{call:?} has no experts"),
        }
    }

    fn element_wise(&mut self, call: &OpCall) -> usize {
        let (operands, output, n, scalar) = match (call.as_type(), call.as_type()) {
            (Some(UnaryCall { input, output, n_elements, scalar }), _) => {
                (vec![*input], output, n_elements, *scalar)
            }
            (_, Some(BinaryCall { a, b, output, n_elements })) => (vec![*a, *b], output, n_elements, 0.0),
            _ => panic!("{call:?} has no node"),
        };
        let n = u32::try_from(*n).expect("few elements");
        let inputs = operands.into_iter().map(|ptr| self.rows(ptr, 1, n)).collect();
        self.push((call.op(), *output, [n, 1, 1, 0], inputs), OpParams { scalar, ..OpParams::default() })
    }

    fn mul_mat(&mut self, c: &MulMatCall) -> usize {
        let extra = |part: &Projection| ExtraWeight {
            weight_ptr: part.weight.ptr,
            weight_qtype: part.weight.dtype,
            rows: part.weight.rows,
            bias_ptr: part.bias.unwrap_or(0),
            output_ptr: part.output,
        };
        let (first, n) = (&c.parts[0], c.parts[0].weight.rows);
        let params = OpParams {
            bias_ptr: first.bias.unwrap_or(0),
            bias_len: first.bias.map_or(0, |_| n),
            extra_weights: c.parts[1..].iter().map(extra).collect(),
            ..weight(&first.weight)
        };
        let mut inputs = vec![self.rows(c.input, c.m, c.k)];
        inputs.extend(c.residual.map(|ptr| self.rows(ptr, c.m, n)));
        let node = self.push((TensorOp::MulMat, first.output, [n, c.k, c.m, 0], inputs), params);
        for part in &c.parts[1..] {
            self.view(node, part.output, c.m, part.weight.rows);
        }
        node
    }

    fn attention(&mut self, c: &AttentionCall) -> usize {
        let (width, kv_width) = (c.heads.q_width(), c.heads.kv_width());
        let Scores { scale, window, chunk, softcap, temperature, sinks } = c.scores;
        let params = OpParams {
            heads: c.heads,
            scalar: scale,
            window,
            attention_chunk: chunk,
            softcap,
            temperature,
            sinks_ptr: sinks.unwrap_or(0),
            int_param: c.layer as u32,
            ..OpParams::default()
        };
        let mut inputs = vec![self.rows(c.q, c.m, width)];
        match c.kv {
            KvSource::Rows { k, v } => {
                inputs.extend([k, v].map(|ptr| self.rows(ptr, c.m, kv_width)));
                self.push((TensorOp::SoftMax, c.output, [width, 1, c.m, 0], inputs), params)
            }
            KvSource::Cache { cache, positions, sequences } => {
                let inputs = self.slots(inputs, [Some(positions), sequences], c.m);
                let params = OpParams { kv: Some(cache), attention_rows: c.rows, ..params };
                self.push((TensorOp::Attention, c.output, [width, 1, c.m, 0], inputs), params)
            }
        }
    }

    /// `inputs`, k, v, positions and sequences.
    fn store(&mut self, c: &KvStoreCall, mut inputs: Vec<usize>) -> Vec<usize> {
        inputs.extend([c.k, c.v].map(|ptr| self.rows(ptr, c.m, c.heads.kv_width())));
        self.slots(inputs, [Some(c.positions), c.sequences], c.m)
    }
}

fn weight(weight: &WeightArg) -> OpParams {
    OpParams { weight_ptr: weight.ptr, weight_qtype: Some(weight.dtype), ..OpParams::default() }
}

fn rotation(rope: RopeSpec, factors: Option<u64>) -> OpParams {
    OpParams { rope: Some(rope), rope_factors_ptr: factors.unwrap_or(0), ..OpParams::default() }
}
