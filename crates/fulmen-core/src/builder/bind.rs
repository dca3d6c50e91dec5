//! Binding of a plan to addresses: the executable graph.

use std::collections::HashMap;

use super::op::{BinaryKind, CacheRef, Linear, Op, Slots, TensorId, UnaryKind};
use super::{OpNode, Plan, Role};
use crate::graph::{ComputeGraph, ExtraWeight, KvCache, OpParams, Program, TensorOp, TokenHistory};
use crate::{BackendError, BuildError, DeviceMemory, ExecError, KernelDispatch, Problem};

/// Addresses of weights and states, by name.
#[derive(Clone, Debug, Default)]
pub struct Bindings(HashMap<String, u64>);

impl Bindings {
    /// No addresses.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Sets the address of a weight or state.
    pub fn set(&mut self, name: &str, ptr: u64) {
        self.0.insert(name.to_owned(), ptr);
    }

    /// The address of a weight or state.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }
}

/// A graph with addresses, checked and ready to run on one device.
#[derive(Clone, Debug)]
pub struct BoundGraph {
    /// The executable graph.
    pub graph: ComputeGraph,
    program: Program,
    arena: u64,
    addresses: Vec<u64>,
    bytes: Vec<usize>,
    names: HashMap<Box<str>, TensorId>,
}

impl Plan {
    /// Allocates the arena on the device and binds to it.
    pub fn bind<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        bindings: &Bindings,
    ) -> Result<BoundGraph, ExecError> {
        let arena = memory.alloc(self.arena_bytes.max(1))?;
        self.bind_at(arena, bindings).inspect_err(|_| {
            // The first error is the one to report.
            let _ = memory.free(arena);
        })
    }

    /// Binds to an arena that the caller has allocated: [`arena_bytes`](Plan::arena_bytes) bytes at `arena`.
    pub fn bind_at(&self, arena: u64, bindings: &Bindings) -> Result<BoundGraph, ExecError> {
        let mut addresses = Vec::with_capacity(self.graph.tensors.len());
        let mut bytes = Vec::with_capacity(self.graph.tensors.len());
        let mut names = HashMap::new();
        for (id, (tensor, placement)) in self.graph.tensors.iter().zip(&self.placements).enumerate() {
            let name = tensor.name.as_deref().unwrap_or("");
            let size = tensor.bytes().map_err(|e| refused(Problem::DType(e)))?;
            addresses.push(match (tensor.role, placement) {
                (Role::Weight | Role::State, _) => {
                    bindings.get(name).ok_or_else(|| refused(Problem::Unbound(name.to_owned())))?
                }
                (_, Some(placement)) => arena + placement.offset as u64,
                (_, None) => 0,
            });
            bytes.push(size);
            if !name.is_empty() {
                names.insert(name.into(), id);
            }
        }
        let graph = Lowering { plan: self, addresses: &addresses, node_of: HashMap::new() }.run();
        let program = graph.check()?;
        Ok(BoundGraph { graph, program, arena, addresses, bytes, names })
    }
}

fn refused(problem: Problem) -> ExecError {
    ExecError::Build(BuildError { call: "bind", problem })
}

impl BoundGraph {
    /// Runs it and returns the number of kernels launched. Does not wait for the device.
    pub fn run<D: KernelDispatch + ?Sized>(&self, dispatcher: &mut D) -> Result<usize, ExecError> {
        self.program.run(dispatcher)
    }

    /// The checked calls.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Address of the arena.
    pub fn arena(&self) -> u64 {
        self.arena
    }

    /// Address of a tensor; 0 if fusion removed it.
    pub fn address(&self, tensor: TensorId) -> u64 {
        self.addresses.get(tensor).copied().unwrap_or(0)
    }

    /// The tensor of this name: an input, weight, state or output.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.names.get(name).copied()
    }

    /// Writes an input.
    pub fn write<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
        data: &[u8],
    ) -> Result<(), ExecError> {
        let (ptr, bytes) = self.named(name)?;
        if bytes != data.len() {
            let (expected, got) = (bytes as u64, data.len() as u64);
            return Err(refused(Problem::Size { what: "the bytes written", expected, got }));
        }
        Ok(memory.write(ptr, data)?)
    }

    /// Reads a tensor.
    pub fn read<M: DeviceMemory + ?Sized>(&self, memory: &mut M, name: &str) -> Result<Vec<u8>, ExecError> {
        let (ptr, bytes) = self.named(name)?;
        let mut data = vec![0; bytes];
        memory.read(ptr, &mut data)?;
        Ok(data)
    }

    /// Writes an f32 input.
    pub fn write_f32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
        data: &[f32],
    ) -> Result<(), ExecError> {
        self.write(memory, name, bytemuck::cast_slice(data))
    }

    /// Writes a u32 input.
    pub fn write_u32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
        data: &[u32],
    ) -> Result<(), ExecError> {
        self.write(memory, name, bytemuck::cast_slice(data))
    }

    /// Reads an f32 tensor.
    pub fn read_f32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
    ) -> Result<Vec<f32>, ExecError> {
        Ok(bytemuck::pod_collect_to_vec(&self.read(memory, name)?))
    }

    /// Reads a u32 tensor.
    pub fn read_u32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
    ) -> Result<Vec<u32>, ExecError> {
        Ok(bytemuck::pod_collect_to_vec(&self.read(memory, name)?))
    }

    /// Frees the arena. Weights and states belong to the caller.
    pub fn release<M: DeviceMemory + ?Sized>(self, memory: &mut M) -> Result<(), BackendError> {
        memory.free(self.arena)
    }

    fn named(&self, name: &str) -> Result<(u64, usize), ExecError> {
        let id = self.find(name).ok_or_else(|| refused(Problem::Unbound(name.to_owned())))?;
        Ok((self.addresses[id], self.bytes[id]))
    }
}

/// Lowers the ops of a plan to nodes with addresses.
struct Lowering<'a> {
    plan: &'a Plan,
    addresses: &'a [u64],
    /// The node that writes each tensor, or its leaf.
    node_of: HashMap<TensorId, usize>,
}

impl Lowering<'_> {
    fn run(mut self) -> ComputeGraph {
        let mut graph = ComputeGraph::new();
        for OpNode { op, outputs } in &self.plan.graph.ops {
            self.lower(&mut graph, op, outputs);
        }
        graph
    }

    fn at(&self, id: TensorId) -> u64 {
        self.addresses[id]
    }

    fn at_option(&self, id: Option<TensorId>) -> u64 {
        id.map_or(0, |id| self.at(id))
    }

    /// The node that writes a tensor; a leaf is added for a tensor without one.
    fn node(&mut self, graph: &mut ComputeGraph, id: TensorId) -> usize {
        if let Some(&node) = self.node_of.get(&id) {
            return node;
        }
        let tensor = &self.plan.graph.tensors[id];
        let node = graph.add_leaf(self.at(id), [tensor.width, 1, tensor.rows, 0]);
        graph.nodes[node].dtype = tensor.dtype;
        graph.nodes[node].name = tensor.name.clone();
        self.node_of.insert(id, node);
        node
    }

    fn lower(&mut self, graph: &mut ComputeGraph, op: &Op, outputs: &[TensorId]) {
        let (op, inputs, inner, params) = self.node_parts(op, outputs);
        let inputs: Vec<usize> = inputs.into_iter().map(|id| self.node(graph, id)).collect();
        let (ptr, shape, name) = match outputs.first() {
            Some(&output) => {
                let tensor = &self.plan.graph.tensors[output];
                let shape = match op {
                    TensorOp::MulMat | TensorOp::GateUp => [tensor.width, inner, tensor.rows, 0],
                    // By heads: `inner` is the width of one.
                    _ if inner > 0 => [inner, tensor.width / inner, tensor.rows, 0],
                    _ => [tensor.width, 1, tensor.rows, 0],
                };
                (self.at(output), shape, tensor.name.clone())
            }
            None if op == TensorOp::Advance => {
                (params.tokens_ptr, [1, 1, graph.nodes[inputs[0]].m(), 0], None)
            }
            None => {
                let (kv, m) = (params.kv.map_or(0, |kv| kv.k_ptr), graph.nodes[inputs[0]].m());
                (kv, [params.heads.kv_width(), 1, m, 0], None)
            }
        };
        let node = graph.add_op(op, ptr, shape, inputs, params);
        graph.nodes[node].name = name;
        for (position, &output) in outputs.iter().enumerate() {
            let tensor = &self.plan.graph.tensors[output];
            let index = if position == 0 {
                node
            } else {
                let shape = [tensor.width, 1, tensor.rows, 0];
                let view =
                    graph.add_op(TensorOp::View, self.at(output), shape, vec![node], OpParams::default());
                graph.nodes[view].name = tensor.name.clone();
                view
            };
            self.node_of.insert(output, index);
        }
    }

    fn cached(&self, cache: &CacheRef) -> Option<KvCache> {
        let &CacheRef { k, v, table, dtype, n_pages, n_seqs, seq_pages } = cache;
        let (k_ptr, v_ptr, table_ptr) = (self.at(k), self.at(v), self.at(table));
        Some(KvCache { k_ptr, v_ptr, dtype, n_pages, table_ptr, n_seqs, seq_pages })
    }

    fn history(&self, history: TensorId) -> TokenHistory {
        let def = &self.plan.graph.tensors[history];
        TokenHistory { ptr: self.at(history), n_seqs: def.rows, capacity: def.width }
    }

    /// The weights of a MulMat node, each with its output.
    fn mul_mat_params(&self, weights: &[Linear], outputs: &[TensorId]) -> OpParams {
        let tensors = &self.plan.graph.tensors;
        let Linear { weight, bias } = weights[0];
        let extra = |(linear, output): (&Linear, &TensorId)| ExtraWeight {
            weight_ptr: self.at(linear.weight),
            weight_qtype: tensors[linear.weight].dtype,
            rows: tensors[linear.weight].rows,
            bias_ptr: self.at_option(linear.bias),
            output_ptr: self.at(*output),
        };
        OpParams {
            weight_ptr: self.at(weight),
            weight_qtype: Some(tensors[weight].dtype),
            bias_ptr: self.at_option(bias),
            bias_len: bias.map_or(0, |id| tensors[id].width),
            extra_weights: weights.iter().zip(outputs).skip(1).map(extra).collect(),
            ..OpParams::default()
        }
    }

    /// Op, inputs, the inner size (k of a matmul, the width of a head, else 0) and parameters of a node.
    fn node_parts(&self, op: &Op, outputs: &[TensorId]) -> (TensorOp, Vec<TensorId>, u32, OpParams) {
        let tensors = &self.plan.graph.tensors;
        let width = |id: TensorId| tensors[id].width;
        let dtype = |id: TensorId| Some(tensors[id].dtype);
        let slotted = |mut inputs: Vec<TensorId>, slots: &Slots| {
            inputs.push(slots.positions);
            inputs.extend(slots.sequences);
            inputs
        };
        let none = OpParams::default();
        match op {
            Op::Embed { table, tokens } => (
                TensorOp::Embed,
                vec![*tokens],
                0,
                OpParams {
                    weight_ptr: self.at(*table),
                    weight_qtype: dtype(*table),
                    table_rows: tensors[*table].rows,
                    ..none
                },
            ),
            Op::MulMat { x, weights, residual } => {
                let inputs = std::iter::once(*x).chain(*residual).collect();
                (TensorOp::MulMat, inputs, width(*x), self.mul_mat_params(weights, outputs))
            }
            Op::GateUp { x, gate, up } => {
                let params = OpParams {
                    weight_ptr: self.at(*gate),
                    weight_qtype: dtype(*gate),
                    up_ptr: self.at(*up),
                    up_qtype: dtype(*up),
                    ..none
                };
                (TensorOp::GateUp, vec![*x], width(*x), params)
            }
            Op::RmsNorm { x, gamma, epsilon } => {
                let params = OpParams { gamma_ptr: self.at(*gamma), scalar: *epsilon, ..none };
                (TensorOp::RmsNorm, vec![*x], width(*gamma), params)
            }
            Op::AddRmsNorm { a, b, gamma, epsilon } => {
                let second_ptr = self.at(outputs[1]);
                let params = OpParams { gamma_ptr: self.at(*gamma), scalar: *epsilon, second_ptr, ..none };
                (TensorOp::AddRmsNorm, vec![*a, *b], 0, params)
            }
            Op::Binary { kind, a, b } => {
                let op = match kind {
                    BinaryKind::Add => TensorOp::Add,
                    BinaryKind::Mul => TensorOp::Mul,
                    BinaryKind::SwiGlu => TensorOp::SwiGlu,
                };
                (op, vec![*a, *b], 0, none)
            }
            Op::Unary { kind, x } => {
                let (op, scalar) = match kind {
                    UnaryKind::Silu => (TensorOp::Silu, 0.0),
                    UnaryKind::Gelu => (TensorOp::Gelu, 0.0),
                    UnaryKind::GeluTanh => (TensorOp::GeluTanh, 0.0),
                    UnaryKind::Scale(factor) => (TensorOp::Scale, *factor),
                    UnaryKind::SoftCap(cap) => (TensorOp::SoftCap, *cap),
                };
                (op, vec![*x], 0, OpParams { scalar, ..none })
            }
            Op::Rope { x, positions, factors, head_dim, rope } => {
                let rope_factors_ptr = self.at_option(*factors);
                let params = OpParams { rope: Some(*rope), rope_factors_ptr, ..none };
                (TensorOp::Rope, vec![*x, *positions], *head_dim, params)
            }
            Op::SoftMax { x, scale } => (TensorOp::SoftMax, vec![*x], 0, OpParams { scalar: *scale, ..none }),
            Op::Attention { q, k, v, heads, scale } => {
                (TensorOp::SoftMax, vec![*q, *k, *v], 0, OpParams { heads: *heads, scalar: *scale, ..none })
            }
            Op::CacheAttention { q, cache, slots, heads, scale } => {
                let params = OpParams { heads: *heads, scalar: *scale, kv: self.cached(cache), ..none };
                (TensorOp::Attention, slotted(vec![*q], slots), 0, params)
            }
            Op::KvStore { k, v, cache, slots, heads } => {
                let params = OpParams { heads: *heads, kv: self.cached(cache), ..none };
                (TensorOp::KvStore, slotted(vec![*k, *v], slots), 0, params)
            }
            Op::RopeStore { q, k, v, q_gamma, k_gamma, epsilon, rope, factors, cache, slots, heads } => {
                let params = OpParams {
                    gamma_ptr: self.at_option(*q_gamma),
                    k_gamma_ptr: self.at_option(*k_gamma),
                    scalar: *epsilon,
                    rope: Some(*rope),
                    rope_factors_ptr: self.at_option(*factors),
                    kv: self.cached(cache),
                    heads: *heads,
                    ..none
                };
                (TensorOp::RopeStore, slotted(vec![*q, *k, *v], slots), 0, params)
            }
            Op::Copy { x } => (TensorOp::Copy, vec![*x], 0, none),
            Op::ArgMax { x } => (TensorOp::ArgMax, vec![*x], 0, none),
            Op::Sample { logits, states } => {
                (TensorOp::Sample, vec![*logits], 0, OpParams { sample_ptr: self.at(*states), ..none })
            }
            Op::Penalize { logits, penalties, history, slots } => {
                let params = OpParams {
                    penalty_ptr: self.at(*penalties),
                    history: Some(self.history(*history)),
                    ..none
                };
                (TensorOp::Penalize, slotted(vec![*logits], slots), 0, params)
            }
            Op::Advance { drawn, tokens, positions, history, sequences } => {
                let params = OpParams {
                    tokens_ptr: self.at(*tokens),
                    positions_ptr: self.at(*positions),
                    history: Some(self.history(*history)),
                    ..none
                };
                let inputs = std::iter::once(*drawn).chain(*sequences).collect();
                (TensorOp::Advance, inputs, 0, params)
            }
        }
    }
}
