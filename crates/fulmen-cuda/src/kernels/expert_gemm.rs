//! Launches of the grouped GEMM by expert id (`expert_gemm.cu`): pairs are sorted by expert, x is packed as
//! bf16, then each projection is one launch over tiles of pairs of one expert. The number of launches does
//! not depend on the routing.

use fulmen_core::DType;

use super::expert_sort::{ExpertSortArgs, ExpertTile, SORT_THREADS, max_tiles};
use super::experts::{GatedActivation, PairProjection};
use super::{Launched, type_name, wide};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Pairs and columns of a tile.
const TILE_M: u32 = 64;
const TILE_N: u32 = 128;
const K_STEP: u32 = 64;
const THREADS: u32 = 256;

kernel_args! {
    file: "expert_gemm.cu";
    constants: [TILE_M, TILE_N, K_STEP, THREADS];

    struct ExpertPackArgs {
        x: DevicePtr,
        out: DevicePtr,
        rows: u32,
        k: u32,
        pitch: u32,
        aligned: u32,
    }

    struct ExpertGemmArgs {
        x: DevicePtr,
        w: DevicePtr,
        ids: DevicePtr,
        order: DevicePtr,
        tiles: DevicePtr,
        bias: DevicePtr,
        gate: DevicePtr,
        weights: DevicePtr,
        out: DevicePtr,
        activation: GatedActivation,
        n: u32,
        k: u32,
        pairs_per_row_of_x: u32,
        unused: u32,
    }
}

/// Whether there is a kernel for weights of this type: bf16 is precise enough for quantized ones.
pub(super) fn takes(dtype: DType) -> bool {
    dtype.is_quantized()
}

/// Where the parts of the scratch memory begin: the sorted pairs at 0, then these.
struct Scratch {
    tiles: usize,
    x: usize,
    bytes: usize,
}

impl Scratch {
    /// Of so many pairs, and so many rows of `k` columns of x.
    fn new(pairs: usize, n_experts: u32, x_rows: usize, k: u32) -> Scratch {
        let tiles = (pairs * 4).next_multiple_of(256);
        let x = tiles + (max_tiles(pairs, n_experts, TILE_M) * size_of::<ExpertTile>()).next_multiple_of(256);
        Scratch { tiles, x, bytes: x + x_rows * k.next_multiple_of(K_STEP) as usize * 2 }
    }
}

/// Bytes of scratch memory for so many pairs, and so many rows of `k` columns of x.
pub(super) fn scratch_bytes(pairs: usize, n_experts: u32, x_rows: usize, k: u32) -> usize {
    Scratch::new(pairs, n_experts, x_rows, k).bytes
}

/// The projections of one call, which have the same pairs and the same x. `scratch` has [`scratch_bytes`].
pub(super) fn launch(queue: &mut Queue, projections: &[PairProjection], scratch: u64) -> Launched {
    let Some(&PairProjection { x, x_by_pair, ids, m, k, top, n_experts, .. }) = projections.first() else {
        return Ok(0);
    };
    let pairs = m.saturating_mul(top);
    let x_rows = if x_by_pair { pairs } else { m };
    let parts = Scratch::new(pairs as usize, n_experts, x_rows as usize, k);
    let (tiles, packed) = (scratch + parts.tiles as u64, scratch + parts.x as u64);
    let max_tiles = queue.rows("expert_gemm", max_tiles(pairs as usize, n_experts, TILE_M) as u64)?;
    let fault = queue.fault();
    let sort = ExpertSortArgs {
        ids,
        order: scratch,
        tiles,
        fault,
        pairs,
        top_k: top,
        n_experts,
        max_tiles,
        tile_pairs: TILE_M,
        unused: 0,
    };
    queue.launch(&Launch::new("expert_gemm", "expert_sort", 1, SORT_THREADS), &sort)?;
    let pitch = k.next_multiple_of(K_STEP);
    let aligned = if k.is_multiple_of(4) { wide(&[x]) } else { 0 };
    let pack = ExpertPackArgs { x, out: packed, rows: x_rows, k, pitch, aligned };
    let threads = u64::from(x_rows) * u64::from(pitch / 8);
    let blocks = queue.blocks("expert_pack", threads.div_ceil(THREADS.into()))?;
    queue.launch(&Launch::new("expert_gemm", "expert_pack", blocks, THREADS), &pack)?;
    for projection in projections {
        let &PairProjection { weight, bias, out, .. } = projection;
        let (n, (gate, weights, activation)) = (projection.n(), projection.epilogue());
        let args = ExpertGemmArgs {
            x: packed,
            w: weight.ptr,
            ids,
            order: scratch,
            tiles,
            bias: bias.unwrap_or(0),
            gate,
            weights,
            out,
            activation,
            n,
            k,
            pairs_per_row_of_x: if x_by_pair { 1 } else { top },
            unused: 0,
        };
        let entry = format!("expert_gemm_{}", type_name(weight.dtype));
        let blocks = queue.blocks(&entry, n.div_ceil(TILE_N).into())?;
        queue.launch(&Launch::new("expert_gemm", &entry, blocks, THREADS).rows(max_tiles), &args)?;
    }
    Ok(2 + projections.len())
}
