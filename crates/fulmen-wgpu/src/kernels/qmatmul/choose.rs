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

/// Subgroups that fill such a device.
const SUBGROUPS: u32 = UNITS * 16;

const fn tiles(b: [u32; 2], t: [u32; 2], depth: u32) -> CodeTiles {
    CodeTiles { bm: b[0], bn: b[1], tm: t[0], tn: t[1], depth, slices: 1 }
}

/// The tiles from which [`choose`] takes, by the rows of A that they are for.
pub const TILES: [CodeTiles; 6] = [
    tiles([16, 64], [4, 2], 4),
    tiles([32, 64], [4, 4], 4),
    tiles([64, 64], [8, 4], 4),
    tiles([64, 128], [8, 4], 2),
    tiles([128, 128], [8, 8], 2),
    // For small workgroups.
    tiles([16, 32], [4, 4], 2),
];

/// The kernel for a weight and `m` rows of A, or `None` where the device's workgroups are too small for all of them.
pub fn choose(m: u32, weight: QuantWeight, values: Values, caps: &Caps) -> Option<Choice> {
    match values {
        _ if m <= FEW_ROWS => Some(Choice::Rows(few(m, weight, values, caps))),
        Values::Int8 => {
            code_tiles(m, weight, caps).map(Choice::Tiles).or_else(|| dequantize(m, weight, caps))
        }
        Values::Float => dequantize(m, weight, caps),
    }
}

fn dequantize(m: u32, weight: QuantWeight, caps: &Caps) -> Option<Choice> {
    let n = part_rows(weight, caps).min(weight.n);
    matmul::choose(MatmulShape::f32(m, weight.k, n, Layout::Nk), caps).map(Choice::Dequantize)
}

/// The numbers of [`Rows`].
fn few(m: u32, weight: QuantWeight, values: Values, caps: &Caps) -> Rows {
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

/// The tile whose rows are used best, in as many slices of k as fill the device.
fn code_tiles(m: u32, weight: QuantWeight, caps: &Caps) -> Option<CodeTiles> {
    let groups = |tile: &CodeTiles| u64::from(m.div_ceil(tile.bm)) * u64::from(weight.n.div_ceil(tile.bn));
    let usable = TILES.iter().filter(|tile| fits(tile, caps));
    // Rows that are computed in vain, first; then the largest tile of which there are enough.
    let tile = usable.min_by_key(|tile| {
        let rows = m.div_ceil(tile.bm) * tile.bm;
        let enough = groups(tile) >= u64::from(2 * UNITS);
        (rows, !enough, if enough { u32::MAX - tile.bm * tile.bn } else { tile.bm * tile.bn })
    })?;
    let slices = slices(tile, groups(tile), m, weight, caps);
    Some(CodeTiles { slices, ..*tile })
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
        if values == Values::Int8 {
            all.extend(matmul::coop_candidates(m, caps).into_iter().map(Choice::Coop));
        }
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|choice| seen.insert(*choice));
    all
}
