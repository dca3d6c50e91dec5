//! Attention of many rows over an f16 cache, on tensor cores.

use fulmen_core::{AttentionCall, DType, KvSource};

use super::Launched;
use super::attention::source;
use crate::queue::{Launch, Queue};

/// Up to so many rows others are faster.
const FEW_ROWS: u32 = 16;

/// Rows from which on blocks of eight warps are faster than those of four.
const MANY_ROWS: u32 = 128;

/// Positions at a time, as in `attention_prefill.cu`.
const KEYS: u32 = 64;

/// The call, if this kernel takes it.
pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Option<Launched> {
    let KvSource::Cache { cache, .. } = call.kv else { return None };
    let heads = call.heads;
    let warps: u32 = if call.m >= MANY_ROWS { 8 } else { 4 };
    // A block has 16 pairs of a row and a query head for each warp.
    let group = heads.n_heads.checked_div(heads.n_kv_heads)?;
    let rows = (warps * 16).checked_div(group)?;
    let fits = call.m > FEW_ROWS
        && cache.dtype == DType::F16
        && matches!(heads.head_dim, 64 | 128)
        && rows > 0
        && call.m.div_ceil(rows) <= u16::MAX.into()
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && [call.q, call.output].iter().all(|ptr| ptr.is_multiple_of(8));
    fits.then(|| run(queue, call, warps, rows))
}

fn run(queue: &mut Queue, call: &AttentionCall, warps: u32, rows: u32) -> Launched {
    let head_dim = call.heads.head_dim;
    let (params, _) = source(queue, call)?;
    let entry = format!("attention_prefill_{head_dim}_{warps}");
    let blocks = queue.blocks(&entry, call.heads.n_kv_heads.into())?;
    let tall = queue.rows(&entry, call.m.div_ceil(rows).into())?;
    // Two stages of keys and values.
    let shared = 2 * 2 * KEYS * head_dim * 2;
    let launch = Launch::new("attention_prefill", &entry, blocks, 32 * warps).rows(tall).shared(shared);
    queue.launch(&launch, &params)?;
    Ok(1)
}
