//! Every matmul kernel against an f64 reference.
//!
//! In software a kernel takes up to seconds to compile, so the slow tests run seeded samples of the numbers
//! of rows, tiles and kinds of devices; `FULMEN_TEST_FULL=1` runs all of them.

mod common_matmul;

use std::sync::Mutex;

use common_matmul::{Buffers, Gpu, bytes_of, value};
use fulmen_testkit::sample::some_of;
use fulmen_wgpu::kernels::matmul::*;
use fulmen_wgpu::{GpuBuffer, kernel::Caps};

static GPU: Mutex<Option<Gpu>> = Mutex::new(None);

/// Runs `work` with the one device of these tests.
fn with_gpu(work: impl FnOnce(&Gpu)) {
    let mut guard = GPU.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    work(guard.get_or_insert_with(Gpu::open));
}

fn random(count: u32, seed: u32) -> Vec<f32> {
    (0..count).map(|i| value(i, seed)).collect()
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    bytes_of(&values.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
}

/// The f16 next to a value between 2⁻¹⁴ and 2 in size, towards zero; smaller ones become 0.
fn f16_bits(v: f32) -> u16 {
    let bits = v.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 112;
    let sign = (bits >> 16 & 0x8000) as u16;
    if exponent <= 0 { sign } else { sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16 }
}

fn f16_value(h: u16) -> f32 {
    let size = match h >> 10 & 0x1f {
        0 => 0.0,
        exponent => (1.0 + f32::from(h & 0x3ff) / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
    };
    if h & 0x8000 == 0 { size } else { -size }
}

/// The matmul in f64. `b` is as `shape` says.
fn reference(shape: MatmulShape, a: &[f32], b: &[f32]) -> Vec<f64> {
    let (m, k, n) = (shape.m as usize, shape.k as usize, shape.n as usize);
    let mut out = vec![0.0; m * n];
    for (row, values) in out.chunks_exact_mut(n).enumerate() {
        let a = &a[row * k..][..k];
        match shape.b {
            Layout::Nk => values.iter_mut().zip(b.chunks_exact(k)).for_each(|(v, b)| {
                *v = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            }),
            Layout::Kn => a.iter().zip(b.chunks_exact(n)).for_each(|(a, b)| {
                values.iter_mut().zip(b).for_each(|(v, b)| *v += f64::from(*a) * f64::from(*b));
            }),
        }
    }
    out
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let error: f64 = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
    let power: f64 = want.iter().map(|w| w * w).sum();
    assert!(error <= 1e-11 * power, "{what}: NMSE {:e}", error / power);
}

/// Inputs and the f64 result of a shape.
struct Case {
    shape: MatmulShape,
    a: GpuBuffer,
    b: [GpuBuffer; 2],
    want: [Vec<f64>; 2],
}

impl Case {
    fn new(gpu: &Gpu, shape: MatmulShape) -> Self {
        let a = random(shape.m * shape.k, 1);
        let both = [2, 3].map(|seed| {
            let b = random(shape.n * shape.k, seed);
            if shape.elem == WeightType::F32 {
                return (gpu.upload(&f32_bytes(&b)), reference(shape, &a, &b));
            }
            let bf16 = shape.elem == WeightType::Bf16;
            let to = |v: f32| if bf16 { (v.to_bits() >> 16) as u16 } else { f16_bits(v) };
            let from = |h: u16| if bf16 { f32::from_bits(u32::from(h) << 16) } else { f16_value(h) };
            let words: Vec<u16> = b.iter().map(|v| to(*v)).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|h| h.to_ne_bytes()).collect();
            let b: Vec<f32> = words.iter().map(|h| from(*h)).collect();
            (gpu.upload(&bytes), reference(shape, &a, &b))
        });
        let [(b0, want0), (b1, want1)] = both;
        Self { shape, a: gpu.upload(&f32_bytes(&a)), b: [b0, b1], want: [want0, want1] }
    }

    /// What the lists leave in the output, which starts as NaN.
    fn run(
        &self,
        gpu: &Gpu,
        lists: &[(&MatmulLaunches, Option<(u64, u64)>)],
        extras: &[&GpuBuffer],
    ) -> Vec<f32> {
        let count = self.shape.m as usize * self.shape.n as usize;
        let out = gpu.upload(&f32_bytes(&vec![f32::NAN; count]));
        for (list, part) in lists {
            let b = [&self.b[0], &self.b[1]];
            let buffers = Buffers { a: &self.a, b, part: *part, out: &out, extras: extras.to_vec() };
            gpu.run(&gpu.program(gpu.steps(list, &buffers)));
        }
        gpu.read_f32(&out, &[(0, count as u64 * 4)])
    }

    #[track_caller]
    fn check(&self, gpu: &Gpu, what: &str, list: Result<MatmulLaunches, MatmulError>) {
        let what = format!("{} {what}", self.shape);
        let list = list.unwrap_or_else(|error| panic!("{what}: {error}"));
        let names: Vec<_> = list.launches.iter().map(|step| step.launch.kernel.label.clone()).collect();
        let got = self.run(gpu, &[(&list, None)], &[]);
        assert_close(&format!("{what} {names:?}"), &got, &self.want[0]);
    }
}

/// The device's own abilities and three kinds of lesser devices.
fn kinds(caps: &Caps) -> [(&'static str, Caps); 4] {
    let small = Caps { workgroup_memory: 16 << 10, max_invocations: 128, ..*caps };
    [
        ("plain", *caps),
        ("no subgroups", Caps { subgroups: None, ..*caps }),
        ("subgroups of several widths", Caps { subgroups: caps.subgroups.map(|(_, max)| (4, max)), ..*caps }),
        ("small", Caps { subgroups: None, max_workgroups: 64, ..small }),
    ]
}

const LAYOUTS: [Layout; 2] = [Layout::Nk, Layout::Kn];

/// The kernel that is chosen for a shape, with short loops: they compile faster.
fn chosen(shape: MatmulShape, caps: &Caps) -> Result<MatmulLaunches, MatmulError> {
    let choice = match choose(shape, caps).expect("a kernel") {
        MatmulConfig::Tiled(tile) => MatmulConfig::Tiled(GemmTile { unroll: 1, ..tile }),
        other => other,
    };
    launches_with(choice, shape, 0..shape.n, &EpilogueSource::none(), caps)
}

#[test]
fn every_shape_agrees_with_f64_by_the_chosen_kernel() {
    let sides = [1, 3, 4, 6, 64, 255, 256, 257, 300];
    let rows = some_of("rows of A", 2, [1, 2, 3, 4, 5, 16, 17, 32, 65, 100]);
    with_gpu(|gpu| {
        let kinds = kinds(&gpu.caps);
        for (i, k) in sides.into_iter().enumerate() {
            for (j, n) in sides.into_iter().enumerate() {
                // One reference serves both layouts, and its first rows are the results for fewer rows.
                let (a, b) = (random(100 * k, 1), random(n * k, 2));
                let want = reference(MatmulShape::f32(100, k, n, Layout::Nk), &a, &b);
                let turned: Vec<f32> = (0..k * n).map(|at| b[(at % n * k + at / n) as usize]).collect();
                for (layout, b) in [(Layout::Nk, b), (Layout::Kn, turned)] {
                    let b = gpu.upload(&f32_bytes(&b));
                    for (l, &m) in rows.iter().enumerate() {
                        let shape = MatmulShape::f32(m, k, n, layout);
                        // Every shape on one kind of device, every kind with many shapes.
                        let (name, caps) = kinds[(i + j + l) % kinds.len()];
                        let a = gpu.upload(&f32_bytes(&a[..(m * k) as usize]));
                        let want = want[..(m * n) as usize].to_vec();
                        let case = Case { shape, a, b: [b.clone(), b.clone()], want: [want, Vec::new()] };
                        case.check(gpu, name, chosen(shape, &caps));
                    }
                }
            }
        }
    });
}

#[test]
fn every_tile_is_right_whole_and_split() {
    let none = EpilogueSource::none();
    let difference = EpilogueSource::of("v0 - 2.0 * v1", []);
    let shapes = [(130, 64, 132, 1), (33, 70, 65, 3), (17, 132, 260, 2), (5, 300, 3, 16)];
    let tiles = some_of("tiles", 2, TILES.into_iter().enumerate());
    with_gpu(|gpu| {
        let caps = gpu.caps;
        for (number, (m, k, n, slices)) in shapes.into_iter().enumerate() {
            for b in LAYOUTS {
                let shape = MatmulShape::f32(m, k, n, b);
                let case = Case::new(gpu, shape);
                let pairs = case.want[0].iter().zip(&case.want[1]);
                let want: Vec<f64> = pairs.map(|(v0, v1)| v0 - 2.0 * v1).collect();
                for &(i, Candidate { tile, .. }) in &tiles {
                    // Every tile whole and split and in both layouts, which is enough of what takes long to
                    // compile.
                    if (i + number) % 2 == usize::from(b == Layout::Kn) {
                        continue;
                    }
                    // One written out in full.
                    let full = (tile.bm, tile.bn, number) == (64, 64, 0);
                    let tile = GemmTile {
                        slices,
                        unroll: if full { tile.bk } else { 1 },
                        band: 1 + number as u32,
                        stages: 1 + (i + number) as u32 % 2,
                        swizzle: number != 1 || i % 2 == 0,
                        ..tile
                    };
                    let choice = MatmulConfig::Tiled(tile);
                    if tile.workgroup_bytes() > caps.workgroup_memory {
                        let list = launches_with(choice, shape, 0..n, &none, &caps);
                        assert!(matches!(list, Err(MatmulError::Unfit { .. })));
                        continue;
                    }
                    case.check(gpu, "", launches_with(choice, shape, 0..n, &none, &caps));
                    if i % 3 == number % 3 {
                        continue;
                    }
                    let pair = pair_launches_with(MatmulConfig::TiledPair(tile), shape, &difference, &caps);
                    if !tile.tn.is_multiple_of(8) {
                        assert!(matches!(pair, Err(MatmulError::Unfit { .. })));
                        continue;
                    }
                    let got = case.run(gpu, &[(&pair.unwrap(), None)], &[]);
                    assert_close(&format!("{shape} {tile} pair"), &got, &want);
                }
            }
        }
    });
}

#[test]
fn every_configuration_of_the_gemv_kernels_is_right() {
    with_gpu(|gpu| {
        let caps = gpu.caps;
        let none = EpilogueSource::none();
        let shapes = [(1, 512, 70), (1, 515, 3), (3, 260, 33), (8, 64, 9), (16, 131, 20)];
        for (m, k, n) in some_of("shapes of GEMV", 1, shapes) {
            let shape = MatmulShape::f32(m, k, n, Layout::Nk);
            let case = Case::new(gpu, shape);
            for row_threads in
                [RowThreads::Subgroup, RowThreads::Workgroup, RowThreads::Lanes(16), RowThreads::Lanes(64)]
            {
                for (rows, unroll, fixed_k) in [(1, 4, false), (2, 2, true), (4, 1, false)] {
                    let choice =
                        MatmulConfig::GemvNk(GemvNk { threads: 64, rows, unroll, row_threads, fixed_k });
                    case.check(gpu, "", launches_with(choice, shape, 0..n, &none, &caps));
                }
            }
            let shape = MatmulShape::f32(m, k, n, Layout::Kn);
            let case = Case::new(gpu, shape);
            for (lanes, groups, unroll, slices) in [(32, 4, 4, 1), (8, 8, 2, 3), (16, 1, 1, 1000)] {
                let choice = MatmulConfig::GemvKn(GemvKn { lanes, groups, unroll, slices });
                case.check(gpu, "", launches_with(choice, shape, 0..n, &none, &caps));
            }
        }
    });
}

#[test]
fn many_columns_fold_the_grid() {
    with_gpu(|gpu| {
        let caps = Caps { max_workgroups: 64, ..gpu.caps };
        for (m, b) in [(1, Layout::Nk), (1, Layout::Kn), (3, Layout::Nk), (17, Layout::Nk), (17, Layout::Kn)]
        {
            let shape = MatmulShape::f32(m, 8, 65_536 + 5, b);
            let case = Case::new(gpu, shape);
            case.check(gpu, "device's grid", chosen(shape, &gpu.caps.clone()));
            case.check(gpu, "tiny grid", chosen(shape, &caps));
        }
    });
}

#[test]
fn epilogues_reach_every_kernel() {
    use EpilogueInput::{PerColumn, PerElement, PerRow};
    with_gpu(|gpu| {
        let caps = gpu.caps;
        let epilogue = EpilogueSource {
            expr: "softer(v + e0) * params.s0 + e1 - e2 * params.s1 + f32(row) + f32(col)".to_owned(),
            inputs: vec![PerColumn, PerElement, PerRow],
            functions: "fn softer(x: f32) -> f32 { return x / (1.0 + abs(x)); }".to_owned(),
            scalars: vec![3.0, -0.5],
        };
        let shapes = [(1, 300, 40), (3, 1024, 41), (20, 700, 64), (20, 700, 65)];
        for (m, k, n) in some_of("shapes with an epilogue", 1, shapes) {
            for b in LAYOUTS {
                let shape = MatmulShape::f32(m, k, n, b);
                let case = Case::new(gpu, shape);
                let inputs = [random(n, 7), random(m * n, 8), random(m, 9)];
                let buffers = [0, 1, 2].map(|i: usize| gpu.upload(&f32_bytes(&inputs[i])));
                let extras: Vec<_> = buffers.iter().collect();
                let want: Vec<f64> = case.want[0]
                    .iter()
                    .enumerate()
                    .map(|(i, v)| {
                        let (row, col) = (i / n as usize, i % n as usize);
                        let x = v + f64::from(inputs[0][col]);
                        let add = f64::from(inputs[1][i]) + 0.5 * f64::from(inputs[2][row]);
                        3.0 * x / (1.0 + x.abs()) + add + row as f64 + col as f64
                    })
                    .collect();
                let mut lists = vec![launches(shape, &epilogue, &caps).unwrap()];
                let tile = GemmTile { slices: 3, ..TILES[TILES.len() - 1].tile };
                for tile in [tile, GemmTile { slices: 1, ..tile }] {
                    lists.push(
                        launches_with(MatmulConfig::Tiled(tile), shape, 0..n, &epilogue, &caps).unwrap(),
                    );
                }
                for list in lists {
                    let got = case.run(gpu, &[(&list, None)], &extras);
                    assert_close(&format!("{shape} {}", list.launches[0].launch.kernel.label), &got, &want);
                }
            }
        }
    });
}

#[test]
fn a_gated_pair_is_one_launch_at_small_m() {
    with_gpu(|gpu| {
        for (name, caps) in some_of("kinds of devices", 1, kinds(&gpu.caps)) {
            for (m, k, n) in [(1, 256, 100), (1, 129, 7), (4, 64, 33), (8, 100, 12), (20, 1024, 64)] {
                for b in LAYOUTS {
                    let shape = MatmulShape::f32(m, k, n, b);
                    let case = Case::new(gpu, shape);
                    let mut epilogue = EpilogueSource::silu_gate();
                    epilogue.expr += " + e0";
                    epilogue.inputs.push(EpilogueInput::PerColumn);
                    let bias = random(n, 5);
                    let want = case.want[0].iter().zip(&case.want[1]).enumerate();
                    let want: Vec<f64> = want
                        .map(|(i, (v, u))| v / (1.0 + (-v).exp()) * u + f64::from(bias[i % n as usize]))
                        .collect();
                    let list = pair_launches(shape, &epilogue, &caps).unwrap();
                    if b == Layout::Nk && m <= 8 {
                        assert_eq!((list.launches.len(), list.scratch.len()), (1, 0));
                    }
                    let bias = gpu.upload(&f32_bytes(&bias));
                    let got = case.run(gpu, &[(&list, None)], &[&bias]);
                    assert_close(&format!("{shape} {name}"), &got, &want);
                }
            }
        }
    });
}

#[test]
fn a_large_b_is_multiplied_in_parts() {
    with_gpu(|gpu| {
        for (m, k, n) in [(1, 100, 1000), (5, 33, 777), (20, 64, 500)] {
            let shape = MatmulShape::f32(m, k, n, Layout::Nk);
            let caps = Caps { max_binding: u64::from(k) * 4 * 300, ..gpu.caps };
            let case = Case::new(gpu, shape);
            let parts = split_columns(shape, &caps).unwrap();
            assert!(parts.len() > 1);
            let lists: Vec<_> = parts
                .iter()
                .map(|columns| {
                    let row = u64::from(k) * 4;
                    let bound = (u64::from(columns.start) * row, columns.len() as u64 * row);
                    assert!(
                        bound.0.is_multiple_of(u64::from(caps.binding_alignment))
                            && bound.1 <= caps.max_binding
                    );
                    (column_launches(shape, columns.clone(), &EpilogueSource::none(), &caps).unwrap(), bound)
                })
                .collect();
            let lists: Vec<_> = lists.iter().map(|(list, bound)| (list, Some(*bound))).collect();
            assert_close(&shape.to_string(), &case.run(gpu, &lists, &[]), &case.want[0]);
            let other = MatmulShape { b: Layout::Kn, ..shape };
            assert!(matches!(split_columns(other, &caps), Err(MatmulError::Binding { what: "B", .. })));
            let none = EpilogueSource::none();
            assert!(matches!(launches(shape, &none, &caps), Err(MatmulError::Binding { what: "B", .. })));
        }
    });
}

#[test]
fn b_may_be_f16_or_bf16() {
    with_gpu(|gpu| {
        let caps = gpu.caps;
        assert!(caps.f16, "this test needs 16-bit floats");
        let shapes = [(1, 256, 100), (1, 129, 7), (4, 64, 33), (20, 300, 66), (40, 70, 64), (17, 33, 9)];
        for (m, k, n) in some_of("shapes of 16-bit weights", 2, shapes) {
            for b in LAYOUTS {
                for (elem, f16) in
                    [(WeightType::F16, true), (WeightType::F16, false), (WeightType::Bf16, true)]
                {
                    let shape = MatmulShape { elem, ..MatmulShape::f32(m, k, n, b) };
                    let caps = Caps { f16, ..caps };
                    Case::new(gpu, shape).check(gpu, &format!("f16 {f16}"), chosen(shape, &caps));
                }
            }
        }
    });
}

#[test]
fn what_cannot_be_is_refused() {
    with_gpu(|gpu| {
        let caps = gpu.caps;
        let none = EpilogueSource::none();
        for (m, k, n) in [(0, 4, 4), (4, 0, 4), (4, 4, 0)] {
            let shape = MatmulShape::f32(m, k, n, Layout::Nk);
            assert!(matches!(launches(shape, &none, &caps), Err(MatmulError::Empty { .. })));
            assert!(matches!(pair_launches(shape, &none, &caps), Err(MatmulError::Empty { .. })));
        }
        let shape = MatmulShape::f32(2, 4, 8, Layout::Kn);
        assert!(matches!(column_launches(shape, 0..4, &none, &caps), Err(MatmulError::Columns { .. })));
        let many = EpilogueSource::of("v", vec![EpilogueInput::PerRow; caps.max_storage_buffers as usize]);
        assert!(matches!(launches(shape, &many, &caps), Err(MatmulError::Inputs { .. })));
        let rows = MatmulConfig::GemvNk(GemvNk {
            threads: 64,
            rows: 1,
            unroll: 1,
            row_threads: RowThreads::Subgroup,
            fixed_k: false,
        });
        assert!(matches!(launches_with(rows, shape, 0..8, &none, &caps), Err(MatmulError::Unfit { .. })));
        let huge = MatmulShape::f32(1 << 20, 1 << 20, 8, Layout::Nk);
        assert!(matches!(launches(huge, &none, &caps), Err(MatmulError::Binding { what: "A", .. })));
    });
}
