//! Every matmul kernel with quantized weights against an f64 reference with the dequantized weights.

mod common_matmul;

use std::sync::Mutex;

use common_matmul::{Buffers, Gpu, bytes_of, value};
use fulmen_core::{DType, quant};
use fulmen_wgpu::kernels::matmul::{
    EpilogueInput, EpilogueSource, GemmTile, MatmulConfig, MatmulError, MatmulLaunches,
};
use fulmen_wgpu::kernels::qmatmul::*;
use fulmen_wgpu::{GpuBuffer, kernel::Caps};

static GPU: Mutex<Option<Gpu>> = Mutex::new(None);

/// Runs `work` with the one device of these tests.
fn with_gpu(work: impl FnOnce(&Gpu)) {
    let mut guard = GPU.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    work(guard.get_or_insert_with(Gpu::open));
}

const FORMATS: [DType; 7] =
    [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::MXFP4];

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    bytes_of(&values.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
}

fn random(count: u32, seed: u32) -> Vec<f32> {
    (0..count).map(|i| value(i, seed)).collect()
}

/// Blocks of random quants, with scales and minima of ordinary size.
fn blocks(weight: QuantWeight) -> Vec<u8> {
    let QuantWeight { dtype, n, k } = weight;
    let mut rng = fastrand::Rng::with_seed(u64::from(n) << 32 | u64::from(k));
    let (len, size) = (dtype.block_len(), dtype.block_bytes());
    let mut bytes: Vec<u8> =
        std::iter::repeat_with(|| rng.u8(..)).take(n as usize * k as usize / len * size).collect();
    let scales: &[usize] = match dtype {
        DType::Q4_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q6_K => &[208],
        DType::MXFP4 => &[],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(size) {
        if dtype == DType::MXFP4 {
            block[0] = rng.u8(120..123);
        }
        for at in scales {
            // 2⁻⁷ to 2⁻⁵, of either sign.
            let half = rng.u16(0x2000..0x2800) | u16::from(rng.bool()) << 15;
            block[*at..][..2].copy_from_slice(&half.to_le_bytes());
        }
    }
    bytes
}

/// The product in f64, and what its square would be if no products cancelled each other.
fn reference(m: usize, k: usize, a: &[f32], w: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let mut out = (Vec::new(), Vec::new());
    for a in a.chunks_exact(k).take(m) {
        for w in w.chunks_exact(k) {
            let (mut sum, mut power) = (0.0, 0.0);
            for (a, w) in a.iter().zip(w) {
                let p = f64::from(*a) * f64::from(*w);
                sum += p;
                power += p * p;
            }
            out.0.push(sum);
            out.1.push(power);
        }
    }
    out
}

struct Case {
    weight: QuantWeight,
    a: Vec<f32>,
    w: GpuBuffer,
    want: (Vec<f64>, Vec<f64>),
}

impl Case {
    fn new(gpu: &Gpu, m: u32, weight: QuantWeight) -> Self {
        let bytes = blocks(weight);
        let packed = weight.repack(&bytes).unwrap();
        assert_eq!(packed.len() as u64, weight.packed_bytes().unwrap());
        let values = quant::dequantize_to_vec(weight.dtype, &bytes, (weight.n * weight.k) as usize).unwrap();
        let a = random(m * weight.k, 1);
        let want = reference(m as usize, weight.k as usize, &a, &values);
        Self { weight, a, w: gpu.upload(&packed), want }
    }

    /// What the lists leave in the output, which starts as NaN.
    fn run(
        &self,
        gpu: &Gpu,
        m: u32,
        lists: &[(&MatmulLaunches, Option<(u64, u64)>)],
        extras: &[&GpuBuffer],
    ) -> Vec<f32> {
        let count = (m * self.weight.n) as usize;
        let out = gpu.upload(&f32_bytes(&vec![f32::NAN; count + 1]));
        let a = gpu.upload(&f32_bytes(&self.a[..(m * self.weight.k) as usize]));
        for (list, part) in lists {
            let buffers =
                Buffers { a: &a, b: [&self.w, &self.w], part: *part, out: &out, extras: extras.to_vec() };
            gpu.run(&gpu.program(gpu.steps(list, &buffers)));
        }
        let mut got = gpu.read_f32(&out, &[(0, count as u64 * 4 + 4)]);
        assert!(got.pop().unwrap().is_nan(), "a value past the output was written");
        got
    }

    #[track_caller]
    fn check(&self, gpu: &Gpu, m: u32, choice: QuantMatmulConfig, caps: &Caps) {
        let what = format!("m={m} {} {choice}", self.weight);
        let none = EpilogueSource::none();
        let list = launches_with(choice, m, self.weight, 0..self.weight.n, &none, caps);
        let list = list.unwrap_or_else(|error| panic!("{what}: {error}"));
        let got = self.run(gpu, m, &[(&list, None)], &[]);
        self.close(&what, m, choice, &got);
    }

    #[track_caller]
    fn close(&self, what: &str, m: u32, choice: QuantMatmulConfig, got: &[f32]) {
        let count = (m * self.weight.n) as usize;
        let error: f64 = got.iter().zip(&self.want.0).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
        let power: f64 = self.want.0[..count].iter().map(|w| w * w).sum();
        let uncancelled: f64 = self.want.1[..count].iter().sum();
        let limit = match choice {
            QuantMatmulConfig::Gemv(QuantGemv { activations: Activations::Q8, .. })
            | QuantMatmulConfig::Int8(_) => 1e-4,
            _ => 1e-11,
        };
        // Few outputs may all be near zero.
        let power = if count >= 64 { power } else { power.max(uncancelled) };
        assert!(error <= limit * power, "{what}: NMSE {:e}", error / power);
    }
}

/// The chosen kernel; but one of two small tiles with short loops, which compile faster.
fn chosen(m: u32, weight: QuantWeight, values: Activations, caps: &Caps) -> QuantMatmulConfig {
    match choose(m, weight, values, caps).expect("a kernel") {
        QuantMatmulConfig::Dequantize(_) => {
            let slices = if weight.k > 2048 { 3 } else { 1 };
            let (bm, bk, tm) = if weight.dtype.block_len() == 32 { (32, 16, 8) } else { (16, 8, 4) };
            let (bn, tn, band, swizzle) = (64, 8, 8, true);
            let tile = GemmTile { bm, bn, bk, tm, tn, stages: 1, unroll: 1, slices, band, swizzle };
            QuantMatmulConfig::Dequantize(MatmulConfig::Tiled(tile))
        }
        other => other,
    }
}

#[test]
fn every_format_and_shape_agrees_with_f64() {
    with_gpu(|gpu| {
        let caps = gpu.caps;
        let kinds = [caps, Caps { subgroups: None, ..caps }];
        for (f, dtype) in FORMATS.into_iter().enumerate() {
            let block = dtype.block_len() as u32;
            let mut shapes: Vec<_> =
                [1, 3, 64, 255, 300].into_iter().flat_map(|n| [(n, block), (n, 2 * block)]).collect();
            shapes.push((64, 2560));
            for (n, k) in shapes {
                let weight = QuantWeight { dtype, n, k };
                let case = Case::new(gpu, 33, weight);
                for (j, m) in [1, 2, 3, 5, 8, 9, 17, 33].into_iter().enumerate() {
                    for (l, values) in [Activations::Q8, Activations::F32].into_iter().enumerate() {
                        if values == Activations::F32 && ![1, 3, 17].contains(&m) {
                            continue;
                        }
                        // Each kernel takes long to compile: every format and every m with both kinds of
                        // device, but not every pair of them.
                        let caps = kinds[(f + j + l) % 2];
                        let choice = chosen(m, weight, values, &caps);
                        case.check(gpu, m, choice, &caps);
                    }
                }
            }
        }
    });
}

#[test]
fn every_configuration_of_the_gemv_kernel_is_right() {
    with_gpu(|gpu| {
        let caps = gpu.caps;
        for (m, dtype, n, k) in [(3, DType::Q4_0, 37, 32 * 37), (1, DType::Q6_K, 21, 256 * 9)] {
            let weight = QuantWeight { dtype, n, k };
            let case = Case::new(gpu, m, weight);
            for (threads, lanes, rows, unroll, lane_sum) in [
                (32, 8, 2, 2, LaneSum::Shuffle),
                (64, 8, 4, 1, LaneSum::Shuffle),
                (64, 16, 1, 4, LaneSum::Memory),
                (64, 64, 2, 3, LaneSum::Memory),
            ] {
                let choice = QuantMatmulConfig::Gemv(QuantGemv {
                    activations: Activations::Q8,
                    threads,
                    lanes,
                    rows,
                    unroll,
                    lane_sum,
                });
                case.check(gpu, m, choice, &caps);
            }
        }
    });
}

#[test]
fn every_int8_tile_is_right_whole_and_split() {
    with_gpu(|gpu| {
        let caps = gpu.caps;
        let none = EpilogueSource::none();
        for (f, (dtype, n, k, m)) in [
            (DType::Q4_0, 130, 32 * 7, 35),
            (DType::Q8_0, 65, 32 * 9, 130),
            (DType::Q4_K, 70, 256 * 3, 17),
            (DType::Q6_K, 200, 256 * 2, 66),
        ]
        .into_iter()
        .enumerate()
        {
            let weight = QuantWeight { dtype, n, k };
            let case = Case::new(gpu, m, weight);
            for (i, tile) in TILES.into_iter().enumerate() {
                // Whole and split, shallow and deep in turn: each takes long to compile.
                let (slices, depth) = ([1, 3, 16][(f + i) % 3], [1, 2, 3][(f + 2 * i) % 3]);
                let choice = QuantMatmulConfig::Int8(Int8Tile { slices, depth, ..tile });
                let list = launches_with(choice, m, weight, 0..n, &none, &caps);
                if let Err(QuantError::Matmul(MatmulError::Unfit { .. })) = list {
                    assert!(tile.workgroup_bytes() / tile.depth * depth > caps.workgroup_memory, "{choice}");
                    continue;
                }
                case.check(gpu, m, choice, &caps);
            }
        }
    });
}

#[test]
fn the_table_has_kernels_for_every_device() {
    with_gpu(|gpu| {
        let small = Caps { subgroups: None, max_invocations: 64, workgroup_memory: 16 << 10, ..gpu.caps };
        for caps in [gpu.caps, small, Caps { max_invocations: 256, ..small }] {
            for dtype in FORMATS {
                for m in [1, 2, 8, 9, 16, 32, 100, 1000] {
                    for (n, k) in [(1, 256), (300, 512), (9728, 2560), (151_936, 2560)] {
                        let weight = QuantWeight { dtype, n, k };
                        for values in [Activations::Q8, Activations::F32] {
                            let choice = choose(m, weight, values, &caps).expect("a kernel");
                            let none = EpilogueSource::none();
                            let list = launches_with(
                                choice,
                                m,
                                weight,
                                0..n,
                                &none,
                                &Caps { max_binding: 1 << 31, ..caps },
                            );
                            assert!(list.is_ok(), "m={m} {weight} {choice}: {list:?}");
                            let all = candidates(m, weight, values, &caps);
                            assert_eq!(all.first(), Some(&choice));
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn many_columns_fold_the_grid() {
    with_gpu(|gpu| {
        let caps = Caps { max_workgroups: 64, ..gpu.caps };
        let weight = QuantWeight { dtype: DType::Q4_0, n: 65_536 + 5, k: 32 };
        let case = Case::new(gpu, 9, weight);
        for m in [1, 9] {
            case.check(gpu, m, chosen(m, weight, Activations::Q8, &caps), &caps);
        }
    });
}

#[test]
fn epilogues_and_parts_reach_every_kernel() {
    with_gpu(|gpu| {
        let weight = QuantWeight { dtype: DType::Q4_K, n: 300, k: 512 };
        let case = Case::new(gpu, 9, weight);
        let row = weight.packed_row_bytes().unwrap();
        let caps = Caps { max_binding: 100 * row, ..gpu.caps };
        let parts = split_columns(weight, &caps).unwrap();
        assert!(parts.len() > 1);
        let epilogue = EpilogueSource::of("2.0 * v + e0 + f32(row)", [EpilogueInput::PerColumn]);
        let bias = random(weight.n, 7);
        let buffer = gpu.upload(&f32_bytes(&bias));
        let mut choices = [1, 3, 9].map(|m| (m, chosen(m, weight, Activations::F32, &caps))).to_vec();
        choices.push((9, chosen(9, weight, Activations::Q8, &caps)));
        let split = Int8Tile { bm: 16, bn: 32, tm: 4, tn: 4, depth: 2, slices: 3 };
        choices.push((9, QuantMatmulConfig::Int8(split)));
        for &(m, choice) in &choices {
            let lists: Vec<_> = parts
                .iter()
                .map(|columns| {
                    let part = (u64::from(columns.start) * row, columns.len() as u64 * row);
                    assert!(
                        part.0.is_multiple_of(caps.binding_alignment.into()) && part.1 <= caps.max_binding
                    );
                    (launches_with(choice, m, weight, columns.clone(), &epilogue, &caps).unwrap(), Some(part))
                })
                .collect();
            let lists: Vec<_> = lists.iter().map(|(list, part)| (list, *part)).collect();
            let got = case.run(gpu, m, &lists, &[&buffer]);
            let n = weight.n as usize;
            let back: Vec<f32> = got
                .iter()
                .enumerate()
                .map(|(i, v)| ((f64::from(*v) - f64::from(bias[i % n]) - (i / n) as f64) / 2.0) as f32)
                .collect();
            case.close(&format!("epilogue, {choice}"), m, choice, &back);
        }
        // As the table has it, on tiles of full size.
        let none = EpilogueSource::none();
        let list_of_9 = launches(9, weight, &none, &gpu.caps).unwrap();
        let got = case.run(gpu, 9, &[(&list_of_9, None)], &[]);
        case.close("the table's choice", 9, choices[3].1, &got);
        let whole = launches(1, weight, &epilogue, &caps);
        assert!(matches!(whole, Err(QuantError::Matmul(MatmulError::Binding { what: "W", .. }))));
    });
}

#[test]
fn a_value_that_is_not_finite_reaches_every_output() {
    with_gpu(|gpu| {
        let weight = QuantWeight { dtype: DType::Q4_K, n: 5, k: 256 };
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = Case::new(gpu, 2, weight);
            case.a[300] = bad;
            let list = launches(2, weight, &EpilogueSource::none(), &gpu.caps).unwrap();
            let got = case.run(gpu, 2, &[(&list, None)], &[]);
            assert!(
                got[..5].iter().all(|v| v.is_finite()) && got[5..].iter().all(|v| !v.is_finite()),
                "{got:?}"
            );
        }
    });
}

#[test]
fn what_cannot_be_multiplied_is_refused() {
    let weight = |dtype, n, k| QuantWeight { dtype, n, k };
    let bytes = |w: QuantWeight| w.packed_bytes();
    assert!(matches!(bytes(weight(DType::Q2_K, 1, 256)), Err(QuantError::Format { .. })));
    assert!(matches!(bytes(weight(DType::F32, 1, 256)), Err(QuantError::Format { .. })));
    for (n, k) in [(0, 256), (1, 0), (1, 32)] {
        assert!(matches!(bytes(weight(DType::Q4_K, n, k)), Err(QuantError::Sides { .. })));
    }
    let wrong = weight(DType::Q4_0, 2, 32).repack(&[0; 35]);
    assert!(matches!(wrong, Err(QuantError::Length { expected: 36, got: 35, .. })));
    // The same information in as many bytes, but for what is rounded up.
    for dtype in FORMATS {
        let exact = 2560 / dtype.block_len() * dtype.block_bytes();
        let packed = weight(dtype, 1, 2560).packed_bytes().unwrap() as usize;
        assert!(packed >= exact && packed <= exact + exact / 100, "{dtype:?}: {packed} for {exact}");
    }
}
