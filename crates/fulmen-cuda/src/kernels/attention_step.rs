//! Attention of few rows over a cache of halves, with norm per head, RoPE and store before it where it is one row.

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
const RANKS: u32 = 8;
const WARPS: u32 = 8;
const TILE: u32 = 16;
const DEPTH: u32 = 2;

/// Query heads of a group at most.
const GROUP: u32 = 8;

/// Rows that are worth a cluster for each of their heads.
const MOST_ROWS: u32 = 16;

/// The compute capability that has clusters.
const CAPABILITY: u32 = 90;

/// The call, if this kernel takes it.
pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Option<Launched> {
    let args = args(queue, call)?;
    Some(run(queue, call, &args))
}

/// Both calls, if this kernel takes them: the second reads what the first makes, and there is one row. (Of several rows
/// of a sequence each must see what the others store.)
pub(crate) fn launch_with_store(
    queue: &mut Queue,
    first: &RopeStoreCall,
    second: &AttentionCall,
) -> Option<Launched> {
    let (store, rope) = (&first.store, first.rope);
    let same = KvSource::Cache { cache: store.cache, positions: store.positions, sequences: store.sequences };
    let fits = second.m == 1
        && second.kv == same
        && second.heads == store.heads
        && second.q == first.output
        && rope.n_rot == store.heads.head_dim;
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

fn args(queue: &Queue, call: &AttentionCall) -> Option<Args> {
    let KvSource::Cache { cache, positions, sequences } = call.kv else { return None };
    let heads = call.heads;
    let fits = queue.caps().capability >= CAPABILITY
        && (1..=MOST_ROWS).contains(&call.m)
        && cache.dtype == DType::F16
        && matches!(heads.head_dim, 64 | 128)
        && heads.n_kv_heads > 0
        && heads.n_heads / heads.n_kv_heads <= GROUP
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16));
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

fn run(queue: &mut Queue, call: &AttentionCall, args: &Args) -> Launched {
    let head_dim = call.heads.head_dim;
    let entry = format!("attention_step_d{head_dim}");
    let blocks = queue.blocks(&entry, u64::from(RANKS) * u64::from(args.kv_heads))?;
    // The rings hold keys and values; what warps and the block have summed comes to the same place after them.
    let rings = WARPS * DEPTH * 2 * TILE * head_dim * 2;
    let sums = (WARPS + 1) * GROUP * head_dim * 4;
    let mut launch =
        Launch::new("attention_step", &entry, blocks, 32 * WARPS).rows(call.m).shared(rings.max(sums));
    launch.cluster = RANKS;
    queue.launch(&launch, args)?;
    Ok(1)
}
