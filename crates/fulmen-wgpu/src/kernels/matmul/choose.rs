//! Which kernel computes which shape.

use super::{COOP_TILES, CoopTile, GemmTile, GemvKn, GemvNk, Layout, MatmulShape, RowThreads, WeightType};
use crate::kernel::Caps;

/// A kernel and its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatmulConfig {
    /// GEMV or small-M GEMM, B as `[n, k]`.
    GemvNk(GemvNk),
    /// GEMV or small-M GEMM, B as `[k, n]`.
    GemvKn(GemvKn),
    /// Tiled GEMM in f32.
    Tiled(GemmTile),
    /// Cooperative-matrix GEMM.
    Coop(CoopTile),
    /// Tiled GEMM of both matmuls of a pair in one launch: a tile has columns of each.
    TiledPair(GemmTile),
}

impl std::fmt::Display for MatmulConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::GemvNk(choice) => choice.fmt(f),
            Self::GemvKn(choice) => choice.fmt(f),
            Self::Tiled(choice) => choice.fmt(f),
            Self::Coop(choice) => choice.fmt(f),
            Self::TiledPair(choice) => write!(f, "{choice} pair"),
        }
    }
}

/// Rows of A up to which the GEMV kernels are taken.
const SMALL_M: u32 = 8;

/// Multiprocessors that are assumed: wgpu does not report them. Those of the largest devices, since many
/// small workgroups cost a small device less than few large ones cost a large device.
const MULTIPROCESSORS: u32 = 132;

/// A tile and the fraction of a multiprocessor's arithmetic that it reaches: at full occupancy, and with one
/// subgroup for each of its four schedulers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The tile, unsplit.
    pub tile: GemmTile,
    /// The fraction at full occupancy.
    pub full: f64,
    /// The fraction with one subgroup for each scheduler.
    pub lone: f64,
}

const fn tile(b: [u32; 3], t: [u32; 2], stages: u32, unroll: u32, full: f64, lone: f64) -> Candidate {
    let ([bm, bn, bk], [tm, tn]) = (b, t);
    let tile = GemmTile { bm, bn, bk, tm, tn, stages, unroll, slices: 1, band: 8, swizzle: true };
    Candidate { tile, full, lone }
}

/// The tiles that [`choose`] takes from. The last ones are for small devices and small matmuls.
pub const TILES: [Candidate; 9] = [
    tile([128, 128, 16], [16, 8], 1, 16, 0.81, 0.42),
    tile([128, 128, 16], [8, 8], 1, 16, 0.785, 0.75),
    tile([64, 128, 16], [8, 8], 1, 16, 0.765, 0.45),
    tile([64, 64, 16], [8, 8], 1, 16, 0.73, 0.45),
    tile([32, 128, 32], [8, 8], 1, 8, 0.47, 0.48),
    tile([32, 128, 16], [8, 8], 1, 16, 0.44, 0.45),
    tile([16, 128, 32], [4, 8], 1, 8, 0.27, 0.29),
    tile([16, 64, 32], [4, 4], 2, 8, 0.25, 0.25),
    tile([16, 64, 16], [4, 8], 1, 16, 0.20, 0.20),
];

/// The kernel for a shape, or `None` where the device's workgroups are too small for all of them.
pub fn choose(shape: MatmulShape, caps: &Caps) -> Option<MatmulConfig> {
    match shape.b {
        _ if shape.m > SMALL_M => tiled(shape, caps, 1).map(MatmulConfig::Tiled),
        Layout::Nk => Some(MatmulConfig::GemvNk(rows_nk(shape, caps, 1))),
        Layout::Kn => Some(MatmulConfig::GemvKn(rows_kn(shape, caps))),
    }
}

/// As [`choose`], the same kernel for any number of rows, so that the order of its sums does not depend on
/// it. `None` where the device's workgroups are too small.
pub fn choose_batch_invariant(shape: MatmulShape, caps: &Caps) -> Option<MatmulConfig> {
    /// The rows of the smallest tiles.
    const ROWS: u32 = 16;
    tiled(MatmulShape { m: ROWS, ..shape }, caps, 1).map(MatmulConfig::Tiled)
}

/// The kernel for two matmuls of this shape with one A, or `None` as for [`choose`].
pub fn choose_pair(shape: MatmulShape, caps: &Caps) -> Option<MatmulConfig> {
    match shape.b {
        _ if shape.m > SMALL_M => tiled(shape, caps, 2).map(MatmulConfig::TiledPair),
        Layout::Nk => Some(MatmulConfig::GemvNk(rows_nk(shape, caps, 2))),
        Layout::Kn => choose(shape, caps),
    }
}

/// Rows of A from which cooperative matrices are faster than the other kernels, where a device has them.
pub(in crate::kernels) const COOP_ROWS: u32 = 256;

/// The kernel for a shape as [`choose`] names it, or the cooperative-matrix GEMM, which rounds A to f16,
/// where `round_a` allows that.
pub fn choose_rounded(shape: MatmulShape, round_a: bool, caps: &Caps) -> Option<MatmulConfig> {
    let allowed = round_a && shape.elem == WeightType::F16 && shape.b == Layout::Nk && shape.m >= COOP_ROWS;
    let coop = if allowed { coop_tile(shape, caps) } else { None };
    coop.map(MatmulConfig::Coop).or_else(|| choose(shape, caps))
}

/// The tile of the cooperative-matrix GEMM and the number of split-K slices with the lowest estimate. It
/// holds for block formats, too: the time goes into loading both operands into workgroup memory.
pub(in crate::kernels) fn coop_tile(shape: MatmulShape, caps: &Caps) -> Option<CoopTile> {
    /// Workgroups that run at once, two on a multiprocessor.
    const RUNNING: u64 = 2 * MULTIPROCESSORS as u64;
    /// Tiles, and the microseconds that a wave of them takes: a constant, and for each element of k.
    const TIMED: [(CoopTile, [f64; 2]); 3] =
        [(COOP_TILES[1], [8.0, 0.0465]), (COOP_TILES[3], [7.0, 0.0253]), (COOP_TILES[4], [2.0, 0.0163])];
    if [shape.m, shape.n, shape.k].contains(&0) {
        return None;
    }
    let room = fitting_slices(shape, caps).clamp(1, 8);
    let all = TIMED.into_iter().filter(|(tile, _)| tile.fits(caps)).flat_map(|(tile, times)| {
        (1..=room.min((shape.k / 512).max(1))).map(move |slices| (CoopTile { slices, ..tile }, times))
    });
    let estimate = |&(tile, [once, each]): &(CoopTile, [f64; 2])| {
        let slices = tile.used_slices(shape.k);
        let tiles = u64::from(shape.m.div_ceil(tile.bm)) * u64::from(shape.n.div_ceil(tile.bn));
        let waves = (tiles * u64::from(slices)).div_ceil(RUNNING) as f64;
        let k = f64::from(shape.k.div_ceil(slices).next_multiple_of(tile.bk));
        waves * (once + each * k) + slices_cost(shape, slices)
    };
    let best = all.min_by(|a, b| estimate(a).total_cmp(&estimate(b))).map(|(tile, _)| tile);
    best.or_else(|| COOP_TILES.iter().find(|tile| tile.fits(caps)).copied())
}

/// Microseconds for split-K: slices are written and read, and added by a launch of their own.
fn slices_cost(shape: MatmulShape, slices: u32) -> f64 {
    /// Bytes of slices, written and read, in a microsecond.
    const BYTES: f64 = 3.2e6;
    let values = f64::from(shape.m) * f64::from(shape.n);
    if slices > 1 { 4.0 + 8.0 * f64::from(slices) * values / BYTES } else { 0.0 }
}

/// Every kernel that is worth measuring for a shape, the one that [`choose_rounded`] names first. The
/// cooperative-matrix GEMM, which rounds A to f16, only where `round_a` allows that.
pub fn candidates(shape: MatmulShape, round_a: bool, caps: &Caps) -> Vec<MatmulConfig> {
    let mut all: Vec<MatmulConfig> = choose_rounded(shape, round_a, caps).into_iter().collect();
    all.extend(choose(shape, caps));
    if shape.m <= 16 {
        let slices = [1, 2, 4, 8, 16];
        match shape.b {
            Layout::Nk => all.extend(all_rows_nk(shape.m, caps).map(MatmulConfig::GemvNk)),
            Layout::Kn => {
                let MatmulConfig::GemvKn(base) = MatmulConfig::GemvKn(rows_kn(shape, caps)) else {
                    return all;
                };
                all.extend(slices.map(|slices| MatmulConfig::GemvKn(GemvKn { slices, ..base })));
            }
        }
    }
    if shape.m > 4 {
        let usable = TILES.iter().map(|c| c.tile).filter(|tile| tile.bm <= 16 || tile.bm < 2 * shape.m);
        for tile in usable {
            for slices in [1, 2, 3, 4, 5, 8, 10, 13] {
                all.push(MatmulConfig::Tiled(GemmTile { slices, ..tile }));
            }
        }
    }
    if round_a && shape.m > 8 && shape.elem == WeightType::F16 && shape.b == Layout::Nk {
        all.extend(coop_candidates(shape.m, caps).into_iter().map(MatmulConfig::Coop));
    }
    let room = fitting_slices(shape, caps);
    let mut seen = std::collections::HashSet::new();
    all.retain(|choice| {
        let slices = match choice {
            MatmulConfig::Tiled(tile) => tile.used_slices(shape.k),
            MatmulConfig::GemvKn(rows) => rows.used_slices(shape.k),
            MatmulConfig::Coop(coop) => coop.used_slices(shape.k),
            MatmulConfig::GemvNk(_) | MatmulConfig::TiledPair(_) => 1,
        };
        slices <= room.max(1) && seen.insert(*choice)
    });
    all
}

/// The tiles of the cooperative-matrix GEMM for `m` rows.
pub(in crate::kernels) fn coop_candidates(m: u32, caps: &Caps) -> Vec<CoopTile> {
    let fitting = COOP_TILES.iter().filter(|tile| tile.fits(caps) && (tile.bm <= 16 || tile.bm < 2 * m));
    fitting.flat_map(|tile| [1, 2, 4, 8].map(|slices| CoopTile { slices, ..*tile })).collect()
}

fn all_rows_nk(m: u32, caps: &Caps) -> impl Iterator<Item = GemvNk> {
    let (caps, most) = (*caps, power_of_two_below(caps.max_invocations));
    let threads = [64, 128, 256].into_iter().filter(move |&threads| threads <= most);
    threads.flat_map(move |threads| {
        let row_threads = match caps.subgroups {
            Some((min, max)) if min == max && threads.is_multiple_of(min) => RowThreads::Subgroup,
            Some((min, _)) if threads.is_multiple_of(min) => RowThreads::Workgroup,
            _ => RowThreads::Lanes(threads.min(32)),
        };
        let numbers = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)];
        numbers.into_iter().filter(move |(rows, _)| rows * m <= 64).map(move |(rows, unroll)| GemvNk {
            threads,
            rows,
            unroll,
            row_threads,
            fixed_k: false,
        })
    })
}

/// The configuration of [`GemvNk`], for `matmuls` matmuls with one A.
fn rows_nk(shape: MatmulShape, caps: &Caps, matmuls: u32) -> GemvNk {
    let most = power_of_two_below(caps.max_invocations);
    // As many threads share a row of B as read it in whole steps, so that there is no remainder loop.
    let loads = shape.k / 4;
    let whole = shape.k.is_multiple_of(4) && shape.m == 1;
    let shared = [128, 64].into_iter().find(|&t| t <= most && whole && loads.is_multiple_of(t));
    let few_columns = shape.n < 8 * MULTIPROCESSORS && shape.k >= 1024;
    if let (Some(threads), Some((min, _))) = (shared, caps.subgroups)
        && threads.is_multiple_of(min)
    {
        return GemvNk { threads, rows: 1, unroll: 1, row_threads: RowThreads::Workgroup, fixed_k: true };
    }
    let (threads, rows, unroll) = match shape.m {
        1 => (128, 2, 4),
        2 => (64, 2, 2),
        3..=4 => (256, 4, 1),
        _ => (128, 8, 1),
    };
    let threads = most.min(threads);
    let row_threads = match caps.subgroups {
        Some((min, max)) if min == max && threads.is_multiple_of(min) && !few_columns => RowThreads::Subgroup,
        Some((min, _)) if threads.is_multiple_of(min) => RowThreads::Workgroup,
        _ => RowThreads::Lanes(threads.min(32)),
    };
    GemvNk { threads, rows: rows / matmuls, unroll, row_threads, fixed_k: false }
}

fn rows_kn(shape: MatmulShape, caps: &Caps) -> GemvKn {
    let threads = power_of_two_below(caps.max_invocations.min(256).min(caps.workgroup_memory / 16));
    let lanes = threads.min(32);
    let groups = threads / lanes;
    let width = if shape.n.is_multiple_of(4) { 4 } else { 1 };
    let tiles = (shape.n / width).div_ceil(lanes);
    // Enough workgroups to fill the device twice, each with enough of k to pay for the reduction.
    let slices =
        (2 * MULTIPROCESSORS).div_ceil(tiles).min(shape.k / 64).min(fitting_slices(shape, caps)).max(1);
    GemvKn { lanes, groups, unroll: 4, slices }
}

/// Slices whose scratch can be bound.
fn fitting_slices(shape: MatmulShape, caps: &Caps) -> u32 {
    let slice = u64::from(shape.m) * u64::from(shape.n) * 4;
    u32::try_from(caps.max_binding / slice).unwrap_or(u32::MAX)
}

fn power_of_two_below(n: u32) -> u32 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

/// The tile and the number of split-K slices with the lowest estimate.
fn tiled(shape: MatmulShape, caps: &Caps, matmuls: u32) -> Option<GemmTile> {
    let fits = |tile: &GemmTile| {
        tile.threads() <= caps.max_invocations
            && tile.workgroup_bytes() <= caps.workgroup_memory
            && tile.tn.is_multiple_of(4 * matmuls)
            // No more idle rows than busy ones.
            && (tile.bm <= 16 || tile.bm < 2 * shape.m)
    };
    let mut best: Option<(f64, GemmTile)> = None;
    for candidate in TILES.iter().filter(|c| fits(&c.tile)) {
        let room = fitting_slices(shape, caps) / matmuls;
        let most = (candidate.tile.k_tiles(shape.k) / 8).min(16).min(room).max(1);
        for slices in 1..=most {
            let tile = GemmTile { slices, ..candidate.tile };
            let time = estimate(shape, &Candidate { tile, ..*candidate }, matmuls);
            if best.is_none_or(|(least, _)| time < least) {
                best = Some((time, tile));
            }
        }
    }
    best.map(|(_, tile)| tile)
}

/// Microseconds on a device with [`MULTIPROCESSORS`]: those of the one with the most workgroups, and the
/// second launch of split-K.
fn estimate(shape: MatmulShape, candidate: &Candidate, matmuls: u32) -> f64 {
    /// Operations of a multiprocessor in a microsecond.
    const RATE: f64 = 435e3;
    let Candidate { tile, full, lone } = *candidate;
    let slices = tile.used_slices(shape.k);
    let tiles = u64::from(shape.m.div_ceil(tile.bm)) * u64::from(shape.n.div_ceil(tile.bn / matmuls));
    let groups = (tiles * u64::from(slices)).div_ceil(MULTIPROCESSORS.into());
    let subgroups = u64::from(tile.threads().div_ceil(32));
    // Registers limit the subgroups of a multiprocessor; the last wave runs with fewer.
    let resident = (if tile.tm * tile.tn > 64 { 8 } else { 12 } / subgroups).max(1);
    let rest = groups % resident;
    // A scheduler with one subgroup takes as long as the four with one each.
    let per_scheduler = (rest * subgroups).div_ceil(4);
    let left = (per_scheduler * 4) as f64 / subgroups as f64;
    let reached = if per_scheduler <= 1 { lone } else { full };
    // Half a k-tile's time passes until the first one is loaded.
    let k = f64::from(tile.k_tiles(shape.k).div_ceil(slices) * tile.bk + tile.bk / 2);
    let work = 2.0 * f64::from(tile.bm) * f64::from(tile.bn) * k / RATE;
    let multiply = ((groups - rest) as f64 / full + left.max(rest as f64) / reached) * work;
    let both = MatmulShape { n: shape.n * matmuls, ..shape };
    // Slices also cost memory: they must pay for it.
    let memory = if slices > 1 { 0.02 * multiply } else { 0.0 };
    multiply + memory + slices_cost(both, slices)
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
