use super::*;

fn large_device() -> Caps {
    Caps { cooperative_matrix: false, ..Caps::large_device() }
}

/// What is fastest, or near it, on a GPU with 132 multiprocessors and 48 KiB of workgroup memory: m, k, n,
/// how the name begins, and slices.
const MEASURED: [(u32, u32, u32, &str, &[u32]); 9] = [
    (16, 2560, 9728, "tiled 16x", &[3, 5]),
    (32, 2560, 9728, "tiled 32x128x32 by 8x8", &[3, 10]),
    (32, 9728, 2560, "tiled 32x128x32 by 8x8", &[10, 13]),
    (256, 2560, 9728, "tiled 128x128x16 by 16x8", &[5]),
    (256, 9728, 2560, "tiled 128x128x16 by", &[13]),
    (1024, 2560, 9728, "tiled 128x128x16 by 8x8", &[1]),
    (4096, 4096, 4096, "tiled 128x128x16 by 16x8", &[1]),
    (8192, 8192, 8192, "tiled 128x128x16 by 16x8", &[1]),
    (256, 2560, 151_936, "tiled 128x128x16 by 16x8", &[1]),
];

#[test]
fn the_table_is_near_the_best_on_a_large_device() {
    for (m, k, n, name, slices) in MEASURED {
        for b in [Layout::Nk, Layout::Kn] {
            let shape = MatmulShape::f32(m, k, n, b);
            let Some(MatmulConfig::Tiled(tile)) = choose(shape, &large_device()) else { panic!("{shape}") };
            println!("{shape}: {tile}");
            assert!(tile.to_string().starts_with(name) && slices.contains(&tile.slices), "{shape}: {tile}");
        }
    }
}

#[test]
fn small_m_takes_the_gemv_kernels() {
    let name = |m, k, n, b| choose(MatmulShape::f32(m, k, n, b), &large_device()).unwrap().to_string();
    for (k, n) in [(2560, 9728), (9728, 2560), (4096, 151_936)] {
        assert_eq!(name(1, k, n, Layout::Nk), "gemv_nk threads=128 rows=1 unroll=1 Workgroup fixed");
    }
    assert_eq!(name(1, 768, 768, Layout::Nk), "gemv_nk threads=64 rows=1 unroll=1 Workgroup fixed");
    assert_eq!(name(1, 100, 9728, Layout::Nk), "gemv_nk threads=128 rows=2 unroll=4 Subgroup");
    assert_eq!(name(4, 2560, 9728, Layout::Nk), "gemv_nk threads=256 rows=4 unroll=1 Subgroup");
    assert!(name(8, 2560, 9728, Layout::Kn).starts_with("gemv_kn"));
}

#[test]
fn a_config_fits_the_device_and_the_shape() {
    let lesser = |threads, kib: u32| Caps {
        subgroups: None,
        max_invocations: threads,
        workgroup_memory: kib << 10,
        max_binding: 128 << 20,
        ..large_device()
    };
    for caps in [large_device(), lesser(256, 32), lesser(256, 16), lesser(128, 16)] {
        for m in [9, 16, 17, 40, 64, 100, 500, 5000, 8192] {
            for (k, n) in [(1, 1), (33, 7), (700, 900), (9728, 2560), (2560, 9728), (128, 151_936)] {
                let shape = MatmulShape::f32(m, k, n, Layout::Nk);
                let Some(MatmulConfig::Tiled(tile)) = choose(shape, &caps) else { panic!("{shape}") };
                let Some(MatmulConfig::TiledPair(pair)) = choose_pair(shape, &caps) else {
                    panic!("{shape}")
                };
                for (tile, matmuls) in [(tile, 1), (pair, 2)] {
                    assert!(tile.threads() <= caps.max_invocations, "{shape}: {tile}");
                    assert!(tile.workgroup_bytes() <= caps.workgroup_memory, "{shape}: {tile}");
                    let scratch = u64::from(tile.slices * matmuls) * u64::from(m) * u64::from(n) * 4;
                    assert!(tile.slices == 1 || scratch <= caps.max_binding, "{shape}: {tile}");
                    // No tile with more idle rows than rows.
                    assert!(tile.bm <= 16 || tile.bm < 2 * m, "{shape}: {tile}");
                }
            }
        }
    }
}
