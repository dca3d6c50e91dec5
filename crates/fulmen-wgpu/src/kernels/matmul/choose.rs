//! Which kernel multiplies which shape.

use super::{Layout, MatmulShape, RowsKn, RowsNk, Team, Tiled};
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
}

impl std::fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RowsNk(choice) => choice.fmt(f),
            Self::RowsKn(choice) => choice.fmt(f),
            Self::Tiled(choice) => choice.fmt(f),
        }
    }
}

/// Rows of A up to which B is streamed past them.
const FEW_ROWS: u32 = 8;

/// Compute units that are assumed: wgpu does not tell. Those of the largest devices, since many small workgroups cost a
/// small device less than few large ones cost a large device.
const UNITS: u32 = 132;

const fn tile(bm: u32, bn: u32, bk: u32, tm: u32, tn: u32, stages: u32) -> Tiled {
    Tiled { bm, bn, bk, tm, tn, stages, unroll: bk, slices: 1 }
}

/// The tiles from which [`choose`] takes, each with the share of the arithmetic peak that a full device reaches.
pub const TILES: [(Tiled, f64); 10] = [
    (tile(128, 128, 16, 8, 8, 2), 0.80),
    (tile(128, 128, 8, 8, 8, 1), 0.70),
    (tile(64, 128, 16, 8, 8, 2), 0.72),
    (tile(64, 64, 16, 8, 8, 2), 0.66),
    (tile(64, 64, 16, 8, 8, 1), 0.60),
    (tile(32, 128, 16, 8, 8, 2), 0.60),
    (tile(32, 64, 16, 8, 8, 1), 0.50),
    (tile(16, 128, 16, 4, 8, 2), 0.48),
    (tile(16, 128, 16, 4, 8, 1), 0.45),
    (tile(16, 64, 8, 4, 8, 1), 0.40),
];

/// The kernel for a shape, or `None` where the device's workgroups are too small for all of them.
pub fn choose(shape: MatmulShape, caps: &Caps) -> Option<KernelChoice> {
    match shape.b {
        _ if shape.m > FEW_ROWS => tiled(shape, caps).map(KernelChoice::Tiled),
        Layout::Nk => Some(KernelChoice::RowsNk(rows_nk(shape, caps, 1))),
        Layout::Kn => Some(KernelChoice::RowsKn(rows_kn(shape, caps))),
    }
}

/// The numbers of [`RowsNk`], for `products` products with one A.
pub(super) fn rows_nk(shape: MatmulShape, caps: &Caps, products: u32) -> RowsNk {
    let threads = power_of_two_below(caps.max_invocations.min(128));
    let few = shape.n < 8 * UNITS && shape.k >= 1024;
    let team = match caps.subgroups {
        Some((min, max)) if min == max && threads.is_multiple_of(min) && !few => Team::Subgroup,
        Some((min, _)) if threads.is_multiple_of(min) => Team::Workgroup,
        _ => Team::Lanes(threads.min(32)),
    };
    let (rows, unroll) = match shape.m {
        1 => (2, 4),
        2..=4 => (4, 2),
        _ => (4, 1),
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
fn tiled(shape: MatmulShape, caps: &Caps) -> Option<Tiled> {
    let fits = |tile: &Tiled| {
        tile.threads() <= caps.max_invocations && tile.workgroup_bytes() <= caps.workgroup_memory
    };
    let mut best: Option<(f64, Tiled)> = None;
    for (tile, share) in TILES.into_iter().filter(|(tile, _)| fits(tile)) {
        let most = (tile.slabs(shape.k) / 8).min(16).min(fitting_slices(shape, caps)).max(1);
        for slices in 1..=most {
            let choice = Tiled { slices, ..tile };
            let time = estimate(shape, &choice, share);
            if best.is_none_or(|(least, _)| time < least) {
                best = Some((time, choice));
            }
        }
    }
    best.map(|(_, choice)| choice)
}

/// Microseconds on a large device: whole rounds of workgroups over its units, and the second launch of split sums.
fn estimate(shape: MatmulShape, tile: &Tiled, share: f64) -> f64 {
    const FLOP_PER_UNIT: f64 = 435e3;
    const BYTES: f64 = 3e6;
    let slices = tile.used_slices(shape.k);
    let groups =
        u64::from(shape.m.div_ceil(tile.bm)) * u64::from(shape.n.div_ceil(tile.bn)) * u64::from(slices);
    let rounds = groups.div_ceil(UNITS.into());
    // A unit with few subgroups waits for memory.
    let resident = (rounds * u64::from(tile.threads() / 32)).min(16) as f64;
    let busy = resident / (resident + 4.0) * 1.25;
    let k = f64::from(tile.slabs(shape.k).div_ceil(slices) * tile.bk);
    let work = 2.0 * f64::from(tile.bm) * f64::from(tile.bn) * k;
    let multiply = rounds as f64 * work / (FLOP_PER_UNIT * share * busy);
    let values = f64::from(shape.m) * f64::from(shape.n);
    let sum = if slices > 1 { 3.0 + 8.0 * f64::from(slices) * values / BYTES } else { 0.0 };
    multiply + sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large_device() -> Caps {
        Caps {
            subgroups: Some((32, 32)),
            f16: true,
            immediate_bytes: 256,
            cooperative_matrix: false,
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
    fn the_table_on_a_large_device() {
        let name = |m, k, n, b| choose(MatmulShape::f32(m, k, n, b), &large_device()).unwrap().to_string();
        for (m, k, n) in [(16, 2560, 9728), (32, 2560, 9728), (32, 9728, 2560), (256, 2560, 9728)] {
            println!("{m} {k} {n}: {}", name(m, k, n, Layout::Nk));
        }
        for (m, k, n) in [(256, 9728, 2560), (1024, 2560, 9728), (4096, 4096, 4096), (100, 100, 100)] {
            println!("{m} {k} {n}: {}", name(m, k, n, Layout::Nk));
        }
        assert!(name(1, 2560, 9728, Layout::Nk).starts_with("rows_nk"));
        assert!(name(8, 2560, 9728, Layout::Kn).starts_with("rows_kn"));
        assert!(name(4096, 4096, 4096, Layout::Nk).starts_with("tiled 128x128"));
    }

    #[test]
    fn a_choice_fits_the_least_device() {
        let least = Caps {
            subgroups: None,
            max_invocations: 128,
            workgroup_memory: 16 << 10,
            max_binding: 128 << 20,
            ..large_device()
        };
        for m in [1, 9, 40, 500, 5000] {
            let Some(KernelChoice::Tiled(tile)) = choose(MatmulShape::f32(m, 700, 900, Layout::Nk), &least)
            else {
                assert_eq!(m, 1);
                continue;
            };
            assert!(tile.threads() <= 128 && tile.workgroup_bytes() <= 16 << 10, "{tile}");
        }
    }
}
