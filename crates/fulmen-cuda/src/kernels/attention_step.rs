//! Attention of few rows over a cache of halves, with norm per head, RoPE and store before it.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{AttentionCall, DType, KvSource, RopePairing, RopeStoreCall};

use super::Launched;
use crate::queue::{Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Args {
    q: u64,
    k: u64,
    v: u64,
    q_gamma: u64,
    k_gamma: u64,
    factors: u64,
    positions: u64,
    sequences: u64,
    k_cache: u64,
    v_cache: u64,
    q_out: u64,
    out: u64,
    fault: u64,
    epsilon: f32,
    scale: f32,
    freq_scale: f32,
    magnitude: f32,
    log2_base: f64,
    heads: u32,
    kv_heads: u32,
    capacity: u32,
    seqs: u32,
    adjacent: u32,
    rotate: u32,
}

// As in `attention_step.cu`.
const WARPS: u32 = 8;
const TILE: u32 = 16;

/// Query heads of a group at most.
const GROUP: u32 = 8;

/// Rows at most. The kernel looks through all of them with one warp.
const MOST_ROWS: u32 = 16;

/// Shared memory that the kernel has beside its rings, at most.
const OWN_SHARED: u32 = 4 << 10;

/// The compute capability that has clusters.
const CAPABILITY: u32 = 90;

/// The call, if this kernel takes it.
pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Option<Launched> {
    let args = args(queue, call)?;
    Some(run(queue, call, &args))
}

/// Both calls, if this kernel takes them: the second reads what the first makes, and does not write over what the first
/// reads, which other blocks may still need.
pub(crate) fn launch_with_store(
    queue: &mut Queue,
    first: &RopeStoreCall,
    second: &AttentionCall,
) -> Option<Launched> {
    let (store, rope) = (&first.store, first.rope);
    let same = KvSource::Cache { cache: store.cache, positions: store.positions, sequences: store.sequences };
    let fits = second.m == store.m
        && second.kv == same
        && second.heads == store.heads
        && second.q == first.output
        && rope.n_rot == store.heads.head_dim
        && apart(first, second);
    if !fits {
        return None;
    }
    let args = Args {
        q: first.q,
        k: store.k,
        v: store.v,
        q_gamma: first.q_gamma.unwrap_or(0),
        k_gamma: first.k_gamma.unwrap_or(0),
        factors: first.factors.unwrap_or(0),
        q_out: first.output,
        epsilon: first.epsilon,
        freq_scale: rope.freq_scale,
        magnitude: rope.magnitude,
        log2_base: f64::from(rope.base).log2(),
        adjacent: u32::from(rope.pairing == RopePairing::Adjacent),
        rotate: 1,
        ..args(queue, second)?
    };
    Some(run(queue, second, &args))
}

/// Whether the result of the attention and what rotation and store read do not share bytes.
fn apart(first: &RopeStoreCall, second: &AttentionCall) -> bool {
    let bytes = |width: u32| u64::from(second.m) * u64::from(width) * 4;
    let (q, kv) = (bytes(second.heads.q_width()), bytes(second.heads.kv_width()));
    [(first.q, q), (first.store.k, kv), (first.store.v, kv)]
        .iter()
        .all(|&(ptr, bytes)| ptr + bytes <= second.output || second.output + q <= ptr)
}

fn args(queue: &Queue, call: &AttentionCall) -> Option<Args> {
    let KvSource::Cache { cache, positions, sequences } = call.kv else { return None };
    let heads = call.heads;
    let fits = queue.caps().capability >= CAPABILITY
        && (1..=MOST_ROWS).contains(&call.m)
        && cache.dtype == DType::F16
        && matches!(heads.head_dim, 64 | 128)
        && heads.n_kv_heads > 0
        && heads.n_heads / heads.n_kv_heads <= GROUP
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && shared(heads.head_dim) + OWN_SHARED <= queue.caps().shared_bytes;
    fits.then_some(Args {
        q: call.q,
        k: 0,
        v: 0,
        q_gamma: 0,
        k_gamma: 0,
        factors: 0,
        positions,
        sequences: sequences.unwrap_or(0),
        k_cache: cache.k_ptr,
        v_cache: cache.v_ptr,
        q_out: 0,
        out: call.output,
        fault: queue.fault(),
        epsilon: 0.0,
        scale: call.scale,
        freq_scale: 1.0,
        magnitude: 1.0,
        log2_base: 0.0,
        heads: heads.n_heads,
        kv_heads: heads.n_kv_heads,
        capacity: cache.capacity,
        seqs: cache.n_seqs,
        adjacent: 0,
        rotate: 0,
    })
}

/// Blocks that share a row and a KV head: the more, the fewer rows there are, as long as the device holds all of them at
/// once. A cluster has no more than 8 everywhere.
fn ranks(rows: u32, kv_heads: u32, multiprocessors: u32) -> u32 {
    let heads = u64::from(rows) * u64::from(kv_heads);
    [8, 4, 2].into_iter().find(|&ranks| heads * u64::from(ranks) <= multiprocessors.into()).unwrap_or(1)
}

/// Bytes of dynamic shared memory: the rings hold keys and values; what warps and the block have summed comes to the same
/// place after them.
fn shared(head_dim: u32) -> u32 {
    let depth = if head_dim == 128 { 3 } else { 4 };
    let rings = WARPS * depth * 2 * TILE * head_dim * 2;
    let sums = (WARPS + 1) * GROUP * head_dim * 4;
    rings.max(sums)
}

fn run(queue: &mut Queue, call: &AttentionCall, args: &Args) -> Launched {
    let head_dim = call.heads.head_dim;
    let ranks = ranks(call.m, args.kv_heads, queue.caps().multiprocessors);
    let entry = format!("attention_step_d{head_dim}_r{ranks}");
    let blocks = queue.blocks(&entry, u64::from(ranks) * u64::from(args.kv_heads))?;
    let mut launch =
        Launch::new("attention_step", &entry, blocks, 32 * WARPS).rows(call.m).shared(shared(head_dim));
    launch.cluster = ranks;
    queue.launch(&launch, args)?;
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_one_wave_where_it_can_be() {
        // Rows, KV heads and multiprocessors; ranks and blocks.
        let table = [
            ((1, 8, 132), (8, 64)),
            ((2, 8, 132), (8, 128)),
            ((3, 8, 132), (4, 96)),
            ((4, 8, 132), (4, 128)),
            ((5, 8, 132), (2, 80)),
            ((8, 8, 132), (2, 128)),
            ((9, 8, 132), (1, 72)),
            ((16, 8, 132), (1, 128)),
            ((1, 2, 132), (8, 16)),
            ((16, 2, 132), (4, 128)),
            ((1, 32, 132), (4, 128)),
            ((16, 32, 132), (1, 512)),
            ((2, 8, 114), (4, 64)),
            ((1, u32::MAX, 132), (1, u64::from(u32::MAX))),
        ];
        for ((rows, kv_heads, multiprocessors), expected) in table {
            let ranks = ranks(rows, kv_heads, multiprocessors);
            let blocks = u64::from(rows) * u64::from(kv_heads) * u64::from(ranks);
            assert_eq!((ranks, blocks), expected, "{rows} rows of {kv_heads} on {multiprocessors}");
        }
    }

    #[test]
    fn rings_fit_a_block_and_keep_the_memory_busy() {
        for head_dim in [64, 128] {
            // Of an H100, and what must be on its way in each multiprocessor.
            assert!(shared(head_dim) + OWN_SHARED <= 227 << 10, "{head_dim}");
            assert!(shared(head_dim) >= 64 << 10, "{head_dim}");
        }
    }
}
