//! The cooperative-matrix GEMM: its text for every device, its results where the device has cooperative
//! matrices, and elsewhere everything but `coopMultiplyAdd` itself.

mod common_matmul;

use std::sync::Mutex;

use common_matmul::{Buffers, Gpu, bytes_of, value};
use fulmen_core::{DType, Heads, quant};
use fulmen_wgpu::kernel::{Caps, Kernel};
use fulmen_wgpu::kernels::attention::{Attention, AttentionKernel, KvInput, attention_by};
use fulmen_wgpu::kernels::kv::Cache;
use fulmen_wgpu::kernels::matmul::*;
use fulmen_wgpu::kernels::qmatmul::{self, QuantMatmulConfig, QuantWeight};

static GPU: Mutex<Option<Gpu>> = Mutex::new(None);

fn with_gpu(work: impl FnOnce(&Gpu)) {
    let mut guard = GPU.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    work(guard.get_or_insert_with(Gpu::open));
}

const FORMATS: [DType; 7] =
    [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::MXFP4];

/// A device with cooperative matrices.
fn with_cooperative_matrices(caps: Caps) -> Caps {
    let (max_invocations, workgroup_memory) = (1024, 48 << 10);
    Caps {
        f16: true,
        cooperative_matrix: true,
        subgroups: Some((32, 32)),
        max_invocations,
        workgroup_memory,
        ..caps
    }
}

fn shape(m: u32, k: u32, n: u32) -> MatmulShape {
    MatmulShape { m, k, n, b: Layout::Nk, elem: WeightType::F16 }
}

/// Parses and validates the text and translates it as wgpu would for Vulkan.
#[track_caller]
fn translate(kernel: &Kernel) {
    use wgpu::naga;
    // As trusted kernels are compiled: with a constant that makes the translation wait for the pipeline.
    let text = format!(
        "{}var<immediate> params: Params;\noverride fulmen_translate_late: bool = true;\n",
        kernel.module()
    );
    let mut capabilities = naga::valid::Capabilities::default();
    capabilities |= naga::valid::Capabilities::COOPERATIVE_MATRIX
        | naga::valid::Capabilities::SHADER_FLOAT16
        | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | naga::valid::Capabilities::SUBGROUP
        | naga::valid::Capabilities::IMMEDIATES;
    let options = naga::front::wgsl::Options { capabilities, ..naga::front::wgsl::Options::new() };
    let module = naga::front::wgsl::Frontend::new_with_options(options)
        .parse(&text)
        .unwrap_or_else(|error| panic!("{}: {}", kernel.label, error.emit_to_string(&text)));
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    let info = validator
        .validate(&module)
        .unwrap_or_else(|error| panic!("{}: {}", kernel.label, error.emit_to_string(&text)));
    let stage = naga::ShaderStage::Compute;
    let (module, info) = naga::back::pipeline_constants::process_overrides(
        &module,
        &info,
        Some((stage, "main")),
        &Default::default(),
    )
    .unwrap_or_else(|error| panic!("{}: {error}", kernel.label));
    let options = naga::back::spv::Options {
        lang_version: (1, 6),
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: naga::proc::BoundsCheckPolicy::Unchecked,
            buffer: naga::proc::BoundsCheckPolicy::Unchecked,
            ..Default::default()
        },
        ..Default::default()
    };
    let pipeline = naga::back::spv::PipelineOptions { shader_stage: stage, entry_point: "main".to_owned() };
    let words = naga::back::spv::write_vec(&module, &info, &options, Some(&pipeline))
        .unwrap_or_else(|error| panic!("{}: {error}", kernel.label));
    assert!(words.len() > 500, "{}", kernel.label);
}

#[test]
fn every_tile_translates_for_vulkan() {
    with_gpu(|gpu| {
        let (caps, none) = (with_cooperative_matrices(gpu.caps), EpilogueSource::none());
        let bias = EpilogueSource::of("v + e0", [EpilogueInput::PerColumn]);
        for tile in COOP_TILES {
            for (slices, k, n, epilogue) in [(1, 256, 128, &bias), (4, 1000, 65, &none), (1, 33, 64, &none)] {
                let choice = MatmulConfig::Coop(CoopTile { slices, ..tile });
                let list = launches_with(choice, shape(100, k, n), 0..n, epilogue, &caps).unwrap();
                list.launches.iter().for_each(|step| translate(&step.launch.kernel));
            }
            for dtype in FORMATS {
                let weight = QuantWeight { dtype, n: 100, k: 512 };
                let list =
                    qmatmul::launches_with(QuantMatmulConfig::Coop(tile), 64, weight, 0..100, &none, &caps)
                        .unwrap();
                list.launches.iter().for_each(|step| translate(&step.launch.kernel));
            }
        }
    });
}

#[test]
fn attention_translates_for_vulkan() {
    with_gpu(|gpu| {
        let caps = with_cooperative_matrices(gpu.caps);
        for (dtype, head_dim, sequences) in
            [(DType::F16, 128, false), (DType::F16, 80, true), (DType::Q8_0, 64, false)]
        {
            let cache = Cache { dtype, n_pages: 8, n_seqs: 2, seq_pages: 4 };
            let kv = KvInput::Cache { cache, sequences };
            let heads = Heads { n_heads: 8, n_kv_heads: 2, head_dim };
            let spec = Attention { m: 100, heads, scores: 0.1.into(), kv };
            let list =
                attention_by(AttentionKernel::PrefillCoop(FragmentOps::CooperativeMatrix), &spec, &caps)
                    .unwrap();
            list.launches.iter().for_each(|step| translate(&step.launch.kernel));
        }
    });
}

#[test]
fn devices_without_cooperative_matrices_or_with_others_are_refused() {
    with_gpu(|gpu| {
        let (caps, none) = (with_cooperative_matrices(gpu.caps), EpilogueSource::none());
        let lacking = [
            Caps { cooperative_matrix: false, ..caps },
            Caps { subgroups: Some((8, 32)), ..caps },
            Caps { subgroups: None, ..caps },
            Caps { f16: false, ..caps },
            Caps { workgroup_memory: 16 << 10, ..caps },
            Caps { max_invocations: 64, ..caps },
        ];
        for caps in lacking {
            let choice = MatmulConfig::Coop(COOP_TILES[1]);
            let list = launches_with(choice, shape(128, 128, 128), 0..128, &none, &caps);
            assert!(matches!(list, Err(MatmulError::Unfit { .. })), "{caps:?}");
            let all = candidates(shape(128, 128, 128), true, &caps);
            assert!(!all.contains(&choice), "{caps:?}");
        }
        for bad in [
            CoopTile { bk: 16, ..COOP_TILES[1] },
            CoopTile { wm: 24, ..COOP_TILES[1] },
            CoopTile { bm: 96, ..COOP_TILES[1] },
            CoopTile { wm: 128, wn: 128, ..COOP_TILES[1] },
        ] {
            let list = launches_with(MatmulConfig::Coop(bad), shape(128, 128, 128), 0..128, &none, &caps);
            assert!(matches!(list, Err(MatmulError::Unfit { .. })), "{bad}");
        }
        let f32 = MatmulShape::f32(128, 128, 128, Layout::Nk);
        assert!(launches_with(MatmulConfig::Coop(COOP_TILES[1]), f32, 0..128, &none, &caps).is_err());
        assert!(
            pair_launches_with(MatmulConfig::Coop(COOP_TILES[1]), shape(32, 64, 64), &none, &caps).is_err()
        );
        // Nothing takes them unasked: they round A.
        assert!(!candidates(shape(128, 128, 128), false, &caps).contains(&MatmulConfig::Coop(COOP_TILES[1])));
    });
}

fn random(count: u32, seed: u32, scale: f32) -> Vec<f32> {
    (0..count).map(|i| value(i, seed) * scale).collect()
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    bytes_of(&values.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
}

/// The f64 reference; `got` must be within the error of A in f16.
#[track_caller]
fn check(what: &str, (m, k, n): (u32, u32, u32), a: &[f32], b: &[f32], got: &[f32]) {
    let (mut error, mut power) = (0.0, 0.0);
    for row in 0..m as usize {
        for col in 0..n as usize {
            let terms = a[row * k as usize..][..k as usize].iter().zip(&b[col * k as usize..][..k as usize]);
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), (x, y)| {
                let term = f64::from(*x) * f64::from(*y);
                (sum + term, size + term * term)
            });
            error += (f64::from(got[row * n as usize + col]) - sum).powi(2);
            power += size;
        }
    }
    assert!(error <= 1e-6 * power, "{what}: NMSE {:e}", error / power);
}

/// Runs a list over A, B and an output full of NaN.
fn run(gpu: &Gpu, list: &MatmulLaunches, a: &[f32], b: &[u8], count: u32) -> Vec<f32> {
    let (a, b) = (gpu.upload(&f32_bytes(a)), gpu.upload(b));
    let out = gpu.upload(&f32_bytes(&vec![f32::NAN; count as usize + 1]));
    let buffers = Buffers { a: &a, b: [&b, &b], part: None, out: &out, extras: vec![] };
    gpu.run(&gpu.program(gpu.steps(list, &buffers)));
    let mut got = gpu.read_f32(&out, &[(0, u64::from(count) * 4 + 4)]);
    assert!(got.pop().unwrap().is_nan(), "a value past the output was written");
    got
}

/// A matmul with f16 weights, if the device can run the tile.
fn plain(gpu: &Gpu, coop: CoopTile, (m, k, n): (u32, u32, u32), caps: &Caps) {
    if !coop.fits(caps) {
        return;
    }
    // Rows of very different size: each has its own power of two.
    let mut a = random(m * k, 1, 1.0);
    a.chunks_exact_mut(k as usize).enumerate().for_each(|(row, values)| {
        let size = [1.0, 1e-12, 3e7, 1e30][row % 4];
        values.iter_mut().for_each(|x| *x *= size);
    });
    let b: Vec<half::f16> = random(n * k, 2, 0.1).into_iter().map(half::f16::from_f32).collect();
    let bytes: Vec<u8> = b.iter().flat_map(|h| h.to_le_bytes()).collect();
    let none = EpilogueSource::none();
    let list = launches_with(MatmulConfig::Coop(coop), shape(m, k, n), 0..n, &none, caps).unwrap();
    let got = run(gpu, &list, &a, &bytes, m * n);
    let b: Vec<f32> = b.iter().map(|h| h.to_f32()).collect();
    // Row by row, as their sizes differ.
    for row in 0..m as usize {
        let (a, got) = (&a[row * k as usize..][..k as usize], &got[row * n as usize..][..n as usize]);
        check(&format!("{coop} {m}x{k}x{n} row {row}"), (1, k, n), a, &b, got);
    }
}

/// A matmul with block-quantized weights, if the device can run the tile.
fn blocks(gpu: &Gpu, coop: CoopTile, dtype: DType, (m, k, n): (u32, u32, u32), caps: &Caps) {
    if !coop.fits(caps) {
        return;
    }
    let weight = QuantWeight { dtype, n, k };
    let blocks = quant::quantize_to_vec(dtype, &random(n * k, 3, 0.1)).unwrap();
    let values = quant::dequantize_to_vec(dtype, &blocks, (n * k) as usize).unwrap();
    let a = random(m * k, 4, 3.0);
    let none = EpilogueSource::none();
    let list = qmatmul::launches_with(QuantMatmulConfig::Coop(coop), m, weight, 0..n, &none, caps).unwrap();
    let got = run(gpu, &list, &a, &weight.repack(&blocks).unwrap(), m * n);
    check(&format!("{coop} {dtype:?} {m}x{k}x{n}"), (m, k, n), &a, &values, &got);
}

/// Every tile over odd and even shapes, plain and by blocks.
fn every_case(gpu: &Gpu, tiles: &[CoopTile], caps: &Caps) {
    for (i, &tile) in tiles.iter().enumerate() {
        for (j, shape) in [(70, 96, 130), (17, 257, 33), (130, 64, 260)].into_iter().enumerate() {
            // Each takes long to compile: every tile with two of the shapes.
            if (i + j) % 3 != 0 {
                plain(gpu, CoopTile { slices: [1, 2, 3][(i + j) % 3], ..tile }, shape, caps);
            }
        }
        for (j, dtype) in FORMATS.into_iter().enumerate() {
            if (i + j) % 3 == 0 {
                blocks(gpu, CoopTile { slices: 1 + (i as u32 % 2), ..tile }, dtype, (35, 256, 70), caps);
            }
        }
    }
}

/// Sizes below those of a tile, and just beside them.
fn edges(gpu: &Gpu, tile: CoopTile, caps: &Caps) {
    for shape in [(256, 1, 1), (40, 3, 6), (33, 4, 3), (17, 6, 64), (257, 255, 5), (1, 64, 255)] {
        plain(gpu, tile, shape, caps);
    }
    for (dtype, shape) in [
        (DType::Q4_0, (256, 32, 1)),
        (DType::Q4_1, (33, 96, 3)),
        (DType::Q8_0, (40, 64, 6)),
        (DType::Q4_K, (257, 256, 1)),
        (DType::Q5_K, (33, 512, 3)),
        (DType::Q6_K, (17, 256, 255)),
    ] {
        blocks(gpu, tile, dtype, shape, caps);
    }
}

#[test]
fn sizes_below_a_tile_are_right() {
    let small =
        CoopTile { bm: 16, bn: 32, bk: 32, wm: 16, wn: 16, slices: 1, fragment_ops: FragmentOps::Emulated };
    with_gpu(|gpu| edges(gpu, small, &gpu.caps));
}

#[test]
fn sizes_below_a_tile_are_right_on_cooperative_matrices() {
    with_gpu(|gpu| {
        for tile in COOP_TILES {
            edges(gpu, tile, &gpu.caps);
        }
    });
}

#[test]
fn emulated_fragments_are_right_on_any_device() {
    // Small ones, which compile faster: the text is the same but for how often its parts are repeated.
    let tile = |[bm, bn, bk]: [u32; 3], [wm, wn]: [u32; 2]| CoopTile {
        bm,
        bn,
        bk,
        wm,
        wn,
        slices: 1,
        fragment_ops: FragmentOps::Emulated,
    };
    let tiles = [tile([16, 32, 32], [16, 16]), tile([32, 32, 64], [32, 16]), tile([32, 48, 32], [16, 48])];
    with_gpu(|gpu| every_case(gpu, &tiles, &gpu.caps));
}

#[test]
fn every_tile_is_right_on_cooperative_matrices() {
    with_gpu(|gpu| {
        if !gpu.caps.cooperative_matrix {
            println!("{} has no 16 x 16 cooperative matrices: this test ran nothing", gpu.name());
            return;
        }
        every_case(gpu, &COOP_TILES, &gpu.caps);
    });
}

#[test]
fn a_value_that_is_not_finite_reaches_its_row_and_no_other() {
    with_gpu(|gpu| {
        let (m, k, n) = (20, 64, 33);
        let tile = CoopTile {
            bm: 16,
            bn: 32,
            bk: 32,
            wm: 16,
            wn: 16,
            slices: 1,
            fragment_ops: FragmentOps::Emulated,
        };
        let list =
            launches_with(MatmulConfig::Coop(tile), shape(m, k, n), 0..n, &EpilogueSource::none(), &gpu.caps)
                .unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut a = random(m * k, 1, 1.0);
            a[(3 * k + 5) as usize] = bad;
            let b: Vec<u8> =
                random(n * k, 2, 1.0).iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
            let got = run(gpu, &list, &a, &b, m * n);
            for (row, values) in got.chunks_exact(n as usize).enumerate() {
                assert!(values.iter().all(|v| v.is_finite() == (row != 3)), "row {row}: {values:?}");
            }
        }
    });
}
