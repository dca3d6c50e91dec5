//! How the work of a product of few rows is dealt to clusters, blocks and warps, and what each has of shared memory.

use fulmen_core::{BackendError, DType};

use super::args::{Args, Incoming, Outgoing, Part, Shares};
use crate::device::Caps;
use crate::kernels::f16_fragments::{CHUNK, ROWS, chunk_bytes};
use crate::kernels::small_m::{Group, MAX_PARTS};
use crate::l2_prefetch::L2Prefetch;
use crate::queue::Queue;
use crate::tensor_map::TensorMap;

// As in `gemm_small_m_schedule.cuh` and `gemm_small_m_formats.cuh`.
const MAX_WARPS: u32 = 12;
const TILE: u32 = 16;
const MAX_CHUNKS: u32 = 52;
const EARLY_EACH: u32 = 1;
const INSTEAD_OF_X: u32 = 2;

/// Tiles whose pushed sums have a place of their own.
const FEW_TILES: u32 = 16;
const DEPTHS: std::ops::RangeInclusive<u32> = 2..=4;

/// Pieces of 16 bytes that a stage has for a row.
fn pieces(dtype: DType) -> Option<u32> {
    let bytes = dtype.bytes(CHUNK as usize).ok()? as u32;
    Some(if aligned(dtype) { bytes / 16 } else { (bytes + 29) / 16 })
}

/// Whether rows are whole pieces, which the kernel counts on.
fn aligned(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_K | DType::Q5_K)
}

/// The order in which the kernel wants the columns of x.
fn order(dtype: DType) -> usize {
    if matches!(dtype, DType::Q6_K | DType::Q8_0) { 0 } else { 1 }
}

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 1024;

/// Blocks of a cluster, and what a cluster costs, as bytes of weights that a block could read meanwhile.
const RANKS: [(u32, u64); 4] = [(1, 0), (2, 58 << 10), (4, 112 << 10), (8, 200 << 10)];

/// Clusters that run at once: those of more than two blocks leave some multiprocessors over, as they do not cross GPCs. On an H200
/// 30 of four blocks do, and 31 take twice as long.
fn most_clusters(caps: Caps, ranks: u32) -> u32 {
    let usable =
        if ranks > 2 { caps.multiprocessors - caps.multiprocessors / 8 } else { caps.multiprocessors };
    (usable / ranks).max(1)
}

/// Rows of a launch, and the plans for them. Where 16 rows of x leave little memory to the weights, eight at a time.
pub(super) fn choose(caps: Caps, m: u32, k: u32, groups: &[Group<'_>]) -> Option<(u32, Vec<Plan>)> {
    let wanted = if m <= 8 { &ROWS[..1] } else { &ROWS[..] };
    let all = |rows: u32| groups.iter().map(|group| plan(caps, k, group, rows)).collect::<Option<Vec<_>>>();
    let cost = |rows: u32, plans: &[Plan]| {
        u64::from(m.div_ceil(rows)) * plans.iter().map(|plan| plan.cost).sum::<u64>()
    };
    wanted.iter().filter_map(|&rows| Some((rows, all(rows)?))).min_by_key(|(rows, plans)| cost(*rows, plans))
}

#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    /// The kernel.
    pub(super) entry: String,
    pub(super) clusters: u32,
    pub(super) shared: u32,
    /// The orders of x for the first format and for the second.
    pub(super) orders: [usize; 2],
    /// How long the slowest block takes, as bytes.
    pub(super) cost: u64,
    pub(super) pair: bool,
    /// The width of a box, where the first format is fetched by boxes.
    pub(super) box_bytes: Option<u32>,
    pub(super) args: Args,
}

impl Plan {
    /// Of the weights that are fetched by boxes of a tile and a chunk, and how many these are.
    pub(super) fn maps(&self, queue: &Queue) -> Result<([TensorMap; MAX_PARTS], u32), BackendError> {
        let mut maps = [TensorMap::default(); MAX_PARTS];
        let Some(width) = self.box_bytes else { return Ok((maps, 0)) };
        let count = if self.pair { 2 } else { self.args.first_parts };
        for (map, part) in maps.iter_mut().zip(&self.args.part).take(count as usize) {
            *map = queue.tensor_map(part.weight, (part.row_bytes, part.rows), (width, TILE))?;
        }
        Ok((maps, count))
    }
}

/// A launch for `rows` rows, with the addresses of the first.
pub(super) fn plan(caps: Caps, k: u32, group: &Group<'_>, rows: u32) -> Option<Plan> {
    RANKS.into_iter().filter_map(|rank| plan_with(caps, k, group, rows, rank)).min_by_key(|plan| plan.cost)
}

/// A launch of clusters of `ranks` blocks.
pub(super) fn plan_with(
    caps: Caps,
    k: u32,
    group: &Group<'_>,
    rows: u32,
    (ranks, cluster_cost): (u32, u64),
) -> Option<Plan> {
    let chunks = k.div_ceil(CHUNK);
    if ranks > chunks || ranks > caps.multiprocessors {
        return None;
    }
    let halves = if group.pair { 2 } else { 1 };
    let formats = [group.parts.first()?.weight.dtype, group.parts.last()?.weight.dtype];
    let mut part = [Part::default(); MAX_PARTS];
    // Those of a pair count once.
    let mut counts = [0; 2];
    for (index, (to, product)) in part.iter_mut().zip(group.parts).enumerate() {
        let count = &mut counts[usize::from(index >= group.first)];
        let weight = product.weight;
        if aligned(weight.dtype) && !weight.ptr.is_multiple_of(16) {
            return None;
        }
        *to = Part {
            weight: weight.ptr,
            out: product.out,
            bias: product.bias,
            residual: product.residual,
            rows: weight.rows,
            row_bytes: product.row_bytes(k)?,
            tile: *count,
            wide: 0,
        };
        if !group.pair || index == 0 {
            *count += weight.rows.div_ceil(TILE);
        }
    }
    let stages = [halves * TILE * 16 * pieces(formats[0])?, halves * TILE * 16 * pieces(formats[1])?];
    let clusters = most_clusters(caps, ranks).min(counts[0] + counts[1]);
    let shares = share(clusters, counts, stages)?;
    // As few as have no more tiles each: the next kernel starts on multiprocessors that are free.
    let enough =
        |count: u32, clusters: u32| if clusters == 0 { 0 } else { count.div_ceil(count.div_ceil(clusters)) };
    let shares = (enough(counts[0], shares.0), enough(counts[1], shares.1));
    let clusters = shares.0 + shares.1;
    let most_tiles = counts[0].div_ceil(shares.0).max(counts[1].div_ceil(shares.1.max(1)));

    // Memory: x, whose place sums take at the end; rings; sums before the end.
    let mine = chunks.div_ceil(ranks);
    if mine > MAX_CHUNKS {
        return None;
    }
    let slot = halves * rows * TILE * 4;
    let stage_bytes = if group.mixed() { stages[0].max(stages[1]) } else { stages[0] };
    let early_each = ranks > 1 || most_tiles <= MAX_WARPS;
    let early = slot * if early_each { most_tiles } else { MAX_WARPS };
    // Sums that blocks push have a place of their own, or, of many tiles, that of x.
    let pushed = if ranks > 1 { slot * most_tiles.next_multiple_of(ranks) } else { 0 };
    let instead_of_x = pushed > 0 && most_tiles > FEW_TILES;
    let (behind, inside) = if instead_of_x { (0, pushed) } else { (pushed, 0) };
    let x_bytes = mine.checked_mul(chunk_bytes(rows))?.max(slot * MAX_WARPS + inside);
    let room = caps.shared_bytes.checked_sub(STATIC_BYTES + early + behind)?.checked_sub(x_bytes)?;
    let warps = (room / (DEPTHS.start() * stage_bytes)).min(MAX_WARPS);
    if warps == 0 {
        return None;
    }
    let depth = (room / (warps * stage_bytes)).min(*DEPTHS.end());
    let taken = x_bytes + warps * depth * stage_bytes + early;
    let pushed_at = if instead_of_x { slot * MAX_WARPS } else { taken };
    let flags = if early_each { EARLY_EACH } else { 0 } | if instead_of_x { INSTEAD_OF_X } else { 0 };

    let of_tiles = |count: u32, clusters: u32, stage: u32| {
        u64::from(count.div_ceil(clusters.max(1))) * u64::from(mine) * u64::from(stage)
    };
    let weights = of_tiles(counts[0], shares.0, stages[0]).max(of_tiles(counts[1], shares.1, stages[1]));
    let x_cost = u64::from(mine) * u64::from(chunk_bytes(rows)) * 4 / 5;
    let cost = weights * u64::from(MAX_WARPS) / u64::from(warps) + x_cost + cluster_cost;

    let args = Args {
        map: [TensorMap::default(); MAX_PARTS],
        x: [0; 2],
        factors: 0,
        from: Incoming::default(),
        to: Outgoing::default(),
        columns: 0,
        blocks: k.div_ceil(32),
        chunks,
        parts: if group.pair { 1 } else { group.parts.len() as u32 },
        first_parts: if group.pair { 1 } else { group.first as u32 },
        first_clusters: shares.0,
        tiles: [Shares::new(counts[0], shares.0), Shares::new(counts[1], shares.1)],
        ranked: Shares::new(chunks, ranks),
        ranks,
        warps,
        depth,
        stage_bytes,
        x_bytes,
        sums: pushed_at | flags,
        epsilon: 0.0,
        maps: 0,
        part,
        ahead: L2Prefetch::default(),
    };
    let entry = format!("gemm_small_m_{}_rows{rows}", group.name());
    let box_bytes = if aligned(formats[0]) { Some(16 * pieces(formats[0])?) } else { None };
    let shared = taken + behind;
    Some(Plan {
        entry,
        clusters,
        shared,
        orders: formats.map(order),
        cost,
        pair: group.pair,
        box_bytes,
        args,
    })
}

/// How many clusters work on the tiles of the first format and on those of the second, so that the slowest is done soonest. Both
/// need one if they have tiles.
pub(super) fn share(clusters: u32, tiles: [u32; 2], bytes: [u32; 2]) -> Option<(u32, u32)> {
    if tiles[1] == 0 {
        return Some((clusters, 0));
    }
    let time = |tiles: u32, clusters: u32, bytes: u32| u64::from(tiles.div_ceil(clusters)) * u64::from(bytes);
    let slowest =
        |first: u32| time(tiles[0], first, bytes[0]).max(time(tiles[1], clusters - first, bytes[1]));
    (1..clusters).min_by_key(|&first| slowest(first)).map(|first| (first, clusters - first))
}

#[cfg(test)]
mod tests {
    use fulmen_core::WeightArg;

    use super::*;
    use crate::kernels::small_m::Product;

    const H200: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 62_914_560 };

    fn product(dtype: DType, rows: u32) -> Product {
        Product { weight: WeightArg { ptr: 256, dtype, rows }, out: 512, bias: 0, residual: 0 }
    }

    fn planned(parts: &[Product], first: usize, pair: bool, k: u32, rows: u32) -> Option<Plan> {
        let plan = plan(H200, k, &Group { parts, first, pair }, rows)?;
        let args = &plan.args;
        assert!(plan.shared + STATIC_BYTES <= H200.shared_bytes, "{plan:?}");
        assert!(DEPTHS.contains(&args.depth) && (1..=MAX_WARPS).contains(&args.warps), "{plan:?}");
        assert!(plan.clusters * args.ranks <= H200.multiprocessors && args.ranks <= args.chunks);
        assert!(args.x_bytes.is_multiple_of(128) && args.stage_bytes.is_multiple_of(128));
        assert!(args.x_bytes >= args.chunks.div_ceil(args.ranks) * chunk_bytes(rows));
        Some(plan)
    }

    #[test]
    fn layers_of_real_models_have_a_plan() {
        use DType::{Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
        for rows in ROWS {
            for k in [2048, 2560, 3072, 4096, 5120, 8192] {
                for dtype in [Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0] {
                    let plan = planned(&[product(dtype, 4 * k)], 1, false, k, rows);
                    assert!(plan.is_some_and(|plan| plan.args.warps >= 7), "{dtype} {k}");
                    let pair = [product(dtype, 3 * k); 2];
                    assert!(planned(&pair, 2, true, k, rows).is_some(), "{dtype} {k} pair");
                }
                let mixed = [product(Q4_K, k), product(Q4_K, 1024), product(Q6_K, 1024)];
                let plan = planned(&mixed, 2, false, k, rows).unwrap();
                assert!(plan.args.first_clusters > 0 && plan.args.first_clusters < plan.clusters);
                assert_eq!(plan.orders, [1, 0]);
            }
            for (k, n) in [(9728, 2560), (12288, 4096), (14336, 4096), (28672, 8192)] {
                for dtype in [Q4_K, Q6_K] {
                    let plan = planned(&[product(dtype, n)], 1, false, k, rows).unwrap();
                    assert!(plan.args.warps >= 8, "{k} {dtype}: {plan:?}");
                }
            }
        }
    }

    #[test]
    fn weights_of_a_pair_share_a_stage() {
        let parts = [product(DType::Q4_K, 9728); 2];
        let plan = planned(&parts, 2, true, 2560, 16).unwrap();
        assert_eq!((plan.args.stage_bytes, plan.args.warps), (2 * 16 * 144, MAX_WARPS));
    }

    #[test]
    fn clusters_are_shared_by_time() {
        assert_eq!(share(132, [160, 0], [2304, 2304]), Some((132, 0)));
        assert_eq!(share(2, [100, 1], [1, 1]), Some((1, 1)));
        assert_eq!(share(1, [1, 1], [1, 1]), None);
        // 320 tiles of four bits and 64 of six: four and two for each cluster.
        let (first, rest) = share(132, [320, 64], [2304, 3584]).unwrap();
        assert_eq!((320_u32.div_ceil(first), 64_u32.div_ceil(rest)), (4, 2));
    }

    #[test]
    fn there_are_no_more_clusters_than_shorten_the_longest() {
        // Rows, columns; clusters and blocks of each.
        for ((n, k), expected) in [((2560, 9728), (27, 4)), ((2560, 4096), (54, 2)), ((6144, 2560), (128, 1))]
        {
            let plan = planned(&[product(DType::Q4_K, n)], 1, false, k, 16).unwrap();
            assert_eq!((plan.clusters, plan.args.ranks), expected, "{n} x {k}");
        }
    }

    #[test]
    fn sums_of_many_tiles_take_the_place_of_x() {
        // As the table of ops has them.
        for (dtype, pair) in [(DType::Q4_K, false), (DType::Q6_K, false), (DType::Q4_K, true)] {
            let parts = [product(dtype, 17920); 2];
            let parts = if pair { &parts[..] } else { &parts[..1] };
            let plan = planned(parts, parts.len(), pair, 6144, 16).unwrap();
            assert!(plan.args.ranks > 1 && plan.args.sums & INSTEAD_OF_X > 0, "{plan:?}");
        }
    }

    #[test]
    fn what_does_not_fit_in_16_rows_fits_in_8() {
        let parts = [product(DType::Q4_K, 8192)];
        assert!(planned(&parts, 1, false, 53248, 16).is_none());
        assert!(planned(&parts, 1, false, 53248, 8).is_some());
    }

    #[test]
    fn eight_rows_at_a_time_are_taken_where_that_is_faster() {
        let rows = |n: u32, k: u32, m: u32| {
            let parts = [product(DType::Q4_K, n); 2];
            choose(H200, m, k, &[Group { parts: &parts, first: 2, pair: true }]).map(|(rows, _)| rows)
        };
        assert_eq!(rows(9728, 2560, 16), Some(16));
        assert_eq!(rows(9728, 2560, 8), Some(8));
        assert_eq!(rows(28672, 8192, 16), Some(8));
    }

    #[test]
    fn rows_that_are_not_whole_pieces_are_left_to_others() {
        let mut part = product(DType::Q4_K, 64);
        part.weight.ptr = 264;
        assert!(planned(&[part], 1, false, 256, 8).is_none());
        part.weight.dtype = DType::Q6_K;
        assert!(planned(&[part], 1, false, 256, 8).is_some());
    }

    #[test]
    fn one_row_of_one_block_is_enough() {
        let plan = planned(&[product(DType::Q8_0, 1)], 1, false, 32, 8).unwrap();
        assert_eq!((plan.clusters, plan.args.ranks, plan.args.chunks), (1, 1, 1));
    }
}
