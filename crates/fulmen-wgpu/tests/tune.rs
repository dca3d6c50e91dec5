//! Measuring kernels: only right ones are taken, and what was measured is remembered by caches, batches and
//! processes.

mod common;

use std::{fs, time::Duration};

use common::gpu_with;
use fulmen_core::{DType, quant};
use fulmen_wgpu::tune::{Outcome, TuneOptions};
use fulmen_wgpu::*;

const QUICK: TuneOptions = TuneOptions { runs: 1, warm_up: Duration::ZERO };

fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.f32() * 2.0 - 1.0).collect()
}

/// The product in f64.
fn reference(input: &[f32], weight: &[f32], (m, k, n): (usize, usize, usize)) -> Vec<f64> {
    let dot = |row: usize, col: usize| {
        let terms = input[row * k..][..k].iter().zip(&weight[col * k..][..k]);
        terms.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    (0..m * n).map(|i| dot(i / n, i % n)).collect()
}

fn close(got: &[f32], want: &[f64], bound: f64) -> bool {
    let error: f64 = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
    error <= bound * want.iter().map(|w| w * w).sum::<f64>()
}

#[test]
fn the_fastest_right_kernel_is_remembered_and_a_wrong_one_never_taken() {
    let folder = std::env::temp_dir().join(format!("fulmen-tune-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let open =
        || gpu_with(DeviceOptions { disk_cache: DiskCache::Folder(folder.clone()), ..Default::default() });
    let gpu = open();
    let (m, k, n) = (2, 96, 40);
    let blocks = quant::quantize_to_vec(DType::Q8_0, &random(1, n * k)).unwrap();
    let values = quant::dequantize_to_vec(DType::Q8_0, &blocks, n * k).unwrap();
    let input = random(2, m * k);
    let want = reference(&input, &values, (m, k, n));
    let mut cache = GpuMatmulCache::on(gpu.clone());
    cache.upload_weight_as("w", DType::Q8_0, &blocks, n, k).unwrap();
    let table = cache.kernels("w", m).unwrap();

    // The first four candidates are called wrong, whatever they give.
    let mut calls = 0;
    let mut is_right = |got: &[f32]| {
        calls += 1;
        assert!(close(got, &want, 1e-3), "every candidate is right in truth");
        calls > 4
    };
    let tuning = cache.tune("w", &input, m, QUICK, &mut is_right).unwrap();
    let outcomes: Vec<&Outcome> = tuning.candidates.iter().map(|c| &c.outcome).collect();
    assert!(outcomes[..4].iter().all(|outcome| **outcome == Outcome::Wrong), "{outcomes:?}");
    let best = tuning.best.unwrap();
    assert!(best >= 4 && tuning.micros(best).is_some() && tuning.micros(0).is_none());
    assert!(
        tuning.candidates[0].kernel == table[1].trim_start_matches("qmatmul ") || table[1].contains("rows")
    );
    let chosen = tuning.candidates[best].kernel.clone();
    assert!(cache.kernels("w", m).unwrap().iter().any(|label| label.contains(&chosen)), "{chosen}");
    let mut out = vec![0.0; m * n];
    cache.matmul_cached("w", &input, &mut out, m).unwrap();
    assert!(close(&out, &want, 1e-3));

    // Another cache of this device, and one of another process.
    assert_eq!(gpu.tuned_matmuls(), 1);
    gpu.save_tuned().unwrap();
    for gpu in [gpu, open()] {
        assert_eq!(gpu.tuned_matmuls(), 1);
        let mut other = GpuMatmulCache::on(gpu);
        other.upload_weight_as("same shape", DType::Q8_0, &blocks, n, k).unwrap();
        let labels = other.kernels("same shape", m).unwrap();
        assert!(labels.iter().any(|label| label.contains(&chosen)), "{labels:?} {chosen}");
    }
    // A file that is damaged is taken for none.
    let file =
        fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).find(|p| p.extension().unwrap() == "tuned");
    fs::write(file.unwrap(), b"nonsense").unwrap();
    let gpu = open();
    assert_eq!(gpu.tuned_matmuls(), 0);
    let mut cache = GpuMatmulCache::on(gpu.clone());
    cache.upload_weight_as("w", DType::Q8_0, &blocks, n, k).unwrap();
    assert_eq!(cache.kernels("w", m).unwrap(), table);
    // Where none is right, none is remembered.
    let tuning = cache.tune("w", &input, m, QUICK, &mut |_| false).unwrap();
    assert_eq!((tuning.best, gpu.tuned_matmuls()), (None, 0));
    assert_eq!(cache.kernels("w", m).unwrap(), table);
    drop((cache, gpu));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_batch_takes_what_was_measured() {
    let gpu = common::gpu();
    let (m, k, n) = (3, 64, 48);
    let (input, weight) = (random(1, m * k), random(2, n * k));
    let want = reference(&input, &weight, (m, k, n));
    let mut cache = GpuMatmulCache::with_options(
        gpu.clone(),
        MatmulCacheOptions { exact_activations: true, ..Default::default() },
    );
    cache.upload_weight("w", &weight, n, k).unwrap();
    let label = |gpu: &GpuDevice| {
        let mut batch = GpuCommandBatch::new(gpu.clone());
        let (a, b) = (batch.upload(&input), batch.upload(&weight));
        let y = batch.matmul_nt(a, b, m as u32, k as u32, n as u32);
        let got = batch.execute_and_read_blocking(&[y]).unwrap().remove(0);
        assert!(close(&got, &want, 1e-11));
        batch.execute_profiled().unwrap().dispatches.remove(0).label
    };
    let before = label(&gpu);
    // All are right, but the table's own is called wrong: another one is taken.
    let mut first = true;
    let mut is_right = |got: &[f32]| !std::mem::take(&mut first) && close(got, &want, 1e-11);
    let tuning = cache.tune("w", &input, m, QUICK, &mut is_right).unwrap();
    let best = &tuning.candidates[tuning.best.unwrap()];
    assert!(label(&gpu).contains(&best.kernel) && !before.contains(&best.kernel), "{before} {}", best.kernel);
}

#[test]
fn unknown_weights_and_lengths_are_refused() {
    let mut cache = GpuMatmulCache::on(common::gpu());
    let error = cache.tune("none", &[], 1, QUICK, &mut |_| true).unwrap_err();
    assert!(matches!(error, GpuError::UnknownWeight { .. }), "{error}");
    cache.upload_weight("w", &[1.0; 4], 2, 2).unwrap();
    assert!(cache.tune("w", &[1.0; 2], 0, QUICK, &mut |_| true).is_err());
    // An input of the wrong length makes every candidate refuse, and changes nothing.
    let tuning = cache.tune("w", &[1.0; 3], 1, QUICK, &mut |_| true);
    assert!(tuning.is_err() || tuning.unwrap().best.is_none());
    let mut out = [0.0; 2];
    cache.matmul_cached("w", &[1.0; 2], &mut out, 1).unwrap();
    assert_eq!(out, [2.0; 2]);
}
