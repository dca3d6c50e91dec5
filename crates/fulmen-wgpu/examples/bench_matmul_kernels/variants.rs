//! The shapes that are measured, and the kernels that are tried on each, the most telling first.

use fulmen_wgpu::kernels::matmul::*;

/// A shape, or a gated pair of matmuls of it, and the kernels to try.
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) shape: MatmulShape,
    pub(crate) pair: bool,
    pub(crate) choices: Vec<MatmulConfig>,
}

fn rows(threads: u32, rows: u32, unroll: u32, row_threads: RowThreads, fixed_k: bool) -> MatmulConfig {
    MatmulConfig::GemvNk(GemvNk { threads, rows, unroll, row_threads, fixed_k })
}

fn tile(b: [u32; 3], t: [u32; 2], stages: u32, unroll: u32) -> GemmTile {
    let ([bm, bn, bk], [tm, tn]) = (b, t);
    GemmTile { bm, bn, bk, tm, tn, stages, unroll, slices: 1, band: 8, swizzle: true }
}

fn padded(tile: GemmTile) -> GemmTile {
    GemmTile { swizzle: false, ..tile }
}

/// Each tile with each number of slices.
fn sliced(tiles: &[GemmTile], slices: &[u32]) -> Vec<MatmulConfig> {
    let each =
        |&slices: &u32| tiles.iter().map(move |&tile| MatmulConfig::Tiled(GemmTile { slices, ..tile }));
    slices.iter().flat_map(each).collect()
}

/// For a pair: both matmuls in one launch, and then one after the other.
fn paired(choices: Vec<MatmulConfig>) -> Vec<MatmulConfig> {
    let in_one_launch = choices.iter().map(|choice| match *choice {
        MatmulConfig::Tiled(tile) => MatmulConfig::TiledPair(tile),
        other => other,
    });
    in_one_launch.collect::<Vec<_>>().into_iter().chain(choices).collect()
}

fn gemv() -> Vec<MatmulConfig> {
    let mut all = Vec::new();
    for threads in [32, 64, 128, 256] {
        for unroll in [1, 2, 5] {
            for r in [1, 2, 4] {
                all.push(rows(threads, r, unroll, RowThreads::Workgroup, true));
            }
        }
        for (r, unroll, fixed) in
            [(1, 2, true), (1, 4, true), (1, 10, true), (1, 4, false), (2, 4, false), (2, 4, true)]
        {
            all.push(rows(threads, r, unroll, RowThreads::Subgroup, fixed));
        }
    }
    all.push(rows(512, 1, 1, RowThreads::Workgroup, true));
    all.push(rows(512, 2, 1, RowThreads::Workgroup, true));
    all
}

fn small_m() -> Vec<MatmulConfig> {
    let mut all = Vec::new();
    for r in [2, 4, 8, 1] {
        for threads in [128, 64, 256] {
            for (unroll, fixed) in [(1, false), (2, false), (4, false), (1, true)] {
                all.push(rows(threads, r, unroll, RowThreads::Subgroup, fixed));
            }
            all.push(rows(threads, r, 1, RowThreads::Workgroup, true));
        }
    }
    all.extend(sliced(&[tile([16, 128, 32], [4, 8], 1, 8)], &[3, 5, 8]));
    all
}

/// Tiles for up to 16 rows.
fn lowest() -> Vec<MatmulConfig> {
    let tiles = [
        tile([16, 128, 32], [4, 8], 1, 8),
        tile([16, 128, 32], [4, 8], 1, 32),
        tile([16, 256, 32], [4, 16], 1, 8),
        tile([16, 256, 16], [4, 16], 1, 16),
        tile([16, 64, 32], [4, 4], 2, 8),
        padded(tile([16, 128, 32], [4, 8], 1, 8)),
    ];
    let mut all = sliced(&tiles, &[3, 5, 8]);
    all.push(rows(128, 2, 1, RowThreads::Subgroup, false));
    all.push(rows(128, 4, 1, RowThreads::Subgroup, false));
    all
}

/// Tiles for up to 32 rows.
fn low(slices: &[u32]) -> Vec<MatmulConfig> {
    let tiles = [
        tile([32, 128, 32], [8, 8], 1, 8),
        tile([32, 256, 16], [8, 16], 1, 16),
        tile([32, 256, 32], [8, 16], 1, 8),
        tile([32, 128, 16], [8, 8], 1, 16),
        tile([32, 128, 32], [8, 8], 1, 4),
        tile([32, 256, 32], [8, 8], 1, 8),
        padded(tile([32, 128, 32], [8, 8], 1, 8)),
    ];
    sliced(&tiles, slices)
}

fn middle(slices: &[u32]) -> Vec<MatmulConfig> {
    let tiles = [
        tile([64, 128, 16], [8, 8], 1, 16),
        tile([128, 128, 16], [16, 8], 1, 16),
        tile([128, 128, 16], [8, 8], 1, 16),
        tile([64, 128, 32], [8, 8], 1, 8),
        tile([128, 128, 8], [16, 8], 2, 8),
        padded(tile([64, 128, 16], [8, 8], 1, 16)),
    ];
    sliced(&tiles, slices)
}

fn large() -> Vec<MatmulConfig> {
    let (wide, square) = (tile([128, 128, 16], [16, 8], 1, 16), tile([128, 128, 16], [8, 8], 1, 16));
    let mut tiles = vec![wide, square, padded(wide), padded(square)];
    tiles.extend([1, 4, 16, 32].map(|band| GemmTile { band, ..wide }));
    tiles.extend([
        tile([128, 128, 16], [8, 16], 1, 16),
        tile([128, 128, 16], [16, 8], 1, 4),
        tile([128, 128, 16], [16, 8], 1, 8),
        tile([128, 128, 16], [8, 8], 1, 8),
        tile([128, 128, 32], [16, 8], 1, 8),
        tile([128, 128, 8], [16, 8], 2, 8),
        tile([128, 128, 8], [8, 16], 2, 8),
        tile([256, 128, 16], [16, 8], 1, 16),
        tile([128, 256, 16], [16, 8], 1, 16),
        tile([64, 128, 16], [8, 8], 1, 16),
        tile([64, 256, 16], [16, 8], 1, 16),
        tile([64, 256, 16], [8, 16], 1, 16),
    ]);
    sliced(&tiles, &[1])
}

fn huge() -> Vec<MatmulConfig> {
    let wide = tile([128, 128, 16], [16, 8], 1, 16);
    let mut tiles = vec![wide, padded(wide), tile([128, 128, 16], [8, 8], 1, 16)];
    tiles.extend([1, 4, 16, 32].map(|band| GemmTile { band, ..wide }));
    tiles.extend([tile([128, 256, 16], [16, 8], 1, 16), tile([128, 128, 8], [16, 8], 2, 8)]);
    sliced(&tiles, &[1])
}

fn kn() -> Vec<MatmulConfig> {
    let mut all = Vec::new();
    for (lanes, groups) in [(32, 8), (32, 4), (64, 4), (16, 16)] {
        for slices in [8, 4, 16] {
            for unroll in [4, 8] {
                all.push(MatmulConfig::GemvKn(GemvKn { lanes, groups, unroll, slices }));
            }
        }
    }
    all
}

pub(crate) fn works(shrink: u32) -> Vec<Work> {
    use Layout::{Kn, Nk};
    let work = |name, (m, k, n): (u32, u32, u32), b, choices| Work {
        name,
        shape: MatmulShape::f32(m.min(8192 / shrink), k / shrink, n / shrink, b),
        pair: false,
        choices,
    };
    let pair = |name, m, choices| Work {
        name,
        shape: MatmulShape::f32(m, 2560 / shrink, 9728 / shrink, Nk),
        pair: true,
        choices: paired(choices),
    };
    vec![
        work("gemv up", (1, 2560, 9728), Nk, gemv()),
        work("gemv down", (1, 9728, 2560), Nk, gemv()),
        pair("gemv pair", 1, gemv()),
        work("gemv kn", (1, 2560, 9728), Kn, kn()),
        work("m2 up", (2, 2560, 9728), Nk, small_m()),
        work("m4 up", (4, 2560, 9728), Nk, small_m()),
        work("m8 up", (8, 2560, 9728), Nk, small_m()),
        work("m8 down", (8, 9728, 2560), Nk, small_m()),
        pair("m8 pair", 8, small_m()),
        work("m8 kn", (8, 2560, 9728), Kn, kn()),
        work("m16 up", (16, 2560, 9728), Nk, lowest()),
        pair("m16 pair", 16, lowest()),
        work("m32 up", (32, 2560, 9728), Nk, low(&[3, 5, 10])),
        work("m32 down", (32, 9728, 2560), Nk, low(&[13, 10, 6, 16])),
        pair("m32 pair", 32, low(&[3, 5, 2, 6])),
        work("m64 up", (64, 2560, 9728), Nk, middle(&[5, 3])),
        work("m256 up", (256, 2560, 9728), Nk, middle(&[5, 6, 2])),
        work("m256 down", (256, 9728, 2560), Nk, middle(&[13, 3, 6])),
        pair("m256 pair", 256, middle(&[3, 2, 5, 1])),
        work("m1024 up", (1024, 2560, 9728), Nk, large()),
        work("4096", (4096, 4096, 4096), Nk, large()),
        work("4096 kn", (4096, 4096, 4096), Kn, huge()),
        work("8192", (8192, 8192, 8192), Nk, huge()),
    ]
}
