//! Op fusion on the logical graph. Each pass can be switched off; results with and without it must agree.

use super::op::{BinaryKind, CacheRef, Op, TensorId, UnaryKind};
use super::{LogicalGraph, OpNode};
use crate::GateActivation;
use crate::dataflow::Readers;

/// Which fusions are made. All of them by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusions {
    /// `silu(a) · b` becomes one op; it and `gelu(a) · b` together with the two matmuls before them gate-up.
    pub swiglu: bool,
    /// `a + b` and the RMS norm of the sum become one op.
    pub add_rms_norm: bool,
    /// An addition to a matmul, or to the down projection of experts, becomes its residual.
    pub residual: bool,
    /// Matmuls of one input (Q, K, V) become one op.
    pub shared_input: bool,
    /// Norm per head, RoPE and KV store become one op.
    pub rope_store: bool,
}

impl Default for Fusions {
    fn default() -> Fusions {
        Fusions::all()
    }
}

impl Fusions {
    /// Every fusion.
    pub const fn all() -> Fusions {
        Fusions { swiglu: true, add_rms_norm: true, residual: true, shared_input: true, rope_store: true }
    }

    /// No fusion.
    pub const fn none() -> Fusions {
        Fusions {
            swiglu: false,
            add_rms_norm: false,
            residual: false,
            shared_input: false,
            rope_store: false,
        }
    }
}

impl LogicalGraph {
    /// The same computation with fewer ops. Tensors keep their ids; those that no op writes after fusion stay
    /// in the list.
    pub fn fuse(self, fusions: &Fusions) -> LogicalGraph {
        let mut rewrite = Rewrite::new(self);
        if fusions.rope_store {
            rewrite.rope_store();
        }
        if fusions.swiglu {
            rewrite.swiglu();
            rewrite.gate_up();
        }
        if fusions.add_rms_norm {
            rewrite.add_rms_norm();
        }
        if fusions.residual {
            rewrite.residual();
        }
        if fusions.shared_input {
            rewrite.shared_input();
        }
        rewrite.graph
    }
}

/// The graph during the fusion passes.
struct Rewrite {
    graph: LogicalGraph,
    /// Ops that the current pass has fused into another.
    removed: Vec<bool>,
    /// The op that writes each tensor, as of the start of the pass: a fused op takes the index of one that it
    /// replaces.
    producers: Vec<Option<usize>>,
    /// Who reads each tensor, as of the start of the pass; the outputs of the graph are kept. Fusion never
    /// adds a reader, so there may be fewer.
    readers: Readers,
}

impl Rewrite {
    fn new(graph: LogicalGraph) -> Rewrite {
        let mut rewrite =
            Rewrite { graph, removed: Vec::new(), producers: Vec::new(), readers: Readers::default() };
        rewrite.sweep();
        rewrite
    }

    /// The op that writes a tensor, if the tensor has exactly one reader.
    fn sole_producer(&self, id: TensorId) -> Option<usize> {
        self.producers[id].filter(|&op| !self.removed[op] && self.readers.is_read_once(id))
    }

    /// Whether a tensor has been written when the op at `index` runs. Passes that use this only move ops to
    /// earlier places, so a tensor may be written earlier than at the start of the pass, never later.
    fn is_ready_at(&self, id: TensorId, index: usize) -> bool {
        self.producers[id].is_none_or(|producer| producer < index)
    }

    fn remove(&mut self, op: usize) {
        self.removed[op] = true;
    }

    /// Deletes the removed ops and recomputes producers and uses.
    fn sweep(&mut self) {
        let removed = std::mem::take(&mut self.removed);
        let mut index = 0;
        self.graph.ops.retain(|_| {
            index += 1;
            !removed.get(index - 1).copied().unwrap_or(false)
        });
        self.removed = vec![false; self.graph.ops.len()];
        self.producers = vec![None; self.graph.tensors.len()];
        self.readers = Readers::new(self.graph.tensors.len());
        for (index, node) in self.graph.ops.iter().enumerate() {
            node.outputs.iter().for_each(|&id| self.producers[id] = Some(index));
            node.op.for_each_operand(|id| self.readers.read(id, index));
        }
        self.graph.outputs.iter().for_each(|&id| self.readers.keep(id));
    }

    /// `silu(a) · b` or `b · silu(a)`.
    fn swiglu(&mut self) {
        for index in 0..self.graph.ops.len() {
            let Op::Binary { kind: BinaryKind::Mul, a, b } = self.graph.ops[index].op else { continue };
            for (gated, up) in [(a, b), (b, a)] {
                let Some(producer) = self.sole_producer(gated) else { continue };
                let Op::Unary { kind: UnaryKind::Silu, x } = self.graph.ops[producer].op else { continue };
                self.graph.ops[index].op = Op::Binary { kind: BinaryKind::SwiGlu, a: x, b: up };
                self.remove(producer);
                break;
            }
        }
        self.sweep();
    }

    /// The operands of a gated activation at `index` before its activation: `swiglu(a, b)`, or `gelu(a) · b`
    /// in either order, and the op that computes the activation apart.
    fn gated(&self, index: usize) -> Option<(TensorId, TensorId, GateActivation, Option<usize>)> {
        match self.graph.ops[index].op {
            Op::Binary { kind: BinaryKind::SwiGlu, a, b } => Some((a, b, GateActivation::Silu, None)),
            Op::Binary { kind: BinaryKind::Mul, a, b } => {
                [(a, b), (b, a)].into_iter().find_map(|(gated, up)| {
                    let producer = self.sole_producer(gated)?;
                    let Op::Unary { kind: UnaryKind::GeluTanh, x } = self.graph.ops[producer].op else {
                        return None;
                    };
                    Some((x, up, GateActivation::GeluTanh, Some(producer)))
                })
            }
            _ => None,
        }
    }

    /// SwiGLU or GeGLU of two matmuls of one input.
    fn gate_up(&mut self) {
        for index in 0..self.graph.ops.len() {
            let Some((a, b, activation, apart)) = self.gated(index) else { continue };
            let (Some(gate), Some(up)) = (self.sole_producer(a), self.sole_producer(b)) else { continue };
            let (Some((x, gate_weight)), Some((y, up_weight))) =
                (self.plain_matmul(gate), self.plain_matmul(up))
            else {
                continue;
            };
            if x == y {
                self.graph.ops[index].op = Op::GateUp { x, gate: gate_weight, up: up_weight, activation };
                [Some(gate), Some(up), apart].into_iter().flatten().for_each(|op| self.remove(op));
            }
        }
        self.sweep();
    }

    /// Input and weight of a matmul without bias, residual or further weights.
    fn plain_matmul(&self, op: usize) -> Option<(TensorId, TensorId)> {
        match &self.graph.ops[op].op {
            Op::MulMat { x, weights, residual: None } if weights.len() == 1 && weights[0].bias.is_none() => {
                Some((*x, weights[0].weight))
            }
            _ => None,
        }
    }

    /// `h = a + b` and `rms_norm(h)`, at the index of the sum, since other ops may read `h` before the norm.
    fn add_rms_norm(&mut self) {
        for index in 0..self.graph.ops.len() {
            let Op::Binary { kind: BinaryKind::Add, a, b } = self.graph.ops[index].op else { continue };
            let sum = self.graph.ops[index].outputs[0];
            let norm = (index + 1..self.graph.ops.len()).find_map(|at| match self.graph.ops[at].op {
                Op::RmsNorm { x, gamma, epsilon } if x == sum && !self.removed[at] => {
                    let whole_row = self.graph.tensors[gamma].width == self.graph.tensors[sum].width;
                    (whole_row && self.is_ready_at(gamma, index)).then_some((at, gamma, epsilon))
                }
                _ => None,
            });
            let Some((at, gamma, epsilon)) = norm else { continue };
            let normed = self.graph.ops[at].outputs[0];
            self.graph.ops[index] =
                OpNode { op: Op::AddRmsNorm { a, b, gamma, epsilon }, outputs: vec![normed, sum] };
            self.remove(at);
        }
        self.sweep();
    }

    /// `r + x · wᵀ`, at the index of the sum, since `r` may be written after the matmul.
    fn residual(&mut self) {
        for index in 0..self.graph.ops.len() {
            let Op::Binary { kind: BinaryKind::Add, a, b } = self.graph.ops[index].op else { continue };
            for (matmul, other) in [(b, a), (a, b)] {
                let Some(producer) = self.sole_producer(matmul) else { continue };
                let mut op = self.graph.ops[producer].op.clone();
                match &mut op {
                    Op::MulMat { weights, residual, .. } if residual.is_none() && weights.len() == 1 => {
                        *residual = Some(other);
                    }
                    Op::ExpertDown { residual, .. } if residual.is_none() => *residual = Some(other),
                    _ => continue,
                }
                self.graph.ops[index].op = op;
                self.remove(producer);
                break;
            }
        }
        self.sweep();
    }

    /// Matmuls of one input, at the index of the first, if their weights are ready by then.
    fn shared_input(&mut self) {
        for index in 0..self.graph.ops.len() {
            if self.removed[index] {
                continue;
            }
            let Op::MulMat { x: input, residual: None, .. } = self.graph.ops[index].op else { continue };
            for at in index + 1..self.graph.ops.len() {
                let Op::MulMat { x, weights: more, residual: None } = &self.graph.ops[at].op else {
                    continue;
                };
                let mut tensors = more.iter().flat_map(|linear| [Some(linear.weight), linear.bias]).flatten();
                if *x != input || self.removed[at] || tensors.any(|tensor| !self.is_ready_at(tensor, index)) {
                    continue;
                }
                let (more, outputs) = (more.clone(), self.graph.ops[at].outputs.clone());
                let first = &mut self.graph.ops[index];
                if let Op::MulMat { weights, .. } = &mut first.op {
                    weights.extend(more);
                    first.outputs.extend(outputs);
                    self.remove(at);
                }
            }
        }
        self.sweep();
    }

    /// For each attention over a cache: the RoPE (and norm per head) of its queries, and the store of rotated
    /// keys before it.
    fn rope_store(&mut self) {
        for index in 0..self.graph.ops.len() {
            let Op::CacheAttention { q, cache, .. } = self.graph.ops[index].op else { continue };
            if let Some((at, op, removed)) = self.rope_store_before(index, q, cache) {
                self.graph.ops[at] = OpNode { op, outputs: vec![q] };
                removed.into_iter().for_each(|op| self.remove(op));
            }
        }
        self.sweep();
    }

    /// The index of the fused op, the op, and the ops that it replaces.
    fn rope_store_before(
        &self,
        before: usize,
        q: TensorId,
        read: CacheRef,
    ) -> Option<(usize, Op, Vec<usize>)> {
        let ops = &self.graph.ops;
        let store = (0..before)
            .rev()
            .find(|&at| match ops[at].op {
                Op::KvStore { cache, .. } | Op::RopeStore { cache, .. } => cache.k == read.k,
                _ => false,
            })
            .filter(|&at| !self.removed[at])?;
        let Op::KvStore { k, v, cache, slots, heads } = ops[store].op else { return None };
        let rotated = |id: TensorId| -> Option<(usize, TensorId, Op)> {
            let producer = self.sole_producer(id)?;
            let Op::Rope { x, .. } = ops[producer].op else { return None };
            Some((producer, x, ops[producer].op.clone()))
        };
        let ((q_rope, q_in, q_op), (k_rope, k_in, k_op)) = (rotated(q)?, rotated(k)?);
        let (
            Op::Rope { positions, factors, head_dim, rope, .. },
            Op::Rope { positions: k_positions, factors: k_factors, head_dim: k_head, rope: k_spec, .. },
        ) = (q_op, k_op)
        else {
            return None;
        };
        let same = positions == k_positions && factors == k_factors && head_dim == k_head && rope == k_spec;
        if !same || positions != slots.positions || head_dim != heads.head_dim {
            return None;
        }
        let norm = |id: TensorId| -> Option<(usize, TensorId, TensorId, f32)> {
            let producer = self.sole_producer(id)?;
            let Op::RmsNorm { x, gamma, epsilon } = ops[producer].op else { return None };
            (self.graph.tensors[gamma].width == head_dim).then_some((producer, x, gamma, epsilon))
        };
        let mut taken = vec![q_rope, k_rope, store];
        let (mut q_norm, mut k_norm) = (norm(q_in), norm(k_in));
        if let (Some(a), Some(b)) = (q_norm, k_norm)
            && a.3.to_bits() != b.3.to_bits()
        {
            (q_norm, k_norm) = (None, None);
        }
        taken.extend([q_norm, k_norm].into_iter().flatten().map(|norm| norm.0));
        // All inputs are ready by the later of the two; the fused op takes that index.
        let at = store.max(q_rope);
        // The store moves there, so no op in between may read or write the cache.
        if (store + 1..at).any(|op| ops[op].op.operands().contains(&cache.k)) {
            return None;
        }
        taken.retain(|&op| op != at);
        let op = Op::RopeStore {
            q: q_norm.map_or(q_in, |norm| norm.1),
            k: k_norm.map_or(k_in, |norm| norm.1),
            v,
            q_gamma: q_norm.map(|norm| norm.2),
            k_gamma: k_norm.map(|norm| norm.2),
            epsilon: q_norm.or(k_norm).map_or(0.0, |norm| norm.3),
            rope,
            factors,
            cache,
            slots,
            heads,
        };
        Some((at, op, taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheSpec, DType, GraphBuilder, Heads, RopePairing, RopeSpec, Rotation};

    /// Two layers of Qwen3: norms per head, grouped queries, SwiGLU.
    fn qwen3(layers: u32) -> LogicalGraph {
        let heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 32 };
        let (hidden, inner, m) = (64, 96, 3);
        let mut b = GraphBuilder::new();
        let positions = b.indices("positions", m).unwrap();
        let mut x = b.input("x", m, hidden).unwrap();
        let spec = RopeSpec::new(RopePairing::NeoX, heads.head_dim, 1e6);
        let rotation = Rotation { spec, positions, factors: None };
        let table = b.page_table("pages", 1, 1).unwrap();
        for layer in 0..layers {
            let mut weight = |name: &str, rows: u32, k: u32| {
                b.weight(&format!("{layer}.{name}"), DType::F32, rows, k).unwrap()
            };
            let (norm, ffn_norm) = (weight("norm", 1, hidden), weight("ffn_norm", 1, hidden));
            let (q_norm, k_norm) = (weight("q_norm", 1, 32), weight("k_norm", 1, 32));
            let (wq, wk) = (weight("q", heads.q_width(), hidden), weight("k", heads.kv_width(), hidden));
            let (wv, wo) = (weight("v", heads.kv_width(), hidden), weight("o", hidden, heads.q_width()));
            let (gate, up) = (weight("gate", inner, hidden), weight("up", inner, hidden));
            let down = weight("down", hidden, inner);
            let cache_spec = CacheSpec { dtype: DType::F16, n_pages: 1, table, heads };
            let cache = b.kv_cache(&format!("{layer}.kv"), cache_spec).unwrap();

            let h = b.rms_norm(x, norm, 1e-6).unwrap();
            let (q, k) = (b.mul_mat(h, wq).unwrap(), b.mul_mat(h, wk).unwrap());
            let v = b.mul_mat(h, wv).unwrap();
            let (q, k) = (b.rms_norm(q, q_norm, 1e-6).unwrap(), b.rms_norm(k, k_norm, 1e-6).unwrap());
            let (q, k) = (b.rope(q, 32, rotation).unwrap(), b.rope(k, 32, rotation).unwrap());
            b.kv_store(k, v, cache, positions, None).unwrap();
            let attended = b.cache_attention(q, cache, positions, None, 0.1).unwrap();
            let o = b.mul_mat(attended, wo).unwrap();
            x = b.add(x, o).unwrap();
            let h = b.rms_norm(x, ffn_norm, 1e-6).unwrap();
            let (g, u) = (b.mul_mat(h, gate).unwrap(), b.mul_mat(h, up).unwrap());
            let g = b.silu(g).unwrap();
            let f = b.mul(g, u).unwrap();
            let d = b.mul_mat(f, down).unwrap();
            x = b.add(x, d).unwrap();
        }
        b.output("y", x).unwrap();
        b.finish()
    }

    fn names(graph: &LogicalGraph) -> Vec<&'static str> {
        graph.ops.iter().map(|node| node.op.name()).collect()
    }

    #[test]
    fn a_qwen3_layer_becomes_eight_ops() {
        let graph = qwen3(2);
        assert_eq!(graph.ops.len(), 2 * 19);
        let fused = graph.fuse(&Fusions::all());
        let layer =
            ["mul_mat", "rope_store", "cache_attention", "mul_mat", "add_rms_norm", "gate_up", "mul_mat"];
        let mut expected = vec!["rms_norm"];
        expected.extend(layer);
        expected.push("add_rms_norm");
        expected.extend(layer);
        // The last matmul has the sum as its residual: no norm follows it.
        assert_eq!(names(&fused), expected);
        let Op::MulMat { weights, .. } = &fused.ops[1].op else { panic!("not a matmul") };
        assert_eq!((weights.len(), fused.ops[1].outputs.len()), (3, 3));
    }

    #[test]
    fn each_fusion_can_be_switched_off() {
        let none = Fusions::none();
        assert_eq!(qwen3(1).fuse(&none).ops.len(), 19);
        for (fusions, saved) in [
            (Fusions { swiglu: true, ..none }, 3),
            (Fusions { add_rms_norm: true, ..none }, 1),
            (Fusions { residual: true, ..none }, 2),
            (Fusions { shared_input: true, ..none }, 3), // Q, K, V and gate, up
            (Fusions { rope_store: true, ..none }, 4),
        ] {
            assert_eq!(qwen3(1).fuse(&fusions).ops.len(), 19 - saved, "{fusions:?}");
        }
    }

    #[test]
    fn geglu_becomes_gate_up_unless_its_parts_have_other_readers() {
        // Whether gate comes first in the product, and which value is an output as well.
        for (gate_first, kept) in [(true, None), (false, None), (true, Some(0)), (false, Some(1))] {
            let mut b = GraphBuilder::new();
            let x = b.input("x", 1, 8).unwrap();
            let weights = ["gate", "up"].map(|name| b.weight(name, DType::F32, 8, 8).unwrap());
            let [gate, up] = weights.map(|weight| b.mul_mat(x, weight).unwrap());
            let gelu = b.unary(UnaryKind::GeluTanh, gate).unwrap();
            let y = if gate_first { b.mul(gelu, up).unwrap() } else { b.mul(up, gelu).unwrap() };
            b.output("y", y).unwrap();
            if let Some(kept) = kept {
                b.output("kept", [gate, gelu][kept]).unwrap();
            }
            let fused = b.finish().fuse(&Fusions::all());
            match kept {
                None => {
                    assert_eq!(names(&fused), ["gate_up"]);
                    let Op::GateUp { activation, gate, .. } = fused.ops[0].op else { panic!("not gate-up") };
                    assert_eq!((activation, gate), (GateActivation::GeluTanh, weights[0].id()));
                }
                Some(_) => assert!(!names(&fused).contains(&"gate_up"), "{kept:?}"),
            }
        }
    }

    #[test]
    fn no_op_is_moved_before_its_operands() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 1, 8).unwrap();
        let w = b.weight("w", DType::F32, 8, 8).unwrap();
        let y = b.mul_mat(x, w).unwrap();
        let sum = b.add(x, y).unwrap();
        // A gain and a bias that are written after the ops that they could be fused into.
        let late = b.silu(sum).unwrap();
        let normed = b.rms_norm(sum, late, 1e-6).unwrap();
        let z = b.linear(x, w, Some(normed), None).unwrap();
        b.output("y", y).unwrap();
        b.output("z", z).unwrap();
        let fused = b.finish().fuse(&Fusions::all());
        assert_eq!(names(&fused), ["mul_mat", "add", "silu", "rms_norm", "mul_mat"]);
    }

    #[test]
    fn a_store_is_not_moved_past_another_reader_of_its_cache() {
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 4 };
        let mut b = GraphBuilder::new();
        let (x, positions) = (b.input("x", 1, 4).unwrap(), b.indices("positions", 1).unwrap());
        let table = b.page_table("pages", 1, 1).unwrap();
        let spec = CacheSpec { dtype: DType::F32, n_pages: 1, table, heads };
        let cache = b.kv_cache("kv", spec).unwrap();
        let spec = RopeSpec::new(RopePairing::NeoX, 4, 1e4);
        let rotation = Rotation { spec, positions, factors: None };
        let k = b.rope(x, 4, rotation).unwrap();
        b.kv_store(k, x, cache, positions, None).unwrap();
        let first = b.cache_attention(x, cache, positions, None, 1.0).unwrap();
        let q = b.rope(first, 4, rotation).unwrap();
        let second = b.cache_attention(q, cache, positions, None, 1.0).unwrap();
        b.output("y", second).unwrap();
        let fused = b.finish().fuse(&Fusions::all());
        assert_eq!(names(&fused), ["rope", "kv_store", "cache_attention", "rope", "cache_attention"]);
    }

    #[test]
    fn a_tensor_with_other_readers_is_not_fused_away() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 2, 8).unwrap();
        let s = b.silu(x).unwrap();
        let y = b.mul(s, x).unwrap();
        b.output("s", s).unwrap();
        b.output("y", y).unwrap();
        assert_eq!(names(&b.finish().fuse(&Fusions::all())), ["silu", "mul"]);
    }
}
