//! Prefill attention over an f16 KV cache on tensor cores: `attention_prefill.cu`, and
//! `attention_prefill_hopper.cu` where the device has wgmma.

use fulmen_core::{AttentionCall, DType, KvSource};

use super::Launched;
use super::attention::args;
use crate::device::Caps;
use crate::queue::{Launch, Queue};

/// Up to this many rows `attention_decode` is faster.
const MAX_DECODE_ROWS: u32 = 16;

/// Rows from which blocks of eight warps are faster than blocks of four.
const EIGHT_WARP_ROWS: u32 = 128;

/// Positions of a tile (`BLOCK_N`) in `attention_prefill.cu`.
const BLOCK_N: u32 = 64;

/// Rows from which `attention_prefill_hopper` is faster.
const HOPPER_ROWS: u32 = 128;

/// Positions of a tile (`BLOCK_N`) in `attention_prefill_hopper.cu`.
const HOPPER_BLOCK_N: u32 = 128;

/// The kernel and its launch dimensions.
struct LaunchConfig {
    file: &'static str,
    entry: String,
    /// Query rows (pairs of a batch row and a query head) of a block.
    block_m: u32,
    threads: u32,
    shared: u32,
}

fn launch_config(caps: Caps, m: u32, head_dim: u32) -> LaunchConfig {
    if caps.has_wgmma() && m >= HOPPER_ROWS {
        // Consumer warpgroups and stages as in `attention_prefill_hopper.cu`, plus room to align tiles.
        let consumers = if head_dim == 64 { 3 } else { 2 };
        let (block_m, tile_bytes) = (64 * consumers, HOPPER_BLOCK_N * head_dim * 2);
        let query_bytes = block_m * head_dim * 2;
        let stages = ((218 * 1024 - query_bytes) / tile_bytes).min(8);
        return LaunchConfig {
            file: "attention_prefill_hopper",
            entry: format!("attention_prefill_hopper_{head_dim}"),
            block_m,
            threads: 128 * (consumers + 1),
            shared: query_bytes + stages * tile_bytes + 1024,
        };
    }
    let warps: u32 = if m >= EIGHT_WARP_ROWS { 8 } else { 4 };
    LaunchConfig {
        file: "attention_prefill",
        entry: format!("attention_prefill_{head_dim}_{warps}"),
        block_m: 16 * warps,
        threads: 32 * warps,
        // Two stages of keys and values.
        shared: 2 * 2 * BLOCK_N * head_dim * 2,
    }
}

/// Launches the call if these kernels support it.
pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Option<Launched> {
    let KvSource::Cache { cache, .. } = call.kv else { return None };
    let heads = call.heads;
    if !matches!(heads.head_dim, 64 | 128) {
        return None;
    }
    let config = launch_config(queue.caps(), call.m, heads.head_dim);
    let group = heads.n_heads.checked_div(heads.n_kv_heads)?;
    let rows = config.block_m.checked_div(group)?;
    let supported = call.m > MAX_DECODE_ROWS
        && cache.dtype == DType::F16
        && rows > 0
        && call.m.div_ceil(rows) <= u16::MAX.into()
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && [call.q, call.output].iter().all(|ptr| ptr.is_multiple_of(8));
    supported.then(|| run(queue, call, &config, rows))
}

/// `rows`: of the batch, per block.
fn run(queue: &mut Queue, call: &AttentionCall, config: &LaunchConfig, rows: u32) -> Launched {
    let (args, _) = args(queue, call)?;
    let kv_heads = queue.blocks(&config.entry, call.heads.n_kv_heads.into())?;
    let row_tiles = queue.rows(&config.entry, call.m.div_ceil(rows).into())?;
    let launch = Launch::new(config.file, &config.entry, kv_heads, config.threads)
        .rows(row_tiles)
        .shared(config.shared);
    queue.launch(&launch, &args)?;
    Ok(1)
}
