//! Attention of many rows over an f16 cache, on tensor cores.

use fulmen_core::{AttentionCall, DType, KvSource};

use super::Launched;
use super::attention::source;
use crate::device::Caps;
use crate::queue::{Launch, Queue};

/// Up to so many rows others are faster.
const FEW_ROWS: u32 = 16;

/// Rows from which on blocks of eight warps are faster than those of four.
const MANY_ROWS: u32 = 128;

/// Positions at a time, as in `attention_prefill.cu`.
const KEYS: u32 = 64;

/// Rows from which on `attention_prefill_hopper` is faster, where a device has its instructions.
const HOPPER_ROWS: u32 = 128;

/// Positions at a time, as in `attention_prefill_hopper.cu`.
const HOPPER_KEYS: u32 = 128;

/// How a kernel is launched.
struct Shape {
    file: &'static str,
    entry: String,
    /// Pairs of a row and a query head that a block takes.
    pairs: u32,
    threads: u32,
    shared: u32,
}

fn shape(caps: Caps, m: u32, head_dim: u32) -> Shape {
    if caps.has_wgmma() && m >= HOPPER_ROWS {
        // Groups of four warps that multiply, as in `attention_prefill_hopper.cu`.
        let groups = if head_dim == 64 { 3 } else { 2 };
        // The queries, stages of keys or values that fill the shared memory, and room to start at a multiple of 1024.
        let (pairs, tile) = (64 * groups, HOPPER_KEYS * head_dim * 2);
        let queries = pairs * head_dim * 2;
        let stages = ((218 * 1024 - queries) / tile).min(8);
        return Shape {
            file: "attention_prefill_hopper",
            entry: format!("attention_prefill_hopper_{head_dim}"),
            pairs,
            threads: 128 * (groups + 1),
            shared: queries + stages * tile + 1024,
        };
    }
    let warps: u32 = if m >= MANY_ROWS { 8 } else { 4 };
    Shape {
        file: "attention_prefill",
        entry: format!("attention_prefill_{head_dim}_{warps}"),
        pairs: 16 * warps,
        threads: 32 * warps,
        // Two stages of keys and values.
        shared: 2 * 2 * KEYS * head_dim * 2,
    }
}

/// The call, if this kernel takes it.
pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Option<Launched> {
    let KvSource::Cache { cache, .. } = call.kv else { return None };
    let heads = call.heads;
    if !matches!(heads.head_dim, 64 | 128) {
        return None;
    }
    let shape = shape(queue.caps(), call.m, heads.head_dim);
    let group = heads.n_heads.checked_div(heads.n_kv_heads)?;
    let rows = shape.pairs.checked_div(group)?;
    let fits = call.m > FEW_ROWS
        && cache.dtype == DType::F16
        && rows > 0
        && call.m.div_ceil(rows) <= u16::MAX.into()
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && [call.q, call.output].iter().all(|ptr| ptr.is_multiple_of(8));
    fits.then(|| run(queue, call, &shape, rows))
}

fn run(queue: &mut Queue, call: &AttentionCall, shape: &Shape, rows: u32) -> Launched {
    let (params, _) = source(queue, call)?;
    let blocks = queue.blocks(&shape.entry, call.heads.n_kv_heads.into())?;
    let tall = queue.rows(&shape.entry, call.m.div_ceil(rows).into())?;
    let launch = Launch::new(shape.file, &shape.entry, blocks, shape.threads).rows(tall).shared(shape.shared);
    queue.launch(&launch, &params)?;
    Ok(1)
}
