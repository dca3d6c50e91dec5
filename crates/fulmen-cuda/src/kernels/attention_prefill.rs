//! Prefill attention over an f16 or Q8_0 KV cache on tensor cores: `attention_prefill.cu`, and
//! `attention_prefill_hopper.cu` for f16 where the device has wgmma. Kernels for windows, capping,
//! temperature and sinks are named `*_scores_*`.

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

/// `None` if there is no kernel for heads of this size.
fn launch_config(caps: Caps, m: u32, head_dim: u32, dtype: DType, scores: bool) -> Option<LaunchConfig> {
    let scores = if scores { "_scores" } else { "" };
    if head_dim == 256 && dtype == DType::F16 {
        // Two stages of half as many positions, then the queries.
        let (stages, queries) = (2 * 2 * (BLOCK_N / 2) * head_dim * 2, 64 * head_dim * 2);
        return Some(LaunchConfig {
            file: "attention_prefill",
            entry: format!("attention_prefill{scores}_256_4"),
            block_m: 64,
            threads: 128,
            shared: stages + queries,
        });
    }
    if !matches!(head_dim, 64 | 128) {
        return None;
    }
    if dtype == DType::F16 && caps.has_wgmma() && m >= HOPPER_ROWS {
        // Consumer warpgroups and stages as in `attention_prefill_hopper.cu`; tiles are aligned to 1024.
        let consumers = if head_dim == 64 { 3 } else { 2 };
        let (block_m, tile_bytes) = (64 * consumers, HOPPER_BLOCK_N * head_dim * 2);
        let query_bytes = block_m * head_dim * 2;
        let stages = ((218 * 1024 - query_bytes) / tile_bytes).min(8);
        return Some(LaunchConfig {
            file: "attention_prefill_hopper",
            entry: format!("attention_prefill_hopper{scores}_{head_dim}"),
            block_m,
            threads: 128 * (consumers + 1),
            shared: query_bytes + stages * tile_bytes + 1024,
        });
    }
    let warps: u32 = if m >= EIGHT_WARP_ROWS || dtype == DType::Q8_0 { 8 } else { 4 };
    let kernel = if dtype == DType::Q8_0 { "attention_prefill_q8_0" } else { "attention_prefill" };
    Some(LaunchConfig {
        file: "attention_prefill",
        entry: format!("{kernel}{scores}_{head_dim}_{warps}"),
        block_m: 16 * warps,
        threads: 32 * warps,
        // Two stages of keys and values in f16.
        shared: 2 * 2 * BLOCK_N * head_dim * 2,
    })
}

/// The kernel of a call and the rows of the batch per block, if these kernels support it.
fn config_of(caps: Caps, call: &AttentionCall) -> Option<(LaunchConfig, u32)> {
    let KvSource::Cache { cache, .. } = call.kv else { return None };
    let heads = call.heads;
    // A batch-invariant attention has the kernel of many rows.
    let m = if call.batch_invariant { u32::MAX } else { call.m };
    let scores = !call.scores().is_plain();
    let config = launch_config(caps, m, heads.head_dim, cache.dtype, scores)?;
    let group = heads.n_heads.checked_div(heads.n_kv_heads)?;
    let rows = config.block_m.checked_div(group)?;
    let supported = (call.m > MAX_DECODE_ROWS || call.rows.work().is_some())
        && matches!(cache.dtype, DType::F16 | DType::Q8_0)
        && rows > 0
        && row_tiles(call, rows) <= u16::MAX.into()
        && [cache.k_ptr, cache.v_ptr].iter().all(|ptr| ptr.is_multiple_of(16))
        && [call.q, call.output].iter().all(|ptr| ptr.is_multiple_of(8));
    supported.then_some((config, rows))
}

/// Whether these kernels support a call: of a mixed step, its chunks.
pub(super) fn supports(caps: Caps, call: &AttentionCall) -> bool {
    config_of(caps, call).is_some()
}

/// Launches the call if these kernels support it.
pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Option<Launched> {
    let (config, rows) = config_of(queue.caps(), call)?;
    Some(run(queue, call, &config, rows))
}

/// Tiles of `rows` rows: of all rows, or the most that the chunks of a mixed step can have.
fn row_tiles(call: &AttentionCall, rows: u32) -> u64 {
    let max_chunks = call.rows.work().map_or(0, |(_, max_chunks)| max_chunks.min(call.m));
    u64::from(call.m.div_ceil(rows)) + u64::from(max_chunks)
}

/// `rows`: of the batch, per block.
fn run(queue: &mut Queue, call: &AttentionCall, config: &LaunchConfig, rows: u32) -> Launched {
    let (args, _) = args(queue, call)?;
    let kv_heads = queue.blocks(&config.entry, call.heads.n_kv_heads.into())?;
    let row_tiles = queue.rows(&config.entry, row_tiles(call, rows))?;
    let launch = Launch::new(config.file, &config.entry, kv_heads, config.threads)
        .rows(row_tiles)
        .shared(config.shared);
    queue.launch(&launch, &args)?;
    Ok(1)
}
