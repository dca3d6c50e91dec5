//! Which kernel multiplies which shape.

use super::{COOP_TILES, Coop, Layout, MatmulShape, RowsKn, RowsNk, Team, Tiled, WeightType};
use crate::kernel::Caps;

/// A kernel and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelChoice {
    /// Few rows of A, B as `[n, k]`.
    RowsNk(RowsNk),
    /// Few rows of A, B as `[k, n]`.
    RowsKn(RowsKn),
    /// Many rows of A.
    Tiled(Tiled),
    /// Many rows of A on matrix units.
    Coop(Coop),
    /// Many rows of A, both products of a pair in one launch: a tile has columns of each.
    TiledPair(Tiled),
}

impl std::fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RowsNk(choice) => choice.fmt(f),
            Self::RowsKn(choice) => choice.fmt(f),
            Self::Tiled(choice) => choice.fmt(f),
            Self::Coop(choice) => choice.fmt(f),
            Self::TiledPair(choice) => write!(f, "{choice} pair"),
        }
    }
}

/// Rows of A up to which B is streamed past them.
const FEW_ROWS: u32 = 8;

/// Compute units that are assumed: wgpu does not tell. Those of the largest devices, since many small workgroups cost a
/// small device less than few large ones cost a large device.
const UNITS: u32 = 132;

/// A tile and the shares of a unit's arithmetic that it reaches: where the unit is full, and where each of its four
/// schedulers has one subgroup only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The tile, unsplit.
    pub tile: Tiled,
    /// The share of a full unit.
    pub full: f64,
    /// The share of a unit with one subgroup for each scheduler.
    pub lone: f64,
}

const fn tile(b: [u32; 3], t: [u32; 2], stages: u32, unroll: u32, full: f64, lone: f64) -> Candidate {
    let ([bm, bn, bk], [tm, tn]) = (b, t);
    let tile = Tiled { bm, bn, bk, tm, tn, stages, unroll, slices: 1, band: 8, swizzle: true };
    Candidate { tile, full, lone }
}

/// The tiles from which [`choose`] takes. The last ones are for small devices and small products.
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
pub fn choose(shape: MatmulShape, caps: &Caps) -> Option<KernelChoice> {
    match shape.b {
        _ if shape.m > FEW_ROWS => tiled(shape, caps, 1).map(KernelChoice::Tiled),
        Layout::Nk => Some(KernelChoice::RowsNk(rows_nk(shape, caps, 1))),
        Layout::Kn => Some(KernelChoice::RowsKn(rows_kn(shape, caps))),
    }
}

/// The kernel for two products of this shape with one A, or `None` as for [`choose`].
pub fn choose_pair(shape: MatmulShape, caps: &Caps) -> Option<KernelChoice> {
    match shape.b {
        _ if shape.m > FEW_ROWS => tiled(shape, caps, 2).map(KernelChoice::TiledPair),
        Layout::Nk => Some(KernelChoice::RowsNk(rows_nk(shape, caps, 2))),
        Layout::Kn => choose(shape, caps),
    }
}

/// Rows of A from which matrix units are faster than the other kernels, where a device has them.
pub(in crate::kernels) const UNITS_ROWS: u32 = 256;

/// The kernel for a shape as [`choose`] names it, or one on matrix units, which rounds A to 16 bits, where `half` allows that.
pub fn choose_half(shape: MatmulShape, half: bool, caps: &Caps) -> Option<KernelChoice> {
    let units = half && shape.elem == WeightType::F16 && shape.b == Layout::Nk && shape.m >= UNITS_ROWS;
    let coop = if units { units_tile(shape, caps) } else { None };
    coop.map(KernelChoice::Coop).or_else(|| choose(shape, caps))
}

/// The tile of matrix units, in so many slices, with the lowest estimate, which holds for block formats, too: what takes time is
/// bringing both sides into workgroup memory.
pub(in crate::kernels) fn units_tile(shape: MatmulShape, caps: &Caps) -> Option<Coop> {
    /// Workgroups of such tiles that run at once, two a unit.
    const RUNNING: u64 = 2 * UNITS as u64;
    /// Tiles, and the microseconds that so many of them take, whatever k is and for an element of k.
    const TIMED: [(Coop, [f64; 2]); 3] =
        [(COOP_TILES[1], [8.0, 0.0465]), (COOP_TILES[3], [7.0, 0.0253]), (COOP_TILES[4], [2.0, 0.0163])];
    if [shape.m, shape.n, shape.k].contains(&0) {
        return None;
    }
    let room = fitting_slices(shape, caps).clamp(1, 8);
    let all = TIMED.into_iter().filter(|(tile, _)| tile.fits(caps)).flat_map(|(tile, times)| {
        (1..=room.min((shape.k / 512).max(1))).map(move |slices| (Coop { slices, ..tile }, times))
    });
    let estimate = |&(tile, [once, each]): &(Coop, [f64; 2])| {
        let slices = tile.used_slices(shape.k);
        let tiles = u64::from(shape.m.div_ceil(tile.bm)) * u64::from(shape.n.div_ceil(tile.bn));
        let rounds = (tiles * u64::from(slices)).div_ceil(RUNNING) as f64;
        let k = f64::from(shape.k.div_ceil(slices).next_multiple_of(tile.bk));
        rounds * (once + each * k) + slices_cost(shape, slices)
    };
    let best = all.min_by(|a, b| estimate(a).total_cmp(&estimate(b))).map(|(tile, _)| tile);
    best.or_else(|| COOP_TILES.iter().find(|tile| tile.fits(caps)).copied())
}

/// Microseconds for slices: they are written and read, and added up by a launch of their own.
fn slices_cost(shape: MatmulShape, slices: u32) -> f64 {
    /// Bytes of slices, written and read, in a microsecond.
    const BYTES: f64 = 3.2e6;
    let values = f64::from(shape.m) * f64::from(shape.n);
    if slices > 1 { 4.0 + 8.0 * f64::from(slices) * values / BYTES } else { 0.0 }
}

/// Every kernel that is worth measuring for a shape, the one that [`choose_half`] names first. Matrix units, which round A
/// to 16 bits, only where `half` allows that.
pub fn candidates(shape: MatmulShape, half: bool, caps: &Caps) -> Vec<KernelChoice> {
    let mut all: Vec<KernelChoice> = choose_half(shape, half, caps).into_iter().collect();
    all.extend(choose(shape, caps));
    if shape.m <= 16 {
        let slices = [1, 2, 4, 8, 16];
        match shape.b {
            Layout::Nk => all.extend(all_rows_nk(shape.m, caps).map(KernelChoice::RowsNk)),
            Layout::Kn => {
                let KernelChoice::RowsKn(base) = KernelChoice::RowsKn(rows_kn(shape, caps)) else {
                    return all;
                };
                all.extend(slices.map(|slices| KernelChoice::RowsKn(RowsKn { slices, ..base })));
            }
        }
    }
    if shape.m > 4 {
        let usable = TILES.iter().map(|c| c.tile).filter(|tile| tile.bm <= 16 || tile.bm < 2 * shape.m);
        for tile in usable {
            for slices in [1, 2, 3, 4, 5, 8, 10, 13] {
                all.push(KernelChoice::Tiled(Tiled { slices, ..tile }));
            }
        }
    }
    if half && shape.m > 8 && shape.elem == WeightType::F16 && shape.b == Layout::Nk {
        all.extend(coop_candidates(shape.m, caps).into_iter().map(KernelChoice::Coop));
    }
    let room = fitting_slices(shape, caps);
    let mut seen = std::collections::HashSet::new();
    all.retain(|choice| {
        let slices = match choice {
            KernelChoice::Tiled(tile) => tile.used_slices(shape.k),
            KernelChoice::RowsKn(rows) => rows.used_slices(shape.k),
            KernelChoice::Coop(coop) => coop.used_slices(shape.k),
            KernelChoice::RowsNk(_) | KernelChoice::TiledPair(_) => 1,
        };
        slices <= room.max(1) && seen.insert(*choice)
    });
    all
}

/// The tiles of matrix units for `m` rows.
pub(in crate::kernels) fn coop_candidates(m: u32, caps: &Caps) -> Vec<Coop> {
    let fitting = COOP_TILES.iter().filter(|tile| tile.fits(caps) && (tile.bm <= 16 || tile.bm < 2 * m));
    fitting.flat_map(|tile| [1, 2, 4, 8].map(|slices| Coop { slices, ..*tile })).collect()
}

fn all_rows_nk(m: u32, caps: &Caps) -> impl Iterator<Item = RowsNk> {
    let (caps, most) = (*caps, power_of_two_below(caps.max_invocations));
    let threads = [64, 128, 256].into_iter().filter(move |&threads| threads <= most);
    threads.flat_map(move |threads| {
        let team = match caps.subgroups {
            Some((min, max)) if min == max && threads.is_multiple_of(min) => Team::Subgroup,
            Some((min, _)) if threads.is_multiple_of(min) => Team::Workgroup,
            _ => Team::Lanes(threads.min(32)),
        };
        let numbers = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)];
        numbers.into_iter().filter(move |(rows, _)| rows * m <= 64).map(move |(rows, unroll)| RowsNk {
            threads,
            rows,
            unroll,
            team,
            fixed_k: false,
        })
    })
}

/// The numbers of [`RowsNk`], for `products` products with one A.
fn rows_nk(shape: MatmulShape, caps: &Caps, products: u32) -> RowsNk {
    let most = power_of_two_below(caps.max_invocations);
    // A row of B is shared by as many threads as read it in whole steps, so that nothing is left for a second loop.
    let loads = shape.k / 4;
    let whole = shape.k.is_multiple_of(4) && shape.m == 1;
    let shared = [128, 64].into_iter().find(|&t| t <= most && whole && loads.is_multiple_of(t));
    let few = shape.n < 8 * UNITS && shape.k >= 1024;
    if let (Some(threads), Some((min, _))) = (shared, caps.subgroups)
        && threads.is_multiple_of(min)
    {
        return RowsNk { threads, rows: 1, unroll: 1, team: Team::Workgroup, fixed_k: true };
    }
    let (threads, rows, unroll) = match shape.m {
        1 => (128, 2, 4),
        2 => (64, 2, 2),
        3..=4 => (256, 4, 1),
        _ => (128, 8, 1),
    };
    let threads = most.min(threads);
    let team = match caps.subgroups {
        Some((min, max)) if min == max && threads.is_multiple_of(min) && !few => Team::Subgroup,
        Some((min, _)) if threads.is_multiple_of(min) => Team::Workgroup,
        _ => Team::Lanes(threads.min(32)),
    };
    RowsNk { threads, rows: rows / products, unroll, team, fixed_k: false }
}

fn rows_kn(shape: MatmulShape, caps: &Caps) -> RowsKn {
    let threads = power_of_two_below(caps.max_invocations.min(256).min(caps.workgroup_memory / 16));
    let lanes = threads.min(32);
    let groups = threads / lanes;
    let width = if shape.n.is_multiple_of(4) { 4 } else { 1 };
    let tiles = (shape.n / width).div_ceil(lanes);
    // Enough workgroups to fill the device twice, each with enough of k to be worth its sums.
    let slices = (2 * UNITS).div_ceil(tiles).min(shape.k / 64).min(fitting_slices(shape, caps)).max(1);
    RowsKn { lanes, groups, unroll: 4, slices }
}

/// Slices for which scratch can be bound.
fn fitting_slices(shape: MatmulShape, caps: &Caps) -> u32 {
    let slice = u64::from(shape.m) * u64::from(shape.n) * 4;
    u32::try_from(caps.max_binding / slice).unwrap_or(u32::MAX)
}

fn power_of_two_below(n: u32) -> u32 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

/// The tile and the number of slices with the lowest estimate.
fn tiled(shape: MatmulShape, caps: &Caps, products: u32) -> Option<Tiled> {
    let fits = |tile: &Tiled| {
        tile.threads() <= caps.max_invocations
            && tile.workgroup_bytes() <= caps.workgroup_memory
            && tile.tn.is_multiple_of(4 * products)
            // Not more rows idle than busy.
            && (tile.bm <= 16 || tile.bm < 2 * shape.m)
    };
    let mut best: Option<(f64, Tiled)> = None;
    for candidate in TILES.iter().filter(|c| fits(&c.tile)) {
        let room = fitting_slices(shape, caps) / products;
        let most = (candidate.tile.slabs(shape.k) / 8).min(16).min(room).max(1);
        for slices in 1..=most {
            let tile = Tiled { slices, ..candidate.tile };
            let time = estimate(shape, &Candidate { tile, ..*candidate }, products);
            if best.is_none_or(|(least, _)| time < least) {
                best = Some((time, tile));
            }
        }
    }
    best.map(|(_, tile)| tile)
}

/// Microseconds on a device with [`UNITS`] units: what the unit with the most workgroups takes, and the second launch of
/// split sums.
fn estimate(shape: MatmulShape, candidate: &Candidate, products: u32) -> f64 {
    /// Operations of a unit in a microsecond.
    const RATE: f64 = 435e3;
    let Candidate { tile, full, lone } = *candidate;
    let slices = tile.used_slices(shape.k);
    let tiles = u64::from(shape.m.div_ceil(tile.bm)) * u64::from(shape.n.div_ceil(tile.bn / products));
    let groups = (tiles * u64::from(slices)).div_ceil(UNITS.into());
    let subgroups = u64::from(tile.threads().div_ceil(32));
    // Registers limit the subgroups of a unit; what is left after whole rounds of them runs with fewer.
    let resident = (if tile.tm * tile.tn > 64 { 8 } else { 12 } / subgroups).max(1);
    let rest = groups % resident;
    // A scheduler with one subgroup takes as long as the four with one each.
    let rounds = (rest * subgroups).div_ceil(4);
    let left = (rounds * 4) as f64 / subgroups as f64;
    let share = if rounds <= 1 { lone } else { full };
    // Half a slab's time passes until the first one is there.
    let k = f64::from(tile.slabs(shape.k).div_ceil(slices) * tile.bk + tile.bk / 2);
    let work = 2.0 * f64::from(tile.bm) * f64::from(tile.bn) * k / RATE;
    let multiply = ((groups - rest) as f64 / full + left.max(rest as f64) / share) * work;
    let both = MatmulShape { n: shape.n * products, ..shape };
    // Slices also cost memory: they have to be worth it.
    let memory = if slices > 1 { 0.02 * multiply } else { 0.0 };
    multiply + memory + slices_cost(both, slices)
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
