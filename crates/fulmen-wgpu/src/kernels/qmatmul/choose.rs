//! Which kernel multiplies by which weight: the table, and all that could be in it.

use super::plan::{Choice, part_rows};
use super::rows::{Rows, Team, Values};
use super::tiled::CodeTiles;
use super::{QuantWeight, format::Format};
use crate::kernel::Caps;
use crate::kernels::matmul::{self, Layout, MatmulShape};

/// Rows of A up to which W is streamed past them.
pub(super) const FEW_ROWS: u32 = 8;

/// Compute units that are assumed: wgpu does not tell. Those of the largest devices.
const UNITS: u32 = 132;

/// Products of codes in a microsecond, if nothing had to be loaded, and bytes of slices, written and read.
const PRODUCTS: f64 = 50e6;
const BYTES: f64 = 3.2e6;

/// Subgroups that fill such a device.
const SUBGROUPS: u32 = UNITS * 16;

const fn tiles(b: [u32; 2], t: [u32; 2], depth: u32) -> CodeTiles {
    CodeTiles { bm: b[0], bn: b[1], tm: t[0], tn: t[1], depth, slices: 1 }
}

/// The tiles from which [`choose`] takes. The last one is for small workgroups.
pub const TILES: [CodeTiles; 6] = [
    tiles([16, 64], [4, 2], 4),
    tiles([32, 64], [4, 4], 4),
    tiles([64, 64], [8, 4], 4),
    tiles([64, 128], [8, 4], 2),
    tiles([128, 128], [8, 8], 2),
    tiles([16, 32], [4, 4], 2),
];

/// The kernel for a weight and `m` rows of A, or `None` where the device's workgroups are too small for all of them.
pub fn choose(m: u32, weight: QuantWeight, values: Values, caps: &Caps) -> Option<Choice> {
    match values {
        _ if m <= FEW_ROWS => Some(Choice::Rows(few(m, weight, values, caps))),
        Values::Int8 => units(m, weight, caps)
            .or_else(|| code_tiles(m, weight, caps).map(Choice::Tiles))
            .or_else(|| dequantize(m, weight, caps)),
        Values::Float => dequantize(m, weight, caps),
    }
}

fn units(m: u32, weight: QuantWeight, caps: &Caps) -> Option<Choice> {
    let shape = MatmulShape::f32(m, weight.k, weight.n, Layout::Nk);
    let tile = if m >= matmul::UNITS_ROWS { matmul::units_tile(shape, caps) } else { None };
    tile.map(Choice::Coop)
}

fn dequantize(m: u32, weight: QuantWeight, caps: &Caps) -> Option<Choice> {
    let n = part_rows(weight, caps).min(weight.n);
    matmul::choose(MatmulShape::f32(m, weight.k, n, Layout::Nk), caps).map(Choice::Dequantize)
}

/// The numbers of [`Rows`].
pub(super) fn few(m: u32, weight: QuantWeight, values: Values, caps: &Caps) -> Rows {
    let threads = 1u32 << caps.max_invocations.clamp(8, 128).ilog2();
    // As few lanes as still fill the device: few sums to add up, and values of A that many lanes share. One row of A
    // leaves so little to do for each load that it takes more lanes to keep enough of them under way.
    let fewest: &[u32] = if m == 1 { &[16] } else { &[8, 16] };
    let rows = if weight.n >= 32 * SUBGROUPS { 2 } else { 1 };
    let enough = |lanes: &&u32| weight.n / rows / (32 / **lanes) >= SUBGROUPS;
    let wanted = fewest.iter().find(enough).copied().unwrap_or(32);
    let (lanes, team) = team(wanted, threads, caps);
    let unroll = if m <= 2 { 2 } else { 1 };
    Rows { values, threads, lanes, rows, unroll, team }
}

/// As [`few`], for workgroups that make 32 values each of `n`, which are too few to leave them small.
pub(super) fn few_as_items(m: u32, n: u32, caps: &Caps) -> Rows {
    let wanted = match m {
        1 if n / 2 < SUBGROUPS => 32,
        1 => 16,
        _ => 8,
    };
    let threads = 1u32 << caps.max_invocations.clamp(8, (32 * wanted).min(512)).ilog2();
    let (lanes, team) = team(wanted, threads, caps);
    let threads = threads.min(32 * lanes);
    Rows { values: Values::Int8, threads, lanes, rows: 1, unroll: if m <= 2 { 2 } else { 1 }, team }
}

/// Lanes, and how they add up, where `wanted` would be best.
fn team(wanted: u32, threads: u32, caps: &Caps) -> (u32, Team) {
    match caps.subgroups {
        Some((min, max)) if min >= 8 && threads.is_multiple_of(max) => (wanted.min(min), Team::Shuffle),
        _ => (wanted.min(threads), Team::Memory),
    }
}

fn fits(tile: &CodeTiles, caps: &Caps) -> bool {
    tile.threads() <= caps.max_invocations && tile.workgroup_bytes() <= caps.workgroup_memory
}

/// The tile, in so many slices of k, with the lowest estimate.
fn code_tiles(m: u32, weight: QuantWeight, caps: &Caps) -> Option<CodeTiles> {
    let fitting: Vec<&CodeTiles> = TILES.iter().filter(|tile| fits(tile, caps)).collect();
    // The last one has a workgroup of one subgroup: for devices that leave no other choice.
    let others = fitting.iter().filter(|tile| tile.bn > 32).count();
    let sliced = fitting.iter().filter(|tile| tile.bn > 32 || others == 0).map(|tile| {
        let groups = u64::from(m.div_ceil(tile.bm)) * u64::from(weight.n.div_ceil(tile.bn));
        (CodeTiles { slices: slices(tile, groups, m, weight, caps), ..**tile }, groups)
    });
    // Microseconds, on a device with as many units.
    let cost = |(tile, groups): &(CodeTiles, u64)| {
        let (tm, tn, slices) = (f64::from(tile.tm), f64::from(tile.tn), f64::from(tile.slices));
        // A thread loads tm + tn vectors for tm · tn products of them, each as long as about four loads.
        let loads = 1.0 + 4.0 * (tm + tn) / (tm * tn);
        let work = f64::from(tile.bm * tile.bn) * *groups as f64 * f64::from(weight.k) * loads / PRODUCTS;
        let filled = *groups as f64 * slices / f64::from(2 * UNITS);
        let values = f64::from(m) * f64::from(weight.n);
        let sums = if tile.slices > 1 { 4.0 + 8.0 * slices * values / BYTES } else { 0.0 };
        work / filled.min(1.0) + sums
    };
    sliced.min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|(tile, _)| tile)
}

/// Slices that give each unit some workgroups, each with enough of k to be worth its sums.
fn slices(tile: &CodeTiles, groups: u64, m: u32, weight: QuantWeight, caps: &Caps) -> u32 {
    let wanted = u64::from(3 * UNITS).div_ceil(groups.max(1));
    let slice = u64::from(m) * u64::from(weight.n) * 4;
    let room = caps.max_binding / slice.max(1);
    let worth = u64::from(weight.k / 32 / (4 * tile.depth));
    // At most 16.
    wanted.min(room).min(worth).clamp(1, 16) as u32
}

/// Every kernel that is worth measuring for a weight and `m` rows of A, the one that [`choose`] names first.
pub fn candidates(m: u32, weight: QuantWeight, values: Values, caps: &Caps) -> Vec<Choice> {
    let mut all: Vec<Choice> = choose(m, weight, values, caps).into_iter().collect();
    if Format::of(weight).is_err() {
        return Vec::new();
    }
    if m <= FEW_ROWS {
        for threads in [64, 128, 256] {
            for lanes in [8, 16, 32] {
                for (rows, unroll) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)] {
                    let (lanes, team) = team(lanes, threads, caps);
                    all.push(Choice::Rows(Rows { values, threads, lanes, rows, unroll, team }));
                }
            }
        }
    }
    if values == Values::Int8 && m > 4 {
        for tile in TILES.iter().filter(|tile| tile.bm <= 16 || tile.bm < 2 * m) {
            for depth in [2, 4] {
                for slices in [1, 2, 4, 8] {
                    all.push(Choice::Tiles(CodeTiles { depth, slices, ..*tile }));
                }
            }
        }
    }
    if m > FEW_ROWS {
        all.extend(dequantize(m, weight, caps));
        all.extend(
            (values == Values::Int8).then(|| code_tiles(m, weight, caps)).flatten().map(Choice::Tiles),
        );
        if values == Values::Int8 {
            all.extend(matmul::coop_candidates(m, caps).into_iter().map(Choice::Coop));
        }
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|choice| seen.insert(*choice));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmen_core::DType;

    fn large_device() -> Caps {
        Caps {
            subgroups: Some((32, 32)),
            f16: true,
            immediate_bytes: 256,
            cooperative_matrix: true,
            max_workgroups: 65_535,
            max_invocations: 1024,
            workgroup_memory: 48 << 10,
            max_binding: (2 << 30) - 4,
            max_buffer: 1 << 40,
            max_storage_buffers: 64,
            binding_alignment: 32,
        }
    }

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
            let device = Caps { cooperative_matrix: false, ..large_device() };
            let choice = choose(m, weight, Values::Int8, &device).unwrap();
            println!("m={m} {weight}: {choice}");
            let Choice::Tiles(tiles) = choice else { panic!("{choice}") };
            assert!(choice.to_string().contains(tile), "m={m} {weight}: {choice}");
            let groups = m.div_ceil(tiles.bm) * n.div_ceil(tiles.bn) * tiles.slices;
            assert!(groups >= UNITS, "m={m}: {choice}");
        }
    }

    #[test]
    fn many_rows_take_matrix_units_where_there_are_some() {
        let weight = QuantWeight { dtype: DType::Q4_K, n: 9728, k: 2560 };
        let units = |m, caps: &Caps| matches!(choose(m, weight, Values::Int8, caps), Some(Choice::Coop(_)));
        assert!(units(256, &large_device()) && units(2048, &large_device()));
        assert!(!units(128, &large_device()));
        assert!(!units(2048, &Caps { cooperative_matrix: false, ..large_device() }));
        assert!(!units(2048, &Caps { workgroup_memory: 4 << 10, ..large_device() }));
    }

    #[test]
    fn tiles_of_matrix_units_fill_the_rounds_of_the_device() {
        for (m, n, k, tile) in [
            (256, 4096, 2560, "64x64x64 by 32x32 slices=1"),
            (512, 9728, 2560, "64x128x32 by 32x32 slices=1"),
            (2048, 9728, 2560, "128x128x32 by 64x64 slices=1"),
            (2048, 4096, 2560, "128x128x32 by 64x64 slices=1"),
            (2048, 2560, 9728, "128x128x32 by 64x64 slices=4"),
            (256, 1024, 2560, "64x64x64 by 32x32 slices=4"),
        ] {
            let weight = QuantWeight { dtype: DType::Q4_K, n, k };
            let choice = choose(m, weight, Values::Int8, &large_device()).unwrap().to_string();
            assert!(choice.contains(tile), "m={m} {weight}: {choice}");
        }
    }

    #[test]
    fn one_row_takes_more_lanes_than_several() {
        let lanes = |m, n| match choose(
            m,
            QuantWeight { dtype: DType::Q4_0, n, k: 2560 },
            Values::Int8,
            &large_device(),
        ) {
            Some(Choice::Rows(rows)) => rows.lanes,
            other => panic!("{other:?}"),
        };
        assert_eq!((lanes(1, 151_936), lanes(2, 151_936), lanes(1, 2560)), (16, 8, 32));
    }
}
