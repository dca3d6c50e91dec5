//! The matmul cache against f64, and what it keeps, counts and refuses.

mod common;

use std::sync::Arc;

use common::gpu_with;
use fulmen_core::{DType, quant};
use fulmen_wgpu::*;

fn gpu() -> GpuDevice {
    common::gpu()
}

fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.f32() * 2.0 - 1.0).collect()
}

const TYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// A weight: its bytes and the numbers that they mean.
fn weight(dtype: DType, n: usize, k: usize, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let bytes = quant::quantize_to_vec(dtype, &random(seed, n * k)).unwrap();
    let values = quant::dequantize_to_vec(dtype, &bytes, n * k).unwrap();
    (bytes, values)
}

/// Checks a result in f64. Products by blocks round activations to 8 bits.
#[track_caller]
fn check(
    what: &str,
    dtype: DType,
    weight: &[f32],
    input: &[f32],
    got: &[f32],
    (m, k, n): (usize, usize, usize),
) {
    let (mut error, mut power) = (0.0f64, 0.0f64);
    for row in 0..m {
        for col in 0..n {
            let terms = input[row * k..][..k].iter().zip(&weight[col * k..][..k]);
            let (mut sum, mut size) = (0.0, 0.0);
            for (&a, &b) in terms {
                let term = f64::from(a) * f64::from(b);
                sum += term;
                size += term * term;
            }
            error += (f64::from(got[row * n + col]) - sum).powi(2);
            power += size;
        }
    }
    let bound = if dtype.block_len() > 1 { 2e-4 } else { 1e-11 };
    assert!(
        error <= bound * power.max(1e-30),
        "{what} {dtype:?} m={m} k={k} n={n}: NMSE {:e}",
        error / power
    );
}

fn matmul(cache: &mut GpuMatmulCache, name: &str, input: &[f32], m: usize) -> Vec<f32> {
    let n = cache.weight(name).unwrap().rows;
    let mut out = vec![f32::NAN; m * n];
    cache.matmul_cached(name, input, &mut out, m).unwrap();
    out
}

#[test]
fn every_type_and_every_m_agree_with_f64() {
    let gpu = gpu();
    for dtype in TYPES {
        let mut cache = GpuMatmulCache::on(gpu.clone());
        let block = dtype.block_len();
        let sides: &[(usize, usize)] = match block {
            1 => &[(1, 1), (3, 6), (64, 255), (255, 64)],
            32 => &[(32, 3), (96, 64)],
            _ => &[(256, 6), (512, 65)],
        };
        for &(k, n) in sides {
            let name = format!("{k}x{n}");
            let (bytes, values) = weight(dtype, n, k, 7);
            cache.upload_weight_as(&name, dtype, &bytes, n, k).unwrap();
            for m in [1, 2, 3, 4, 5, 16, 17, 32, 65] {
                let input = random(m as u64, m * k);
                let got = matmul(&mut cache, &name, &input, m);
                check("", dtype, &values, &input, &got, (m, k, n));
            }
        }
    }
}

#[test]
fn a_steady_loop_makes_nothing() {
    let gpu = gpu();
    let mut cache = GpuMatmulCache::on(gpu.clone());
    for (name, dtype, n, k) in
        [("f32", DType::F32, 70, 64), ("q4_k", DType::Q4_K, 40, 256), ("f16", DType::F16, 33, 64)]
    {
        cache.upload_weight_as(name, dtype, &weight(dtype, n, k, 1).0, n, k).unwrap();
    }
    let steps = [("f32", 64), ("q4_k", 256), ("f16", 64)];
    let call = |cache: &mut GpuMatmulCache, seed: u64| {
        for (name, k) in steps {
            for m in [1, 4, 20] {
                matmul(cache, name, &random(seed, m * k), m);
            }
        }
    };
    call(&mut cache, 1);
    call(&mut cache, 2);
    let (before, pipelines, memory) = (gpu.stats(), cache.pipelines(), cache.memory());
    for seed in 3..13 {
        call(&mut cache, seed);
    }
    let did = gpu.stats().since(&before);
    assert_eq!((did.buffers, did.bind_groups, did.shader_modules), (0, 0, 0));
    assert_eq!((did.pipelines_compiled, did.pipelines_loaded), (0, 0));
    assert_eq!((did.submissions, did.passes), (90, 90), "one submission and one pass a call");
    assert_eq!((cache.pipelines(), cache.memory()), (pipelines, memory));
    assert_eq!(did.live_bytes, before.live_bytes);
}

#[test]
fn weights_above_a_binding_are_split_and_so_are_inputs() {
    // The largest binding is 64 KiB: 64 rows of 256 floats, 128 of 16 bits.
    let limit = 64 << 10;
    let gpu = gpu_with(DeviceOptions { max_binding: Some(limit), ..Default::default() });
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K] {
        let (k, n) = (256, 1101);
        let (bytes, values) = weight(dtype, n, k, 3);
        let mut cache = GpuMatmulCache::on(gpu.clone());
        cache.upload_weight_as("w", dtype, &bytes, n, k).unwrap();
        let info = cache.weight("w").unwrap();
        assert!(info.parts as u64 >= info.bytes / limit && info.parts > 1, "{info:?}");
        for m in [1, 3, 9] {
            let input = random(m as u64, m * k);
            let got = matmul(&mut cache, "w", &input, m);
            check("in parts", dtype, &values, &input, &got, (m, k, n));
        }
    }
    // Many rows: an input and a result above a binding.
    let (k, n, m) = (64, 300, 601);
    let (bytes, values) = weight(DType::F32, n, k, 4);
    let mut cache = GpuMatmulCache::on(gpu.clone());
    cache.upload_weight_as("w", DType::F32, &bytes, n, k).unwrap();
    let input = random(5, m * k);
    assert!((m * k * 4) as u64 > limit && (m * n * 4) as u64 > limit);
    let got = matmul(&mut cache, "w", &input, m);
    check("rows in parts", DType::F32, &values, &input, &got, (m, k, n));
    // One row that no binding holds.
    let error = cache.upload_weight("wide", &vec![0.0; 20_000], 1, 20_000).unwrap_err();
    assert!(matches!(error, GpuError::TooLarge { limit: 65_536, .. }), "{error}");
}

#[test]
fn a_small_buffer_limit_splits_too() {
    let gpu = gpu_with(DeviceOptions {
        max_binding: Some(64 << 10),
        max_buffer: Some(256 << 10),
        ..Default::default()
    });
    let (k, n) = (128, 1000);
    let (bytes, values) = weight(DType::F32, n, k, 3);
    let mut cache = GpuMatmulCache::on(gpu);
    cache.upload_weight_as("w", DType::F32, &bytes, n, k).unwrap();
    let input = random(1, 2 * k);
    let got = matmul(&mut cache, "w", &input, 2);
    check("small buffers", DType::F32, &values, &input, &got, (2, k, n));
}

#[test]
fn results_stay_on_the_device_for_matmuls_and_batches() {
    let gpu = gpu();
    let (k, h, n, m) = (64, 96, 40, 3);
    let (up, up_values) = weight(DType::F32, h, k, 1);
    let (down, down_values) = weight(DType::F32, n, h, 2);
    let mut cache = GpuMatmulCache::on(gpu.clone());
    cache.upload_weight_as("up", DType::F32, &up, h, k).unwrap();
    cache.upload_weight_as("down", DType::F32, &down, n, h).unwrap();
    let input = random(3, m * k);
    let between = gpu.create_buffer("test", (m * h * 4) as u64).unwrap();
    let (mut out, mut plain) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
    let before = gpu.stats();
    cache
        .matmul_many(&mut [
            CachedMatmul {
                weight: "up",
                m,
                input: MatmulInput::Host(&input),
                output: MatmulOutput::Buffer(&between),
            },
            CachedMatmul {
                weight: "down",
                m,
                input: MatmulInput::Buffer(&between),
                output: MatmulOutput::Host(&mut out),
            },
        ])
        .unwrap();
    assert_eq!(gpu.stats().since(&before).submissions, 1);
    let inner = matmul(&mut cache, "up", &input, m);
    check("up", DType::F32, &up_values, &input, &inner, (m, k, h));
    cache.matmul_cached("down", &inner, &mut plain, m).unwrap();
    assert_eq!(out, plain, "the same kernels on the same numbers");
    check("down", DType::F32, &down_values, &inner, &out, (m, h, n));
    // A batch takes the result up, and again after the next product.
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let x = batch.import_buffer(Arc::new(between.raw().clone()), m * h);
    let y = batch.scale(x, 2.0);
    for seed in [5, 6] {
        let input = random(seed, m * k);
        let output = MatmulOutput::Buffer(&between);
        cache
            .matmul_many(&mut [CachedMatmul { weight: "up", m, input: MatmulInput::Host(&input), output }])
            .unwrap();
        let got = batch.execute_and_read_blocking(&[y]).unwrap().remove(0);
        let want: Vec<f32> = matmul(&mut cache, "up", &input, m).iter().map(|x| x * 2.0).collect();
        assert_eq!(got, want);
    }
    // Several from the host to the host, of different sizes.
    let (a, b) = (random(8, k), random(9, 5 * h));
    let (mut ya, mut yb) = (vec![f32::NAN; h], vec![f32::NAN; 5 * n]);
    cache
        .matmul_many(&mut [
            CachedMatmul {
                weight: "up",
                m: 1,
                input: MatmulInput::Host(&a),
                output: MatmulOutput::Host(&mut ya),
            },
            CachedMatmul {
                weight: "down",
                m: 5,
                input: MatmulInput::Host(&b),
                output: MatmulOutput::Host(&mut yb),
            },
        ])
        .unwrap();
    check("first", DType::F32, &up_values, &a, &ya, (1, k, h));
    check("second", DType::F32, &down_values, &b, &yb, (5, h, n));
    // And for an executor.
    let mut again = vec![f32::NAN; 5 * n];
    pollster::block_on(cache.matmul_cached_async("down", &b, &mut again, 5)).unwrap();
    assert_eq!(again, yb);
    assert!(cache.matmul_many(&mut []).is_ok());
    let alias = [CachedMatmul {
        weight: "sq",
        m: 1,
        input: MatmulInput::Buffer(&between),
        output: MatmulOutput::Buffer(&between),
    }];
    cache.upload_weight("sq", &random(1, 64), 8, 8).unwrap();
    let error = cache.matmul_many(&mut { alias }).unwrap_err();
    assert!(matches!(error, GpuError::Aliased { .. }), "{error}");
}

#[test]
fn weights_are_replaced_and_removed() {
    let mut cache = GpuMatmulCache::on(gpu());
    cache.upload_weight("w", &[1.0, 2.0, 3.0, 4.0], 2, 2).unwrap();
    let twice = cache.upload_weight("w", &[0.0; 4], 2, 2).unwrap_err();
    assert_eq!(twice, GpuError::WeightExists { call: "upload_weight", name: "w".to_owned() });
    assert_eq!(matmul(&mut cache, "w", &[1.0, 1.0], 1), [3.0, 7.0]);
    let other: Vec<u8> = [2f32; 3].iter().flat_map(|x| x.to_le_bytes()).collect();
    cache.replace_weight("w", DType::F32, &other, 1, 3).unwrap();
    assert_eq!(matmul(&mut cache, "w", &[1.0, 1.0, 1.0], 1), [6.0]);
    assert!(cache.replace_weight("w", DType::F32, &other, 1, 4).is_err());
    assert_eq!(
        matmul(&mut cache, "w", &[1.0, 0.0, 1.0], 1),
        [4.0],
        "the old one stays where the new one fails"
    );
    assert_eq!((cache.weight_count(), cache.weight_bytes()), (1, 16));
    cache.remove_weight("w").unwrap();
    assert_eq!((cache.weight_count(), cache.weight_bytes(), cache.memory().weights), (0, 0, 0));
    for error in [
        cache.remove_weight("w").unwrap_err(),
        cache.matmul_cached("w", &[1.0], &mut [0.0], 1).unwrap_err(),
        cache.replace_weight("w", DType::F32, &other, 1, 3).unwrap_err(),
        cache.time_us("w", 1).unwrap_err(),
    ] {
        assert!(matches!(error, GpuError::UnknownWeight { evicted: false, .. }), "{error}");
    }
    // The memory of a weight is free when nothing refers to it.
    let gpu = cache.device().clone();
    let before = gpu.stats().live_bytes;
    cache.upload_weight("w", &vec![1.0; 1 << 16], 256, 256).unwrap();
    matmul(&mut cache, "w", &[1.0; 256], 1);
    let io = cache.memory().io;
    cache.remove_weight("w").unwrap();
    assert!(gpu.stats().live_bytes <= before + io + (1 << 16), "{} {before}", gpu.stats().live_bytes);
}

#[test]
fn a_budget_evicts_what_was_used_least_recently_or_says_what_is_missing() {
    let gpu = gpu();
    let kib = vec![1.0; 256];
    let options = |evict| MatmulCacheOptions {
        budget: Some(WeightBudget { bytes: 3 << 10, evict }),
        ..Default::default()
    };
    let mut cache = GpuMatmulCache::with_options(gpu.clone(), options(true));
    for name in ["a", "b", "c"] {
        cache.upload_weight(name, &kib, 16, 16).unwrap();
    }
    matmul(&mut cache, "b", &[1.0; 16], 1);
    matmul(&mut cache, "a", &[1.0; 16], 1);
    cache.upload_weight("d", &kib, 16, 16).unwrap();
    let mut names: Vec<&str> = cache.weight_names().collect();
    names.sort_unstable();
    assert_eq!((names, cache.weight_bytes()), (vec!["a", "b", "d"], 3 << 10));
    let error = cache.matmul_cached("c", &[1.0; 16], &mut [0.0; 16], 1).unwrap_err();
    assert!(
        matches!(error, GpuError::UnknownWeight { evicted: true, .. })
            && error.to_string().contains("evicted")
    );
    cache.upload_weight("c", &kib, 16, 16).unwrap();
    assert_eq!(matmul(&mut cache, "c", &[1.0; 16], 1), [16.0; 16]);
    let error = cache.upload_weight("large", &vec![0.0; 1024], 32, 32).unwrap_err();
    let needed = GpuError::OutOfMemory { call: "upload_weight", needed: Some(4096), available: Some(3072) };
    assert_eq!(error, needed);

    let mut cache = GpuMatmulCache::with_options(gpu, options(false));
    cache.upload_weight("a", &kib, 16, 16).unwrap();
    cache.upload_weight("b", &kib, 16, 16).unwrap();
    let error = cache.upload_weight("c", &vec![0.0; 512], 32, 16).unwrap_err();
    let needed = GpuError::OutOfMemory { call: "upload_weight", needed: Some(2048), available: Some(1024) };
    assert_eq!(error, needed);
    assert_eq!(matmul(&mut cache, "a", &[1.0; 16], 1), [16.0; 16], "the cache still works");
    cache.remove_weight("a").unwrap();
    cache.upload_weight("c", &vec![0.0; 512], 32, 16).unwrap();
}

#[test]
fn memory_is_accounted_for() {
    // On a device that the caller has opened.
    let gpu = gpu();
    let mut cache = GpuMatmulCache::new(gpu.wgpu_device().clone(), gpu.wgpu_queue().clone()).unwrap();
    assert_eq!(cache.memory(), CacheMemory::default());
    cache.upload_weight("w", &random(1, 64 * 64), 64, 64).unwrap();
    assert_eq!(cache.memory(), CacheMemory { weights: 64 * 64 * 4, ..Default::default() });
    matmul(&mut cache, "w", &random(2, 64), 1);
    let memory = cache.memory();
    assert_eq!((memory.io, memory.weights), (512, 64 * 64 * 4), "{memory:?}");
    assert!(memory.staging >= 256, "{memory:?}");
    let q = weight(DType::Q4_0, 64, 64, 1).0;
    cache.upload_weight_as("q", DType::Q4_0, &q, 64, 64).unwrap();
    matmul(&mut cache, "q", &random(2, 64), 1);
    assert!(cache.memory().scratch > 0, "q8 activations: {:?}", cache.memory());
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let gpu = gpu();
    let mut cache = GpuMatmulCache::on(gpu.clone());
    cache.upload_weight("w", &[1.0; 6], 2, 3).unwrap();
    let mut out = [0.0; 4];
    let cases = [
        (
            cache.upload_weight("x", &[0.0; 5], 2, 3),
            "the data of weight \"x\" must be 24 bytes, for 2 rows of 3, got 20 bytes",
        ),
        (cache.upload_weight("x", &[], 0, 3), "the number of rows of weight \"x\" must be from 1"),
        (cache.upload_weight("x", &[], 3, 0), "the number of columns of weight \"x\" must be from 1"),
        (cache.upload_weight("x", &[], usize::MAX, usize::MAX), "the number of rows"),
        (cache.upload_weight("x", &[], u32::MAX as usize, u32::MAX as usize), "more than there can be"),
        (cache.upload_weight_as("x", DType::Q4_K, &[0; 144], 1, 255), "must be a multiple of 256, got 255"),
        (cache.upload_weight_as("x", DType::Q4_K, &[0; 143], 1, 256), "must be 144 bytes"),
        (
            cache.upload_weight_as("x", DType::Q2_K, &[0; 84], 1, 256),
            "the type of weight \"x\" must be F32, F16",
        ),
        (cache.upload_weight_as("x", DType::U32, &[0; 4], 1, 1), "the type of weight"),
        (cache.matmul_cached("none", &[0.0; 3], &mut out[..2], 1), "there is no weight \"none\""),
        (cache.matmul_cached("w", &[0.0; 3], &mut out[..2], 0), "m must be from 1"),
        (
            cache.matmul_cached("w", &[0.0; 2], &mut out[..2], 1),
            "the length of the input of a matmul with m = 1 by \"w\" must be 3 f32 values, got 2",
        ),
        (cache.matmul_cached("w", &[0.0; 4], &mut out[..2], 1), "must be 3 f32 values, got 4"),
        (
            cache.matmul_cached("w", &[0.0; 6], &mut out[..3], 2),
            "the length of the output of a matmul with m = 2 by \"w\" must be 4 f32 values, got 3",
        ),
    ];
    for (result, part) in cases {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error}\n{part}");
    }
    let small = gpu.create_buffer("test", 16).unwrap();
    let mut many =
        |input, output| cache.matmul_many(&mut [CachedMatmul { weight: "w", m: 2, input, output }]);
    let error = many(MatmulInput::Buffer(&small), MatmulOutput::Host(&mut out)).unwrap_err().to_string();
    assert!(error.contains("must be 24 bytes, got 16"), "{error}");
    let foreign = common::gpu().create_buffer("test", 64).unwrap();
    let error = many(MatmulInput::Host(&[0.0; 6]), MatmulOutput::Buffer(&foreign)).unwrap_err();
    assert!(matches!(error, GpuError::ForeignDevice { .. }), "{error}");
    assert_eq!(matmul(&mut cache, "w", &[1.0; 6], 2), [3.0; 4], "the cache still works");
    assert_eq!(cache.weight_count(), 1);
}

#[test]
fn kernels_with_all_checks_and_without_features_give_the_same_results() {
    let features = [wgpu::Features::empty(), wgpu::Features::all()];
    for (check_trusted, without) in [(true, features[0]), (false, features[1])] {
        let gpu = gpu_with(DeviceOptions { check_trusted, without, ..Default::default() });
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q4_0, DType::Q5_K] {
            let (k, n) = (if dtype.block_len() == 1 { 50 } else { 256 }, 37);
            let (bytes, values) = weight(dtype, n, k, 5);
            let mut cache = GpuMatmulCache::on(gpu.clone());
            cache.upload_weight_as("w", dtype, &bytes, n, k).unwrap();
            // Tiles take long to compile.
            for m in if dtype == DType::F32 || dtype == DType::Q5_K { &[1, 6, 20][..] } else { &[1, 6] } {
                let m = *m;
                let input = random(6, m * k);
                let got = matmul(&mut cache, "w", &input, m);
                check("checked", dtype, &values, &input, &got, (m, k, n));
            }
        }
    }
}

#[test]
fn exact_activations_cost_no_digits() {
    let gpu = gpu();
    for dtype in [DType::Q4_0, DType::Q6_K] {
        let (k, n) = (256, 33);
        let (bytes, values) = weight(dtype, n, k, 9);
        let input = random(10, 12 * k);
        let error = |exact_activations: bool, m: usize| {
            let options = MatmulCacheOptions { exact_activations, ..Default::default() };
            let mut cache = GpuMatmulCache::with_options(gpu.clone(), options);
            cache.upload_weight_as("w", dtype, &bytes, n, k).unwrap();
            let got = matmul(&mut cache, "w", &input[..m * k], m);
            let (mut error, mut power) = (0.0, 0.0);
            for (i, &got) in got.iter().enumerate() {
                let terms = input[i / n * k..][..k].iter().zip(&values[i % n * k..][..k]);
                let want: f64 = terms.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                error += (f64::from(got) - want).powi(2);
                power += want * want;
            }
            error / power
        };
        for m in [1, 12] {
            let (rounded, exact) = (error(false, m), error(true, m));
            assert!(exact < 1e-11, "{dtype:?} m={m}: {exact:e}");
            assert!((1e-8..1e-3).contains(&rounded), "{dtype:?} m={m}: {rounded:e}");
        }
    }
}

#[test]
#[ignore = "fills the memory of the device, which on a software device is the machine's"]
fn a_weight_that_does_not_fit_memory_is_an_error_and_the_cache_works_on() {
    let gpu = gpu();
    let mut cache = GpuMatmulCache::on(gpu.clone());
    cache.upload_weight("small", &[1.0; 16], 4, 4).unwrap();
    assert_eq!(matmul(&mut cache, "small", &[1.0; 4], 1), [4.0; 4]);
    // Before the ballast: on a software device both are the machine's memory.
    let (n, k) = (1 << 15, 1 << 14);
    let data = vec![1.0; n * k];
    // Ballast until less than a GiB is left.
    let (mut ballast, mut size) = (Vec::new(), 16u64 << 30);
    while size >= 1 << 29 {
        match gpu.create_buffer("ballast", size.min(gpu.caps().max_buffer)) {
            Ok(buffer) => ballast.push(buffer),
            Err(GpuError::OutOfMemory { needed, available, .. }) => {
                assert!(needed.is_some() && available.is_some(), "{needed:?} {available:?}");
                size /= 2;
            }
            Err(error) => panic!("{error}"),
        }
    }
    match cache.upload_weight("large", &data, n, k).unwrap_err() {
        GpuError::OutOfMemory { needed: Some(needed), available: Some(available), .. } => {
            println!("{needed} bytes needed, {available} available, {} of ballast", ballast.len());
            assert_eq!(needed, (n * k * 4) as u64);
        }
        error => panic!("{error}"),
    }
    assert_eq!(cache.weight_count(), 1);
    assert_eq!(matmul(&mut cache, "small", &[1.0; 4], 1), [4.0; 4], "the cache still works");
    drop(ballast);
    // Memory is free when the device has noticed that nobody uses it.
    matmul(&mut cache, "small", &[1.0; 4], 1);
    cache.upload_weight("large", &data, n, k).unwrap();
    assert_eq!(matmul(&mut cache, "large", &vec![1.0; k], 1)[..4], [k as f32; 4]);
}
