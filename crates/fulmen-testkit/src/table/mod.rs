//! The rows of the table, one file per family of ops.
//!
//! A row's name is `op/type/[variant/][model/]shape`: `mul_mat/q4_k/qwen3-4b/m1/9728x2560`. Shapes are
//! `m{rows}` and `{n}x{k}` for matmuls, `{heads}:{kv heads}x{head size}` for attention.

mod attention;
mod attention_scores;
mod cache;
mod collective;
mod elementwise;
mod embed;
mod experts;
mod logits;
mod matmul;
mod norm;
mod recurrent;
mod rope;
mod routing;
mod select;
mod softmax;
mod step;

use fulmen_core::{BuildError, Cache, CacheSpec, DType, GraphBuilder, Heads, pages_of};

use crate::case::Case;
use crate::draw::Draw;

/// Every case.
pub fn table() -> Vec<Case> {
    let mut cases = Vec::new();
    embed::cases(&mut cases);
    matmul::cases(&mut cases);
    routing::cases(&mut cases);
    experts::cases(&mut cases);
    norm::cases(&mut cases);
    elementwise::cases(&mut cases);
    rope::cases(&mut cases);
    softmax::cases(&mut cases);
    attention::cases(&mut cases);
    attention_scores::cases(&mut cases);
    cache::cases(&mut cases);
    collective::cases(&mut cases);
    recurrent::cases(&mut cases);
    select::cases(&mut cases);
    logits::cases(&mut cases);
    step::cases(&mut cases);
    cases
}

/// The names of the ops in the table, in its order.
pub fn ops() -> Vec<&'static str> {
    let mut ops = Vec::new();
    for case in table() {
        if !ops.contains(&case.op) {
            ops.push(case.op);
        }
    }
    ops
}

/// Floating-point types of weights.
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Quantized types with blocks of 32.
const BLOCKS_32: [DType; 7] =
    [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::MXFP4, DType::IQ4_NL];

/// Quantized types with blocks of 256.
const BLOCKS_256: [DType; 12] = [
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Q8_K,
    DType::IQ4_XS,
    DType::IQ2_XXS,
    DType::IQ2_XS,
    DType::IQ2_S,
    DType::IQ3_XXS,
    DType::IQ3_S,
];

/// Every type of a weight.
fn weight_types() -> impl Iterator<Item = DType> {
    FLOATS.into_iter().chain(BLOCKS_32).chain(BLOCKS_256)
}

/// Types of a cache.
const CACHES: [DType; 3] = [DType::F32, DType::F16, DType::Q8_0];

/// The shapes of a model.
struct Model {
    name: &'static str,
    hidden: u32,
    inner: u32,
    heads: Heads,
    vocabulary: u32,
}

const fn heads(n_heads: u32, n_kv_heads: u32, head_dim: u32) -> Heads {
    Heads { n_heads, n_kv_heads, head_dim }
}

const QWEN3_4B: Model =
    Model { name: "qwen3-4b", hidden: 2560, inner: 9728, heads: heads(32, 8, 128), vocabulary: 151_936 };
const LLAMA32_1B: Model =
    Model { name: "llama3.2-1b", hidden: 2048, inner: 8192, heads: heads(32, 8, 64), vocabulary: 128_256 };
/// 576 is not a multiple of 256.
const SMOLLM2_135M: Model =
    Model { name: "smollm2-135m", hidden: 576, inner: 1536, heads: heads(9, 3, 64), vocabulary: 49_152 };
const MODELS: [Model; 3] = [QWEN3_4B, LLAMA32_1B, SMOLLM2_135M];

/// Whether rows of this width are whole blocks of this type.
fn fits(dtype: DType, width: u32) -> bool {
    (width as usize).is_multiple_of(dtype.block_len())
}

/// These values at the first indices of a tensor.
fn at(values: &[f32]) -> Vec<(usize, f32)> {
    values.iter().copied().enumerate().collect()
}

/// The rows of a batch: their positions and sequences in a cache of `n_seqs` sequences and `capacity`
/// positions.
struct Batch {
    name: &'static str,
    positions: Vec<u32>,
    sequences: Option<Vec<u32>>,
    n_seqs: u32,
    capacity: u32,
}

impl Batch {
    fn new(
        name: &'static str,
        positions: &[u32],
        sequences: Option<&[u32]>,
        n_seqs: u32,
        capacity: u32,
    ) -> Batch {
        let (positions, sequences) = (positions.to_vec(), sequences.map(<[u32]>::to_vec));
        Batch { name, positions, sequences, n_seqs, capacity }
    }
}

/// The cache `kv` of a case, with the table `pages`: for sequences of `capacity` positions, and two more
/// pages in the pool, which no sequence has.
fn kv_cache(
    b: &mut GraphBuilder,
    dtype: DType,
    heads: Heads,
    n_seqs: u32,
    capacity: u32,
) -> Result<Cache, BuildError> {
    let table = b.page_table("pages", n_seqs, pages_of(capacity))?;
    b.kv_cache("kv", CacheSpec { dtype, n_pages: pool(n_seqs, capacity), table, heads })
}

/// The pages of [`kv_cache`].
fn pool(n_seqs: u32, capacity: u32) -> u32 {
    n_seqs * pages_of(capacity) + 2
}

/// A page table with no more pages than the rows of a batch need. The first `shared` pages of the sequences
/// are the same.
fn pages_used(positions: &[u32], sequences: Option<&[u32]>, n_seqs: u32, capacity: u32, shared: u32) -> Draw {
    let mut assigned = vec![0; n_seqs as usize];
    for (row, &position) in positions.iter().enumerate() {
        let pages = &mut assigned[sequences.map_or(0, |sequences| sequences[row]) as usize];
        *pages = (*pages).max(pages_of(position + 1));
    }
    Draw::Pages { pool: pool(n_seqs, capacity), assigned, behind: Vec::new(), shared }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use fulmen_core::{Bindings, Program, Role, TensorOp};

    use super::*;

    #[test]
    fn names_are_unique_and_start_with_their_op() {
        let mut names = HashSet::new();
        for case in table() {
            assert!(case.name.starts_with(case.op), "{}", case.name);
            assert!(names.insert(case.name.clone()), "{} twice", case.name);
        }
    }

    /// The program of a case, with made-up addresses.
    fn program(case: &Case) -> Program {
        let plan = case.graph.clone().plan(&case.plan_options()).unwrap();
        let mut bindings = Bindings::new();
        for (id, tensor) in plan.graph.tensors.iter().enumerate() {
            if matches!(tensor.role, Role::Weight | Role::State) {
                bindings.set(tensor.name.as_deref().unwrap(), 0x1000 * (id as u64 + 1));
            }
        }
        plan.bind_at(0x1000_0000, &bindings).unwrap().program().clone()
    }

    #[test]
    fn every_op_has_a_case_that_runs_it() {
        let mut seen = HashSet::new();
        for case in table() {
            seen.extend(program(&case).calls().iter().map(|step| step.call.op()));
        }
        // What a host segment computes is said by a graph of its own.
        let wanted = |op: &TensorOp| op.launches() && *op != TensorOp::HostSegment;
        let missing: Vec<TensorOp> =
            TensorOp::ALL.into_iter().filter(|op| wanted(op) && !seen.contains(op)).collect();
        assert!(missing.is_empty(), "ops without a case: {missing:?}");
    }

    #[test]
    fn both_kinds_of_graph_lower_to_the_same_calls() {
        for case in table() {
            let direct = program(&case);
            let through_nodes = crate::nodes::nodes_of(&direct).check().unwrap();
            assert_eq!(direct.calls().len(), through_nodes.calls().len(), "{}", case.name);
            for (direct, other) in direct.calls().iter().zip(through_nodes.calls()) {
                assert_eq!((&direct.call, &direct.name), (&other.call, &other.name), "{}", case.name);
            }
        }
    }

    #[test]
    fn every_type_is_multiplied_and_embedded() {
        for op in ["mul_mat", "gate_up", "expert_gate_up", "expert_down", "embed"] {
            let types: HashSet<DType> = table().iter().filter(|c| c.op == op).map(|c| c.dtype).collect();
            let missing: Vec<DType> =
                DType::ALL.into_iter().filter(|t| *t != DType::U32 && !types.contains(t)).collect();
            assert!(missing.is_empty(), "{op} lacks {missing:?}");
        }
    }
}
