//! Attention of few rows over a cache of halves, with norm per head, RoPE and store before it.

use bytemuck::{Pod, Zeroable};
use fulmen_core::{AttentionCall, DType, KvSource, RopePairing, RopeStoreCall};

use super::f16_fragments::F16Fragments;
use super::{Launched, apart, q8_activations};
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
    codes: u64,
    halves: [u64; 2],
    half_factors: u64,
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
const OWN_SHARED: u32 = 9 << 10;

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
        && all_apart(first, second)
        // It reads the cache before the launches ahead are done.
        && !queue.kv_store_may_be_running(store.cache.k_ptr);
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
        adjacent: u32::from(rope.pairing == RopePairing::Interleaved),
        rotate: 1,
        ..args(queue, second)?
    };
    queue.note_kv_store(store.cache.k_ptr);
    Some(run(queue, second, &args))
}

/// Whether what rotation and store read, the turned queries and the result of the attention share no bytes.
fn all_apart(first: &RopeStoreCall, second: &AttentionCall) -> bool {
    let bytes = |width: u32| u64::from(second.m) * u64::from(width) * 4;
    let (q, kv) = (bytes(second.heads.q_width()), bytes(second.heads.kv_width()));
    let read = [(first.q, q), (first.store.k, kv), (first.store.v, kv)];
    let (rotated, out) = ((first.output, q), (second.output, q));
    // Queries may be turned in place.
    read.iter().all(|&input| apart(input, out) && (input == rotated || apart(input, rotated)))
        && apart(rotated, out)
}

fn args(queue: &Queue, call: &AttentionCall) -> Option<Args> {
    let KvSource::Cache { cache, positions, sequences } = call.kv else { return None };
    let heads = call.heads;
    let caps = queue.caps();
    let depth = shape(call.m, heads.n_kv_heads, heads.head_dim, caps.multiprocessors).depth;
    let fits = caps.has_clusters()
        && (1..=MOST_ROWS).contains(&call.m)
        && cache.dtype == DType::F16
        && matches!(heads.head_dim, 64 | 128)
        && heads.n_kv_heads > 0
        && heads.n_heads / heads.n_kv_heads <= GROUP
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && shared(heads.head_dim, depth) + OWN_SHARED <= caps.shared_bytes;
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
        codes: 0,
        halves: [0; 2],
        half_factors: 0,
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

/// How a number of rows is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Blocks that share a row and a KV head. A cluster has no more than 8 everywhere.
    ranks: u32,
    /// Tiles in a warp's ring.
    depth: u32,
    one: bool,
}

/// One row has an entry of its own. With more rows the ranks become fewer, so that there is a block for half of the
/// multiprocessors as long as that is possible: measured, this was faster than one for each.
fn shape(rows: u32, kv_heads: u32, head_dim: u32, multiprocessors: u32) -> Shape {
    if rows == 1 {
        return Shape { ranks: 8, depth: 2, one: true };
    }
    let heads = u64::from(rows) * u64::from(kv_heads);
    let fits = |&ranks: &u32| heads * u64::from(ranks) * 2 <= multiprocessors.into();
    let ranks = [8, 4, 2].iter().copied().find(fits).unwrap_or(1);
    Shape { ranks, depth: if head_dim == 128 { 3 } else { 4 }, one: false }
}

/// Bytes of dynamic shared memory: the rings hold keys and values; what warps have summed comes to the same place after them.
fn shared(head_dim: u32, depth: u32) -> u32 {
    let rings = WARPS * depth * 2 * TILE * head_dim * 2;
    let sums = WARPS * GROUP * head_dim * 4;
    rings.max(sums)
}

fn run(queue: &mut Queue, call: &AttentionCall, args: &Args) -> Launched {
    let head_dim = call.heads.head_dim;
    let Shape { ranks, depth, one } = shape(call.m, args.kv_heads, head_dim, queue.caps().multiprocessors);
    let name = if one { "one".to_owned() } else { format!("r{ranks}") };
    let entry = format!("attention_step_d{head_dim}_{name}");
    let blocks = queue.blocks(&entry, u64::from(ranks) * u64::from(args.kv_heads))?;
    let mut args = *args;
    let width = call.heads.q_width();
    // Each block ends whole blocks of 32 elements.
    let mut handed = None;
    if (width / args.kv_heads).is_multiple_of(32 * ranks) {
        if one {
            args.codes = q8_activations::reserve(queue, width).unwrap_or(0);
            handed = Some((q8_activations::forwarded(call.output, width), args.codes));
        } else if let Some(image) = F16Fragments::reserve(queue, call.m, width) {
            (args.halves, args.half_factors) = (image.fragments, image.row_scales);
            handed = Some((F16Fragments::scaled(call.output, call.m, width), image.fragments[0]));
        }
    }
    let mut launch = Launch::new("attention_step", &entry, blocks, 32 * WARPS)
        .rows(call.m)
        .shared(shared(head_dim, depth));
    launch.cluster = ranks;
    queue.launch(&launch, &args)?;
    if let Some((what, at)) = handed.filter(|(_, at)| *at != 0) {
        queue.set_forwarded(what, at);
    }
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_become_fewer_with_more_rows() {
        // Rows, KV heads and multiprocessors; ranks and blocks.
        let table = [
            ((1, 8, 132), (8, 64)),
            ((1, 32, 132), (8, 256)),
            ((2, 8, 132), (4, 64)),
            ((3, 8, 132), (2, 48)),
            ((4, 8, 132), (2, 64)),
            ((5, 8, 132), (1, 40)),
            ((8, 8, 132), (1, 64)),
            ((16, 8, 132), (1, 128)),
            ((4, 2, 132), (8, 64)),
            ((16, 2, 132), (2, 64)),
            ((16, 32, 132), (1, 512)),
            ((2, 8, 114), (2, 32)),
            ((2, u32::MAX, 132), (1, 2 * u64::from(u32::MAX))),
        ];
        for ((rows, kv_heads, multiprocessors), expected) in table {
            let ranks = shape(rows, kv_heads, 128, multiprocessors).ranks;
            let blocks = u64::from(rows) * u64::from(kv_heads) * u64::from(ranks);
            assert_eq!((ranks, blocks), expected, "{rows} rows of {kv_heads} on {multiprocessors}");
        }
    }

    #[test]
    fn rings_fit_a_block_and_keep_the_memory_busy() {
        for (head_dim, rows) in [(64, 1), (64, 2), (128, 1), (128, 2)] {
            let bytes = shared(head_dim, shape(rows, 8, head_dim, 132).depth);
            // Of an H100, and what must be on its way in each multiprocessor.
            assert!(bytes + OWN_SHARED <= 227 << 10, "{head_dim}");
            assert!(bytes >= 64 << 10, "{head_dim}");
        }
    }
}
