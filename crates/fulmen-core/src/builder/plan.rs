//! The memory plan: lifetimes of tensors and their offsets in one arena.

use super::{Fusions, LogicalGraph, Op, Role, TensorId};
use crate::dataflow::{AliasGroup, InPlace, Lifetime, StoredValue, alias_groups, pack_arena};
use crate::{ALIGNMENT, BuildError, Problem};

/// How tensors share memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// No two tensors share bytes, so that all of them can be read after a run.
    Never,
    /// Tensors whose lifetimes do not overlap may share bytes.
    ByLifetime,
    /// As `ByLifetime`; also, an op that can work in place overwrites an operand that it is the last to read.
    #[default]
    InPlace,
}

/// Options of the passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanOptions {
    /// Which ops are fused.
    pub fusions: Fusions,
    /// How memory is shared.
    pub sharing: Sharing,
    /// Guard bytes before and after each tensor, for tests that check for out-of-bounds writes.
    pub guard: usize,
    /// Rows get the same bits in any batch: the order of sums in matmuls and attention depends on shapes and
    /// on the position of a row alone, never on how many rows there are. Over a cache, the rows of an
    /// attention must say which of them decode and which are chunks of prompts
    /// ([`AttentionRows::Mixed`](crate::AttentionRows)), and chunks must begin at page borders. Not every
    /// backend can ([`KernelDispatch::batch_invariant`](crate::KernelDispatch::batch_invariant)).
    pub batch_invariant: bool,
}

/// The bytes of the arena that a tensor takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First byte; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Their number.
    pub bytes: usize,
}

/// A fused graph with the memory plan of its tensors in one arena.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The graph after fusion.
    pub graph: LogicalGraph,
    /// The placement of each tensor; `None` for weights and states, which are bound by name.
    pub placements: Vec<Option<Placement>>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// As in [`PlanOptions`].
    pub batch_invariant: bool,
}

impl LogicalGraph {
    /// Fuses and plans.
    pub fn plan(self, options: &PlanOptions) -> Result<Plan, BuildError> {
        let graph = self.fuse(&options.fusions);
        let refused = |problem| BuildError { call: "plan", problem };
        let groups = groups(&graph, options.sharing).map_err(refused)?;
        let too_large = || {
            refused(Problem::Value {
                what: "the arena",
                expected: "a size that fits memory",
                got: f64::INFINITY,
            })
        };
        let share = options.sharing != Sharing::Never;
        let arena =
            pack_arena(&groups, ALIGNMENT as u64, options.guard as u64, share).ok_or_else(too_large)?;
        let arena_bytes = usize::try_from(arena.bytes).map_err(|_| too_large())?;
        let mut placements = vec![None; graph.tensors.len()];
        for (group, offset) in groups.iter().zip(arena.offsets) {
            for &member in &group.members {
                // Both are inside the arena, whose size fits.
                let placement = Placement { offset: offset as usize, bytes: group.bytes as usize };
                placements[member] = Some(placement);
            }
        }
        Ok(Plan { graph, placements, arena_bytes, batch_invariant: options.batch_invariant })
    }
}

fn groups(graph: &LogicalGraph, sharing: Sharing) -> Result<Vec<AliasGroup>, Problem> {
    let end = graph.ops.len();
    let mut lives = vec![Lifetime { first: 0, last: 0 }; graph.tensors.len()];
    for (index, node) in graph.ops.iter().enumerate() {
        for &output in &node.outputs {
            lives[output] = Lifetime { first: index, last: index };
        }
        node.op.for_each_operand(|operand| lives[operand].last = lives[operand].last.max(index));
        // A backend may fuse it with the next attention, whose output must then not overwrite these.
        if let Op::RopeStore { k, v, .. } = node.op {
            for operand in [k, v] {
                lives[operand].last = lives[operand].last.max(index + 1);
            }
        }
        // The same for a norm and the matmul after it.
        if let Op::RmsNorm { x, .. } = node.op
            && graph.ops.get(index + 1).is_some_and(|next| {
                let input = match &next.op {
                    Op::MulMat { x, .. } | Op::GateUp { x, .. } => Some(*x),
                    _ => None,
                };
                input.is_some_and(|input| node.outputs.contains(&input))
            })
        {
            lives[x].last = lives[x].last.max(index + 1);
        }
        // And for the calls of a gated delta net, whose last one is two behind the delta rule.
        if let Op::GatedDeltaRule { qkv, alpha, beta, .. } = node.op {
            let convolved = index.checked_sub(1).and_then(|before| match graph.ops[before].op {
                Op::CausalConv { x, .. } if graph.ops[before].outputs.contains(&qkv) => Some(x),
                _ => None,
            });
            for operand in [Some(alpha), Some(beta), convolved].into_iter().flatten() {
                lives[operand].last = lives[operand].last.max(index + 2);
            }
        }
    }
    for (id, tensor) in graph.tensors.iter().enumerate() {
        if tensor.role == Role::Input || graph.outputs.contains(&id) {
            lives[id].last = end;
        }
    }

    let mut produced = vec![false; graph.tensors.len()];
    graph.ops.iter().flat_map(|node| &node.outputs).for_each(|&id| produced[id] = true);
    let mut stored = vec![None; graph.tensors.len()];
    for (id, tensor) in graph.tensors.iter().enumerate() {
        let in_arena = match tensor.role {
            Role::Input => true,
            Role::Weight | Role::State => false,
            // Tensors that fusion removed have no producer.
            Role::Computed => produced[id],
        };
        if in_arena {
            stored[id] = Some(StoredValue { life: lives[id], bytes: tensor.bytes()? as u64 });
        }
    }
    // Inputs live to the end, so that no op overwrites them.
    let in_place = graph.ops.iter().enumerate().flat_map(|(step, node)| {
        let pair = move |(output, operand): (usize, TensorId)| InPlace {
            step,
            output: node.outputs[output],
            operand,
        };
        node.op.in_place().into_iter().map(pair)
    });
    Ok(match sharing {
        Sharing::InPlace => alias_groups(&stored, in_place).groups,
        Sharing::Never | Sharing::ByLifetime => alias_groups(&stored, []).groups,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CacheSpec, DType, DeltaHeads, DeltaInputs, GraphBuilder, Heads, KeyHeadOrder, RecurrentRows,
        RopePairing,
    };
    use crate::{RopeSpec, Rotation, Tensor};

    fn chain(n: u32) -> LogicalGraph {
        let mut b = GraphBuilder::new();
        let mut x = b.input("x", 4, 64).unwrap();
        let w = b.weight("w", DType::F32, 64, 64).unwrap();
        for _ in 0..n {
            x = b.mul_mat(x, w).unwrap();
            x = b.silu(x).unwrap();
        }
        b.output("y", x).unwrap();
        b.finish()
    }

    fn arena(graph: &LogicalGraph, sharing: Sharing, guard: usize) -> usize {
        let options = PlanOptions { fusions: Fusions::none(), sharing, guard, ..PlanOptions::default() };
        graph.clone().plan(&options).unwrap().arena_bytes
    }

    #[test]
    fn a_chain_needs_as_many_buffers_as_live_at_once() {
        let (graph, tensor) = (chain(10), 4 * 64 * 4);
        assert_eq!(arena(&graph, Sharing::Never, 0), 21 * tensor);
        // The input keeps its bytes; then two tensors at a time.
        assert_eq!(arena(&graph, Sharing::ByLifetime, 0), 3 * tensor);
        assert_eq!(arena(&graph, Sharing::InPlace, 0), 3 * tensor);
        assert_eq!(arena(&graph, Sharing::Never, 1), 21 * (tensor + 512));
    }

    #[test]
    fn an_operand_in_two_roles_is_not_overwritten() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 2, 8).unwrap();
        let w = b.weight("w", DType::F32, 8, 8).unwrap();
        let h = b.silu(x).unwrap();
        let y = b.linear(h, w, None, Some(h)).unwrap();
        b.output("y", y).unwrap();
        let options = PlanOptions { fusions: Fusions::none(), ..PlanOptions::default() };
        let plan = b.finish().plan(&options).unwrap();
        assert_ne!(plan.placements[h.id()], plan.placements[y.id()]);
    }

    #[test]
    fn attention_does_not_overwrite_the_keys_and_values_stored_before_it() {
        let heads = Heads { n_heads: 4, n_kv_heads: 4, head_dim: 32 };
        let mut b = GraphBuilder::new();
        let x = b.input("x", 2, heads.q_width()).unwrap();
        let [q, k, v] = [(); 3].map(|()| b.silu(x).unwrap());
        let positions = b.indices("positions", 2).unwrap();
        let table = b.page_table("pages", 1, 1).unwrap();
        let spec = CacheSpec { dtype: DType::F16, n_pages: 1, table, heads };
        let cache = b.kv_cache("kv", spec).unwrap();
        let spec = RopeSpec::new(RopePairing::NeoX, heads.head_dim, 1e4);
        let rotation = Rotation { spec, positions, factors: None };
        let rotated = b.rope_store([q, k, v], [None, None], 1e-6, rotation, cache, None).unwrap();
        let y = b.cache_attention(rotated, cache, positions, None, 1.0).unwrap();
        b.output("y", y).unwrap();
        let options = PlanOptions { fusions: Fusions::none(), ..PlanOptions::default() };
        let plan = b.finish().plan(&options).unwrap();
        let [q, k, v, rotated, y] = [q, k, v, rotated, y].map(|tensor| plan.placements[tensor.id()]);
        assert_eq!(rotated, q);
        assert!(y != k && y != v && y != q, "{y:?}: {q:?} {k:?} {v:?}");
    }

    #[test]
    fn a_matmul_does_not_overwrite_the_input_of_the_norm_before_it() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 2, 64).unwrap();
        let (gain, w) = (b.vector("gain", 64).unwrap(), b.weight("w", DType::F32, 64, 64).unwrap());
        let doubled = b.add(x, x).unwrap();
        let normed = b.rms_norm(doubled, gain, 1e-5).unwrap();
        let y = b.mul_mat(normed, w).unwrap();
        b.output("y", y).unwrap();
        let options = PlanOptions { fusions: Fusions::none(), ..PlanOptions::default() };
        let plan = b.finish().plan(&options).unwrap();
        let (sum, norm, matmul) = (&plan.graph.ops[0], &plan.graph.ops[1], &plan.graph.ops[2]);
        let place = |id: TensorId| plan.placements[id].unwrap().offset;
        let read = place(sum.outputs[0]);
        assert!(place(norm.outputs[0]) != read && place(matmul.outputs[0]) != read);
    }

    #[test]
    fn a_delta_net_does_not_overwrite_what_its_first_ops_read() {
        let heads = DeltaHeads { n_k_heads: 1, n_v_heads: 2, head_dim: 32, order: KeyHeadOrder::Grouped };
        let mut b = GraphBuilder::new();
        let (x, positions) = (b.input("x", 1, 128).unwrap(), b.indices("positions", 1).unwrap());
        let [qkv, z, alpha, beta] = [("qkv", heads.width()), ("z", 64), ("alpha", 2), ("beta", 2)]
            .map(|(name, rows)| b.weight(name, DType::F32, rows, 128).unwrap())
            .map(|weight| b.mul_mat(x, weight).unwrap());
        let rows = RecurrentRows::new(positions, None);
        let taps = b.weight("taps", DType::F32, heads.width(), 4).unwrap();
        let conv_state = b.recurrent_state("conv", 1, 3 * heads.width()).unwrap();
        let convolved = b.causal_conv(qkv, taps, conv_state, rows).unwrap();
        let state = b.recurrent_state("state", 1, heads.state_width()).unwrap();
        let (decay, dt) = (b.vector("decay", 2).unwrap(), b.vector("dt", 2).unwrap());
        let inputs = DeltaInputs { qkv: convolved, alpha, beta, decay, dt };
        let y = b.gated_delta_rule(inputs, heads, 1e-6, state, rows).unwrap();
        let gain = b.vector("gain", 32).unwrap();
        let normed = b.rms_norm(y, gain, 1e-6).unwrap();
        let z = b.silu(z).unwrap();
        let gated = b.mul(z, normed).unwrap();
        b.output("y", gated).unwrap();
        let plan = b.finish().plan(&PlanOptions::default()).unwrap();
        let place = |tensor: Tensor| plan.placements[tensor.id()].unwrap();
        for read in [qkv, alpha, beta].map(place) {
            for written in [convolved, y, normed, gated].map(place) {
                let apart = read.offset + read.bytes <= written.offset
                    || written.offset + written.bytes <= read.offset;
                assert!(apart, "{read:?} {written:?}");
            }
        }
    }

    #[test]
    fn tensors_with_overlapping_lifetimes_never_overlap() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let mut b = GraphBuilder::new();
            let mut pool = vec![b.input("x", 3, 100).unwrap()];
            for _ in 0..40 {
                let (a, c) = (pool[random.usize(..pool.len())], pool[random.usize(..pool.len())]);
                let made = if random.bool() { b.add(a, c) } else { b.silu(a) };
                pool.push(made.unwrap());
            }
            b.output("y", pool[pool.len() - 1]).unwrap();
            let sharing = Sharing::ByLifetime;
            let options = PlanOptions { sharing, fusions: Fusions::none(), ..PlanOptions::default() };
            let plan = b.finish().plan(&options).unwrap();
            let groups = groups(&plan.graph, Sharing::Never).unwrap();
            for a in &groups {
                for b in &groups {
                    let (x, y) = (a.members[0], b.members[0]);
                    let (p, q) = (plan.placements[x].unwrap(), plan.placements[y].unwrap());
                    let apart = p.offset + p.bytes <= q.offset || q.offset + q.bytes <= p.offset;
                    assert!(x == y || apart || !a.life.overlaps(b.life), "tensors {x} and {y} overlap");
                }
            }
        }
    }
}
