//! Which kernel computes a matmul with which weight: the table, and all candidates.

use super::gemm_int8::Int8Tile;
use super::gemv::{Activations, LaneSum, QuantGemv};
use super::launches::{QuantMatmulConfig, chunk_rows};
use super::{QuantWeight, format::Format};
use crate::kernel::Caps;
use crate::kernels::matmul::{self, Layout, MatmulShape};

/// QuantGemv of A up to which W is streamed past them.
const SMALL_M: u32 = 8;

/// Multiprocessors that are assumed: wgpu does not report them. Those of the largest devices.
const MULTIPROCESSORS: u32 = 132;

/// int8 multiply-adds in a microsecond without loads, and bytes of split-K slices, written and read.
const INT8_PRODUCTS: f64 = 50e6;
const BYTES: f64 = 3.2e6;

/// Subgroups that fill such a device.
const SUBGROUPS: u32 = MULTIPROCESSORS * 16;

const fn tiles(b: [u32; 2], t: [u32; 2], depth: u32) -> Int8Tile {
    Int8Tile { bm: b[0], bn: b[1], tm: t[0], tn: t[1], depth, slices: 1 }
}

/// The tiles that [`choose`] takes from. The last one is for small workgroups.
pub const TILES: [Int8Tile; 6] = [
    tiles([16, 64], [4, 2], 4),
    tiles([32, 64], [4, 4], 4),
    tiles([64, 64], [8, 4], 4),
    tiles([64, 128], [8, 4], 2),
    tiles([128, 128], [8, 8], 2),
    tiles([16, 32], [4, 4], 2),
];

/// The kernel for a weight and `m` rows of A, or `None` where the device's workgroups are too small for all
/// of them.
pub fn choose(
    m: u32,
    weight: QuantWeight,
    activations: Activations,
    caps: &Caps,
) -> Option<QuantMatmulConfig> {
    match activations {
        _ if m <= SMALL_M => Some(QuantMatmulConfig::Gemv(gemv(m, weight, activations, caps))),
        Activations::Q8 => coop(m, weight, caps)
            .or_else(|| int8_tile(m, weight, caps).map(QuantMatmulConfig::Int8))
            .or_else(|| dequantize(m, weight, caps)),
        Activations::F32 => dequantize(m, weight, caps),
    }
}

/// As [`choose`], for a kernel whose sums have an order that does not depend on `m`: the int8 GEMM adds one
/// block of k after the other, whatever its tile is, and the split of k depends on the weight alone. `None`
/// where the device's workgroups are too small.
pub fn choose_batch_invariant(m: u32, weight: QuantWeight, caps: &Caps) -> Option<QuantMatmulConfig> {
    // Tiles with the same k-tiles, and so with the same ends of slices.
    let [small, .., last] = TILES;
    let mut tiles: Vec<&Int8Tile> =
        TILES.iter().filter(|tile| tile.depth == small.depth && fits(tile, caps)).collect();
    if tiles.is_empty() && fits(&last, caps) {
        tiles.push(&TILES[TILES.len() - 1]);
    }
    let tile = tiles.iter().find(|tile| tile.bm >= m).or(tiles.last())?;
    let groups = u64::from(weight.n.div_ceil(small.bn));
    let slices = slices(tile, groups, 1, weight, caps);
    Some(QuantMatmulConfig::Int8(Int8Tile { slices, ..**tile }))
}

fn coop(m: u32, weight: QuantWeight, caps: &Caps) -> Option<QuantMatmulConfig> {
    let shape = MatmulShape::f32(m, weight.k, weight.n, Layout::Nk);
    let tile = if m >= matmul::COOP_ROWS { matmul::coop_tile(shape, caps) } else { None };
    tile.map(QuantMatmulConfig::Coop)
}

fn dequantize(m: u32, weight: QuantWeight, caps: &Caps) -> Option<QuantMatmulConfig> {
    let n = chunk_rows(weight, caps).min(weight.n);
    matmul::choose(MatmulShape::f32(m, weight.k, n, Layout::Nk), caps).map(QuantMatmulConfig::Dequantize)
}

/// The configuration of [`QuantGemv`].
pub(super) fn gemv(m: u32, weight: QuantWeight, activations: Activations, caps: &Caps) -> QuantGemv {
    let threads = 1u32 << caps.max_invocations.clamp(8, 128).ilog2();
    // As few lanes as still fill the device: few sums to add, and values of A that many lanes share. One row
    // of A leaves so little arithmetic for each load that it takes more lanes to keep enough loads in flight.
    let fewest: &[u32] = if m == 1 { &[16] } else { &[8, 16] };
    let rows = if weight.n >= 32 * SUBGROUPS { 2 } else { 1 };
    let enough = |lanes: &&u32| weight.n / rows / (32 / **lanes) >= SUBGROUPS;
    let wanted = fewest.iter().find(enough).copied().unwrap_or(32);
    let (lanes, lane_sum) = lane_sum(wanted, threads, caps);
    let unroll = if m <= 2 { 2 } else { 1 };
    QuantGemv { activations, threads, lanes, rows, unroll, lane_sum }
}

/// As [`gemv`], for workgroups that each compute 32 of `n` columns: so few workgroups must be large.
pub(super) fn gemv_for_blocks(m: u32, n: u32, caps: &Caps) -> QuantGemv {
    let wanted = match m {
        1 if n / 2 < SUBGROUPS => 32,
        1 => 16,
        _ => 8,
    };
    let threads = 1u32 << caps.max_invocations.clamp(8, (32 * wanted).min(512)).ilog2();
    let (lanes, lane_sum) = lane_sum(wanted, threads, caps);
    let threads = threads.min(32 * lanes);
    QuantGemv {
        activations: Activations::Q8,
        threads,
        lanes,
        rows: 1,
        unroll: if m <= 2 { 2 } else { 1 },
        lane_sum,
    }
}

/// Lanes, and how they add their sums, where `wanted` would be best.
fn lane_sum(wanted: u32, threads: u32, caps: &Caps) -> (u32, LaneSum) {
    match caps.subgroups {
        Some((min, max)) if min >= 8 && threads.is_multiple_of(max) => (wanted.min(min), LaneSum::Shuffle),
        _ => (wanted.min(threads), LaneSum::Memory),
    }
}

fn fits(tile: &Int8Tile, caps: &Caps) -> bool {
    tile.threads() <= caps.max_invocations && tile.workgroup_bytes() <= caps.workgroup_memory
}

/// The tile and the number of split-K slices with the lowest estimate.
fn int8_tile(m: u32, weight: QuantWeight, caps: &Caps) -> Option<Int8Tile> {
    let fitting: Vec<&Int8Tile> = TILES.iter().filter(|tile| fits(tile, caps)).collect();
    // The last one has a workgroup of one subgroup: for devices without another choice.
    let others = fitting.iter().filter(|tile| tile.bn > 32).count();
    let sliced = fitting.iter().filter(|tile| tile.bn > 32 || others == 0).map(|tile| {
        let groups = u64::from(m.div_ceil(tile.bm)) * u64::from(weight.n.div_ceil(tile.bn));
        (Int8Tile { slices: slices(tile, groups, m, weight, caps), ..**tile }, groups)
    });
    // Microseconds, on a device with as many multiprocessors.
    let cost = |(tile, groups): &(Int8Tile, u64)| {
        let (tm, tn, slices) = (f64::from(tile.tm), f64::from(tile.tn), f64::from(tile.slices));
        // A thread loads tm + tn vectors for tm · tn products of them, each as long as about four loads.
        let loads = 1.0 + 4.0 * (tm + tn) / (tm * tn);
        let work =
            f64::from(tile.bm * tile.bn) * *groups as f64 * f64::from(weight.k) * loads / INT8_PRODUCTS;
        let filled = *groups as f64 * slices / f64::from(2 * MULTIPROCESSORS);
        let values = f64::from(m) * f64::from(weight.n);
        let sums = if tile.slices > 1 { 4.0 + 8.0 * slices * values / BYTES } else { 0.0 };
        work / filled.min(1.0) + sums
    };
    sliced.min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|(tile, _)| tile)
}

/// Slices that give each multiprocessor some workgroups, each with enough of k to pay for the reduction.
fn slices(tile: &Int8Tile, groups: u64, m: u32, weight: QuantWeight, caps: &Caps) -> u32 {
    let wanted = u64::from(3 * MULTIPROCESSORS).div_ceil(groups.max(1));
    let slice = u64::from(m) * u64::from(weight.n) * 4;
    let room = caps.max_binding / slice.max(1);
    let worth = u64::from(weight.k / 32 / (4 * tile.depth));
    // At most 16.
    wanted.min(room).min(worth).clamp(1, 16) as u32
}

/// Every kernel that is worth measuring for a weight and `m` rows of A, the one that [`choose`] names first.
pub fn candidates(
    m: u32,
    weight: QuantWeight,
    activations: Activations,
    caps: &Caps,
) -> Vec<QuantMatmulConfig> {
    let mut all: Vec<QuantMatmulConfig> = choose(m, weight, activations, caps).into_iter().collect();
    if Format::of(weight).is_err() {
        return Vec::new();
    }
    if m <= SMALL_M {
        for threads in [64, 128, 256] {
            for lanes in [8, 16, 32] {
                for (rows, unroll) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)] {
                    let (lanes, lane_sum) = lane_sum(lanes, threads, caps);
                    all.push(QuantMatmulConfig::Gemv(QuantGemv {
                        activations,
                        threads,
                        lanes,
                        rows,
                        unroll,
                        lane_sum,
                    }));
                }
            }
        }
    }
    if activations == Activations::Q8 && m > 4 {
        for tile in TILES.iter().filter(|tile| tile.bm <= 16 || tile.bm < 2 * m) {
            for depth in [2, 4] {
                for slices in [1, 2, 4, 8] {
                    all.push(QuantMatmulConfig::Int8(Int8Tile { depth, slices, ..*tile }));
                }
            }
        }
    }
    if m > SMALL_M {
        all.extend(dequantize(m, weight, caps));
        all.extend(
            (activations == Activations::Q8)
                .then(|| int8_tile(m, weight, caps))
                .flatten()
                .map(QuantMatmulConfig::Int8),
        );
        if activations == Activations::Q8 {
            all.extend(matmul::coop_candidates(m, caps).into_iter().map(QuantMatmulConfig::Coop));
        }
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|config| seen.insert(*config));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmen_core::DType;

    #[test]
    fn rows_of_a_fill_their_tiles_and_tiles_fill_the_device() {
        for (m, n, k, tile) in [
            (9, 9728, 2560, "16x64"),
            (16, 9728, 2560, "16x64"),
            (32, 9728, 2560, "32x64"),
            (64, 9728, 2560, "64x64"),
            (128, 9728, 2560, "x"),
            (512, 9728, 2560, "128x128"),
            (2048, 9728, 2560, "128x128"),
        ] {
            let weight = QuantWeight { dtype: DType::Q4_K, n, k };
            let device = Caps { cooperative_matrix: false, ..Caps::large_device() };
            let config = choose(m, weight, Activations::Q8, &device).unwrap();
            println!("m={m} {weight}: {config}");
            let QuantMatmulConfig::Int8(tiles) = config else { panic!("{config}") };
            assert!(config.to_string().contains(tile), "m={m} {weight}: {config}");
            let groups = m.div_ceil(tiles.bm) * n.div_ceil(tiles.bn) * tiles.slices;
            assert!(groups >= MULTIPROCESSORS, "m={m}: {config}");
        }
    }

    #[test]
    fn many_rows_take_cooperative_matrices_where_there_are_some() {
        let weight = QuantWeight { dtype: DType::Q4_K, n: 9728, k: 2560 };
        let coop = |m, caps: &Caps| {
            matches!(choose(m, weight, Activations::Q8, caps), Some(QuantMatmulConfig::Coop(_)))
        };
        assert!(coop(256, &Caps::large_device()) && coop(2048, &Caps::large_device()));
        assert!(!coop(128, &Caps::large_device()));
        assert!(!coop(2048, &Caps { cooperative_matrix: false, ..Caps::large_device() }));
        assert!(!coop(2048, &Caps { workgroup_memory: 4 << 10, ..Caps::large_device() }));
    }

    #[test]
    fn cooperative_matrix_tiles_fill_the_waves_of_the_device() {
        for (m, n, k, tile) in [
            (256, 4096, 2560, "64x64x64 by 32x32 slices=1"),
            (512, 9728, 2560, "64x128x32 by 32x32 slices=1"),
            (2048, 9728, 2560, "128x128x32 by 64x64 slices=1"),
            (2048, 4096, 2560, "128x128x32 by 64x64 slices=1"),
            (2048, 2560, 9728, "128x128x32 by 64x64 slices=4"),
            (256, 1024, 2560, "64x64x64 by 32x32 slices=4"),
        ] {
            let weight = QuantWeight { dtype: DType::Q4_K, n, k };
            let config = choose(m, weight, Activations::Q8, &Caps::large_device()).unwrap().to_string();
            assert!(config.contains(tile), "m={m} {weight}: {config}");
        }
    }

    #[test]
    fn one_row_takes_more_lanes_than_several() {
        let lanes = |m, n| match choose(
            m,
            QuantWeight { dtype: DType::Q4_0, n, k: 2560 },
            Activations::Q8,
            &Caps::large_device(),
        ) {
            Some(QuantMatmulConfig::Gemv(rows)) => rows.lanes,
            other => panic!("{other:?}"),
        };
        assert_eq!((lanes(1, 151_936), lanes(2, 151_936), lanes(1, 2560)), (16, 8, 32));
    }
}
