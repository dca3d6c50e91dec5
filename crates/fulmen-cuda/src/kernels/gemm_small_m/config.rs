//! The launch configuration of the small-M GEMM: grid, clusters, warps, stages and shared memory.
//!
//! - Rows: kernels exist for 8, 16 and 32 padded rows. With more than 8 rows, all at once or fewer at a time,
//!   whichever costs less: many rows of a wide x leave little shared memory to the weights.
//! - Clusters: each candidate size (1, 2, 4, 8 blocks, which split K) is configured, and the one with the
//!   lowest cost is taken. The cost is the bytes of weights that the slowest block reads, more if shared
//!   memory does not suffice for all warps, plus reading x, plus the measured cost of a cluster reduction in
//!   bytes.
//! - Grid: no more clusters than run at once, and no more than shorten the longest work: the next kernel
//!   starts on SMs that are left free. With two weight formats the clusters are divided between them by their
//!   work.
//! - Warps and stages: up to 12 consumer warps with at least 2 stages each; then as many stages as fit, up to
//!   4. Cluster partials take the place of x, at the cost of a cluster barrier, where that leaves more memory
//!   for warps.

use fulmen_core::{BackendError, DType};

use super::args::{
    ForwardedInput, ForwardedOutput, GemmSmallMArgs, HEAD_PARTIALS_PER_TILE, MAX_CHUNKS, MAX_STAGES,
    MAX_WARPS, PARTIALS_OVERLAY_X, TILE, WIDE_GATE_UP_WARPS,
};
use crate::device::Caps;
use crate::kernels::even_split::EvenSplit;
use crate::kernels::f16_fragments::{K_CHUNK, K_CONTIGUOUS, K_INTERLEAVED, ROWS, chunk_bytes};
use crate::kernels::gemm_weight::{GemmWeight, MAX_WEIGHTS};
use crate::kernels::small_m::LaunchGroup;
use crate::l2_prefetch::L2Prefetch;
use crate::queue::Queue;
use crate::tensor_map::TensorMap;

const MIN_STAGES: u32 = 2;

/// The most tiles of a cluster whose cluster partials have shared memory of their own; those of more take
/// that of x.
const MAX_SEPARATE_TILES: u32 = 16;

/// Static shared memory, rounded up.
const STATIC_BYTES: u32 = 1152;

/// Cluster sizes, and what a cluster reduction costs, as bytes of weights that a block could read meanwhile.
const CLUSTER_SIZES: [(u32, u64); 4] = [(1, 0), (2, 58 << 10), (4, 112 << 10), (8, 200 << 10)];

/// Whether rows are whole 16-byte vectors, which the kernel loads as TMA tiles: `ALIGNED` of the formats.
fn is_aligned(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_K | DType::Q5_K)
}

/// The 16-byte vectors of a stage that cover a chunk of a row: `ROW_VECTORS` of the formats.
fn row_vectors(dtype: DType) -> Option<u32> {
    let bytes = dtype.bytes(K_CHUNK as usize).ok()? as u32;
    Some(if is_aligned(dtype) { bytes / 16 } else { (bytes + 29) / 16 })
}

/// The order of the columns of x that a format needs: `K_ORDER` of the formats.
fn k_order(dtype: DType) -> usize {
    if matches!(dtype, DType::Q6_K | DType::Q8_0) { K_INTERLEAVED } else { K_CONTIGUOUS }
}

/// Clusters that run at once. Those of more than two blocks do not cross GPCs and leave some SMs unused: on
/// an H200, 30 clusters of four blocks run at once, and 31 take twice as long. The formula allows 29, to be
/// safe.
fn max_clusters(caps: Caps, size: u32) -> u32 {
    let sms = caps.multiprocessors;
    let usable = if size > 2 { sms - sms / 8 } else { sms };
    (usable / size).max(1)
}

/// Rows per launch, and the configurations of the launches.
pub(super) fn choose(
    caps: Caps,
    m: u32,
    k: u32,
    groups: &[LaunchGroup<'_>],
) -> Option<(u32, Vec<SmallMConfig>)> {
    let most = ROWS.iter().position(|&rows| rows >= m).unwrap_or(ROWS.len() - 1);
    let configs = |rows: u32| {
        groups.iter().map(|group| SmallMConfig::new(caps, k, group, rows)).collect::<Option<Vec<_>>>()
    };
    let cost = |rows: u32, configs: &[SmallMConfig]| {
        u64::from(m.div_ceil(rows)) * configs.iter().map(|config| config.cost).sum::<u64>()
    };
    ROWS[..=most]
        .iter()
        .filter_map(|&rows| Some((rows, configs(rows)?)))
        .min_by_key(|(rows, configs)| cost(*rows, configs))
}

/// A launch for up to `rows` rows, but for what the call provides: addresses of x, forwarding, tensor maps.
#[derive(Debug, PartialEq)]
pub(super) struct SmallMConfig {
    pub(super) entry: String,
    pub(super) clusters: u32,
    pub(super) shared: u32,
    /// The K orders of x for the first format and for the second.
    pub(super) k_orders: [usize; 2],
    /// How long the slowest block takes, in bytes.
    cost: u64,
    pub(super) gate_up: bool,
    /// The width of a TMA tile, if the first format is loaded by TMA.
    tma_tile_bytes: Option<u32>,
    pub(super) args: GemmSmallMArgs,
}

impl SmallMConfig {
    /// The configuration with the best cluster size.
    fn new(caps: Caps, k: u32, group: &LaunchGroup<'_>, rows: u32) -> Option<SmallMConfig> {
        CLUSTER_SIZES
            .into_iter()
            .filter_map(|cluster| SmallMConfig::with_cluster_size(caps, k, group, rows, cluster))
            .min_by_key(|config| config.cost)
    }

    fn with_cluster_size(
        caps: Caps,
        k: u32,
        group: &LaunchGroup<'_>,
        rows: u32,
        (cluster_size, cluster_cost): (u32, u64),
    ) -> Option<SmallMConfig> {
        let k_chunks = k.div_ceil(K_CHUNK);
        let block_chunks = k_chunks.div_ceil(cluster_size);
        if cluster_size > k_chunks || cluster_size > caps.multiprocessors || block_chunks > MAX_CHUNKS {
            return None;
        }
        let formats = [group.matmuls.first()?.weight.dtype, group.matmuls.last()?.weight.dtype];
        let (weights, tiles) = weights_and_tiles(k, group)?;
        let matrices = if group.gate_up { 2 } else { 1 };
        let stage_bytes = [0, 1].map(|i| Some(matrices * TILE * 16 * row_vectors(formats[i])?));
        let stage_bytes = [stage_bytes[0]?, stage_bytes[1]?];

        let clusters = max_clusters(caps, cluster_size).min(tiles[0] + tiles[1]);
        let clusters = divide_clusters(clusters, tiles, stage_bytes)?;
        let clusters = [enough_clusters(tiles[0], clusters.0), enough_clusters(tiles[1], clusters.1)];
        let cluster_tiles = [0, 1].map(|i| tiles[i].div_ceil(clusters[i].max(1)));

        let memory = SharedMemory::new(
            caps,
            &Block {
                rows,
                chunks: block_chunks,
                tiles: cluster_tiles[0].max(cluster_tiles[1]),
                cluster_size,
                matrices,
                stage_bytes: if group.two_formats() {
                    stage_bytes[0].max(stage_bytes[1])
                } else {
                    stage_bytes[0]
                },
            },
        )?;

        let weight_bytes =
            |i: usize| u64::from(cluster_tiles[i]) * u64::from(block_chunks) * u64::from(stage_bytes[i]);
        let weight_cost =
            weight_bytes(0).max(weight_bytes(1)) * u64::from(MAX_WARPS) / u64::from(memory.consumer_warps);
        let x_cost = u64::from(block_chunks) * u64::from(chunk_bytes(rows)) * 4 / 5;

        let args = GemmSmallMArgs {
            tensor_maps: [TensorMap::default(); MAX_WEIGHTS],
            x: [0; 2],
            row_scales: 0,
            forwarded_in: ForwardedInput::default(),
            forwarded_out: ForwardedOutput::default(),
            m: 0,
            k_blocks: k.div_ceil(32),
            k_chunks,
            n_weights: if group.gate_up { 1 } else { group.matmuls.len() as u32 },
            first_format_weights: if group.gate_up { 1 } else { group.first_format as u32 },
            first_format_clusters: clusters[0],
            tile_split: [0, 1].map(|i| EvenSplit::new(tiles[i], clusters[i])),
            chunk_split: EvenSplit::new(k_chunks, cluster_size),
            cluster_size,
            consumer_warps: memory.consumer_warps,
            stages: memory.stages,
            stage_bytes: memory.stage_bytes,
            x_bytes: memory.x_bytes,
            cluster_partials: memory.cluster_partials,
            epsilon: 0.0,
            n_tensor_maps: 0,
            weights,
            prefetch: L2Prefetch::default(),
            gelu: group.gelu(),
            unused: [0; 11],
        };
        Some(SmallMConfig {
            entry: format!("gemm_small_m_{}_rows{rows}", group.name()),
            clusters: clusters[0] + clusters[1],
            shared: memory.bytes,
            k_orders: formats.map(k_order),
            cost: weight_cost + x_cost + cluster_cost,
            gate_up: group.gate_up,
            tma_tile_bytes: if is_aligned(formats[0]) { Some(16 * row_vectors(formats[0])?) } else { None },
            args,
        })
    }

    /// The tensor maps of the weights that are loaded by TMA, and their number. A TMA tile is one stage.
    pub(super) fn tensor_maps(&self, queue: &Queue) -> Result<([TensorMap; MAX_WEIGHTS], u32), BackendError> {
        let mut maps = [TensorMap::default(); MAX_WEIGHTS];
        let Some(width) = self.tma_tile_bytes else { return Ok((maps, 0)) };
        let count = if self.gate_up { 2 } else { self.args.first_format_weights };
        for (map, weight) in maps.iter_mut().zip(&self.args.weights).take(count as usize) {
            *map = queue.tensor_map(weight.data, (weight.row_bytes, weight.rows), (width, TILE))?;
        }
        Ok((maps, count))
    }
}

/// The weights of a group, and the number of tiles of each format. Gate and up share their tiles. `None` if a
/// weight is not aligned as its format needs.
fn weights_and_tiles(k: u32, group: &LaunchGroup<'_>) -> Option<([GemmWeight; MAX_WEIGHTS], [u32; 2])> {
    let mut weights = [GemmWeight::default(); MAX_WEIGHTS];
    let mut tiles = [0; 2];
    for (index, (to, matmul)) in weights.iter_mut().zip(group.matmuls).enumerate() {
        let tiles = &mut tiles[usize::from(index >= group.first_format)];
        let weight = matmul.weight;
        if is_aligned(weight.dtype) && !weight.ptr.is_multiple_of(16) {
            return None;
        }
        *to = GemmWeight::new(matmul, k, *tiles)?;
        if !group.gate_up || index == 0 {
            *tiles += weight.rows.div_ceil(TILE);
        }
    }
    Some((weights, tiles))
}

/// How many clusters work on the tiles of the first format and on those of the second, so that the slowest is
/// done soonest. A format with tiles needs at least one. `bytes` are those of a tile's chunk.
fn divide_clusters(clusters: u32, tiles: [u32; 2], bytes: [u32; 2]) -> Option<(u32, u32)> {
    if tiles[1] == 0 {
        return Some((clusters, 0));
    }
    let time = |tiles: u32, clusters: u32, bytes: u32| u64::from(tiles.div_ceil(clusters)) * u64::from(bytes);
    let slowest =
        |first: u32| time(tiles[0], first, bytes[0]).max(time(tiles[1], clusters - first, bytes[1]));
    (1..clusters).min_by_key(|&first| slowest(first)).map(|first| (first, clusters - first))
}

/// As few clusters as have no more tiles each: the next kernel starts on SMs that are free.
fn enough_clusters(tiles: u32, clusters: u32) -> u32 {
    if clusters == 0 { 0 } else { tiles.div_ceil(tiles.div_ceil(clusters)) }
}

/// What decides the shared memory of a block.
struct Block {
    /// Padded rows of x.
    rows: u32,
    /// K chunks.
    chunks: u32,
    /// Tiles of its cluster.
    tiles: u32,
    cluster_size: u32,
    /// 2 for gate and up.
    matrices: u32,
    stage_bytes: u32,
}

/// Dynamic shared memory: x, which tail partials and sometimes cluster partials reuse; rings; head partials;
/// cluster partials.
struct SharedMemory {
    consumer_warps: u32,
    stages: u32,
    stage_bytes: u32,
    x_bytes: u32,
    /// The offset of the cluster partials, with flags.
    cluster_partials: u32,
    bytes: u32,
}

impl SharedMemory {
    /// Cluster partials have memory of their own, unless there are many, or that would cost more than one
    /// warp.
    fn new(caps: Caps, block: &Block) -> Option<SharedMemory> {
        let overlay = SharedMemory::with_overlay(caps, block, true);
        if block.cluster_size > 1 && block.tiles > MAX_SEPARATE_TILES {
            return overlay;
        }
        let separate = SharedMemory::with_overlay(caps, block, false);
        let warps = |memory: &Option<SharedMemory>| memory.as_ref().map_or(0, |memory| memory.consumer_warps);
        if warps(&overlay) > warps(&separate) + 1 { overlay } else { separate }
    }

    /// `overlay`: cluster partials take the place of x.
    fn with_overlay(caps: Caps, block: &Block, overlay: bool) -> Option<SharedMemory> {
        let Block { rows, chunks, tiles, cluster_size, matrices, stage_bytes } = *block;
        let partial_bytes = matrices * rows * TILE * 4;
        let head_per_tile = cluster_size > 1 || tiles <= MAX_WARPS;
        let head_bytes = partial_bytes * if head_per_tile { tiles } else { MAX_WARPS };
        let cluster_bytes =
            if cluster_size > 1 { partial_bytes * tiles.next_multiple_of(cluster_size) } else { 0 };
        let overlay = overlay && cluster_bytes > 0;
        let (separate, over_x) = if overlay { (0, cluster_bytes) } else { (cluster_bytes, 0) };
        let tail_bytes = partial_bytes * MAX_WARPS;
        let x_bytes = chunks.checked_mul(chunk_bytes(rows))?.max(tail_bytes + over_x);

        let for_rings =
            caps.shared_bytes.checked_sub(STATIC_BYTES + head_bytes + separate)?.checked_sub(x_bytes)?;
        let most = if matrices == 2 && rows == 32 { WIDE_GATE_UP_WARPS } else { MAX_WARPS };
        let consumer_warps = (for_rings / (MIN_STAGES * stage_bytes)).min(most);
        if consumer_warps == 0 {
            return None;
        }
        let stages = (for_rings / (consumer_warps * stage_bytes)).min(MAX_STAGES);
        let end_of_head = x_bytes + consumer_warps * stages * stage_bytes + head_bytes;
        let flags = if head_per_tile { HEAD_PARTIALS_PER_TILE } else { 0 }
            | if overlay { PARTIALS_OVERLAY_X } else { 0 };
        Some(SharedMemory {
            consumer_warps,
            stages,
            stage_bytes,
            x_bytes,
            cluster_partials: if overlay { tail_bytes } else { end_of_head } | flags,
            bytes: end_of_head + separate,
        })
    }
}

#[cfg(test)]
mod tests {
    use fulmen_core::{GateActivation, WeightArg};

    use super::*;
    use crate::kernels::small_m::Matmul;

    const H200: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 62_914_560 };

    fn matmul(dtype: DType, rows: u32) -> Matmul {
        Matmul { weight: WeightArg { ptr: 256, dtype, rows }, out: 512, bias: 0, residual: 0 }
    }

    fn configured(
        matmuls: &[Matmul],
        first_format: usize,
        gate_up: bool,
        k: u32,
        rows: u32,
    ) -> Option<SmallMConfig> {
        let config = SmallMConfig::new(
            H200,
            k,
            &LaunchGroup { matmuls, first_format, gate_up, activation: GateActivation::Silu },
            rows,
        )?;
        let args = &config.args;
        assert!(config.shared + STATIC_BYTES <= H200.shared_bytes, "{config:?}");
        assert!((MIN_STAGES..=MAX_STAGES).contains(&args.stages), "{config:?}");
        assert!((1..=MAX_WARPS).contains(&args.consumer_warps), "{config:?}");
        assert!(config.clusters * args.cluster_size <= H200.multiprocessors);
        assert!(args.cluster_size <= args.k_chunks);
        assert!(args.x_bytes.is_multiple_of(128) && args.stage_bytes.is_multiple_of(128));
        assert!(args.x_bytes >= args.k_chunks.div_ceil(args.cluster_size) * chunk_bytes(rows));
        Some(config)
    }

    #[test]
    fn layers_of_real_models_have_a_configuration() {
        use DType::{IQ4_NL, IQ4_XS, MXFP4, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
        for rows in [8, 16] {
            for k in [2048, 2560, 3072, 4096, 5120, 8192] {
                for dtype in [Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, IQ4_NL, IQ4_XS] {
                    let config = configured(&[matmul(dtype, 4 * k)], 1, false, k, rows);
                    assert!(config.is_some_and(|config| config.args.consumer_warps >= 7), "{dtype} {k}");
                    let gate_up = [matmul(dtype, 3 * k); 2];
                    assert!(configured(&gate_up, 2, true, k, rows).is_some(), "{dtype} {k} gate-up");
                }
                let two_formats = [matmul(Q4_K, k), matmul(Q4_K, 1024), matmul(Q6_K, 1024)];
                let config = configured(&two_formats, 2, false, k, rows).unwrap();
                let first = config.args.first_format_clusters;
                assert!(first > 0 && first < config.clusters);
                assert_eq!(config.k_orders, [K_CONTIGUOUS, K_INTERLEAVED]);
            }
            for (k, n) in [(9728, 2560), (12288, 4096), (14336, 4096), (28672, 8192)] {
                for dtype in [Q4_K, Q6_K] {
                    let config = configured(&[matmul(dtype, n)], 1, false, k, rows).unwrap();
                    assert!(config.args.consumer_warps >= 8, "{k} {dtype}: {config:?}");
                }
            }
        }
    }

    #[test]
    fn a_layer_of_4b_runs_32_rows_at_once() {
        use DType::{Q4_K, Q6_K};
        let qkv = [matmul(Q4_K, 4096), matmul(Q4_K, 1024), matmul(Q6_K, 1024)];
        let cases: [(&[Matmul], _, _, _); 5] = [
            (&qkv, 2, false, 2560),
            (&[matmul(Q4_K, 2560)], 1, false, 4096),
            (&[matmul(Q4_K, 9728); 2], 2, true, 2560),
            (&[matmul(Q4_K, 2560)], 1, false, 9728),
            (&[matmul(Q6_K, 2560)], 1, false, 9728),
        ];
        for (matmuls, first_format, gate_up, k) in cases {
            let config = configured(matmuls, first_format, gate_up, k, 32).unwrap();
            assert!(config.args.consumer_warps >= 10, "{config:?}");
            let group = LaunchGroup { matmuls, first_format, gate_up, activation: GateActivation::Silu };
            assert!(choose(H200, 32, k, &[group]).is_some_and(|(rows, _)| rows == 32), "{config:?}");
        }
    }

    #[test]
    fn gate_and_up_share_a_stage() {
        let config = configured(&[matmul(DType::Q4_K, 9728); 2], 2, true, 2560, 16).unwrap();
        assert_eq!((config.args.stage_bytes, config.args.consumer_warps), (2 * 16 * 144, MAX_WARPS));
    }

    #[test]
    fn clusters_are_divided_by_time() {
        assert_eq!(divide_clusters(132, [160, 0], [2304, 2304]), Some((132, 0)));
        assert_eq!(divide_clusters(2, [100, 1], [1, 1]), Some((1, 1)));
        assert_eq!(divide_clusters(1, [1, 1], [1, 1]), None);
        // 320 tiles of four bits and 64 of six: four and two per cluster.
        let (first, rest) = divide_clusters(132, [320, 64], [2304, 3584]).unwrap();
        assert_eq!((320_u32.div_ceil(first), 64_u32.div_ceil(rest)), (4, 2));
    }

    #[test]
    fn there_are_no_more_clusters_than_shorten_the_longest_work() {
        // Rows, columns; clusters and their size.
        for ((n, k), expected) in [((2560, 9728), (27, 4)), ((2560, 4096), (54, 2)), ((6144, 2560), (128, 1))]
        {
            let config = configured(&[matmul(DType::Q4_K, n)], 1, false, k, 16).unwrap();
            assert_eq!((config.clusters, config.args.cluster_size), expected, "{n} x {k}");
        }
    }

    #[test]
    fn cluster_partials_of_many_tiles_overlay_x() {
        // Shapes of the op table.
        for (dtype, gate_up) in [(DType::Q4_K, false), (DType::Q6_K, false), (DType::Q4_K, true)] {
            let matmuls = [matmul(dtype, 17920); 2];
            let matmuls = if gate_up { &matmuls[..] } else { &matmuls[..1] };
            let config = configured(matmuls, matmuls.len(), gate_up, 6144, 16).unwrap();
            let overlay = config.args.cluster_partials & PARTIALS_OVERLAY_X > 0;
            assert!(config.args.cluster_size > 1 && overlay, "{config:?}");
        }
    }

    #[test]
    fn what_does_not_fit_in_16_rows_fits_in_8() {
        let matmuls = [matmul(DType::Q4_K, 8192)];
        assert!(configured(&matmuls, 1, false, 53248, 16).is_none());
        assert!(configured(&matmuls, 1, false, 53248, 8).is_some());
    }

    #[test]
    fn eight_rows_at_a_time_are_taken_where_that_is_faster() {
        let rows = |n: u32, k: u32, m: u32| {
            let matmuls = [matmul(DType::Q4_K, n); 2];
            let group = LaunchGroup {
                matmuls: &matmuls,
                first_format: 2,
                gate_up: true,
                activation: GateActivation::Silu,
            };
            choose(H200, m, k, &[group]).map(|(rows, _)| rows)
        };
        assert_eq!(rows(9728, 2560, 16), Some(16));
        assert_eq!(rows(9728, 2560, 8), Some(8));
        assert_eq!(rows(28672, 8192, 16), Some(8));
    }

    #[test]
    fn unaligned_weights_are_refused_where_rows_are_whole_vectors() {
        let mut unaligned = matmul(DType::Q4_K, 64);
        unaligned.weight.ptr = 264;
        assert!(configured(&[unaligned], 1, false, 256, 8).is_none());
        unaligned.weight.dtype = DType::Q6_K;
        assert!(configured(&[unaligned], 1, false, 256, 8).is_some());
    }

    #[test]
    fn one_row_of_one_block_is_enough() {
        let config = configured(&[matmul(DType::Q8_0, 1)], 1, false, 32, 8).unwrap();
        assert_eq!((config.clusters, config.args.cluster_size, config.args.k_chunks), (1, 1, 1));
    }
}
