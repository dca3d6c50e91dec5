//! The command batch on a real or a software GPU, against f64.

use std::sync::{Arc, LazyLock};

use fulmen_wgpu::*;

static GPU: LazyLock<GpuDevice> = LazyLock::new(|| GpuDevice::new().expect("a Vulkan, Metal or DX12 driver"));

fn batch() -> GpuCommandBatch {
    GpuCommandBatch::new(GPU.clone())
}

fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.f32() * 4.0 - 2.0).collect()
}

fn nmse(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let error: f64 = got.iter().zip(expected).map(|(&g, e)| (f64::from(g) - e).powi(2)).sum();
    error / expected.iter().map(|e| e * e).sum::<f64>().max(1e-30)
}

fn product(a: &[f32], b: &[f32], (m, k, n): (usize, usize, usize), transposed: bool) -> Vec<f64> {
    let at = |r: usize, c: usize, i: usize| {
        let w = if transposed { b[c * k + i] } else { b[i * n + c] };
        f64::from(a[r * k + i]) * f64::from(w)
    };
    (0..m * n).map(|o| (0..k).map(|i| at(o / n, o % n, i)).sum()).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn one_submission_one_pass_and_each_kernel_once() {
    let gpu = GpuDevice::new().unwrap();
    let (cache, mut batch) = (PipelineCache::new(), GpuCommandBatch::new(gpu.clone()));
    let x = batch.upload(&random(1, 1000));
    let mut y = x;
    for _ in 0..10 {
        y = batch.relu(y);
        y = batch.scale(y, 1.5);
    }
    let s = batch.sum(y);
    assert_eq!((batch.num_operations(), batch.num_buffers()), (21, 22));
    let before = gpu.stats();
    batch.execute_with_cache_blocking(&cache).unwrap();
    let first = gpu.stats().since(&before);
    assert_eq!((first.submissions, first.passes), (1, 1));
    assert_eq!(cache.compiled(), cache.len() as u64);
    let compiled = cache.compiled();
    // Again: nothing is made, and there is one submission with one pass.
    let before = gpu.stats();
    batch.execute_with_cache_blocking(&cache).unwrap();
    let again = gpu.stats().since(&before);
    assert_eq!((again.submissions, again.passes, again.buffers, again.bind_groups), (1, 1, 0, 0));
    // Another batch of the same operations compiles nothing.
    let mut other = GpuCommandBatch::new(gpu.clone());
    let mut z = other.upload(&random(2, 1000));
    for _ in 0..10 {
        z = other.relu(z);
        z = other.scale(z, 2.5);
    }
    let t = other.sum(z);
    other.execute_with_cache_blocking(&cache).unwrap();
    assert_eq!(cache.compiled(), compiled);
    let (sum, wide) = (batch.read_blocking(s).unwrap()[0], batch.read_blocking(y).unwrap());
    let expected: f64 = wide.iter().map(|&x| f64::from(x)).sum();
    assert!((f64::from(sum) - expected).abs() <= 1e-5 * expected);
    assert!(other.read_blocking(t).unwrap()[0] > 0.0);
}

#[test]
fn chains_fuse_into_one_kernel_and_agree_with_the_unfused() {
    let data = random(3, 1 << 16);
    let run = |options: BatchOptions| {
        let mut batch = GpuCommandBatch::with_options(GPU.clone(), options);
        let (x, w) = (batch.upload(&data), batch.upload(&random(4, 1 << 16)));
        let mut y = x;
        for i in 0..25 {
            y = batch.relu(y);
            y = batch.scale(y, 1.0 + i as f32 * 0.01);
            y = batch.add(y, w);
            y = batch.tanh(y);
        }
        let out = batch.execute_and_read_blocking(&[y]).unwrap().remove(0);
        (batch.num_launches().unwrap(), out)
    };
    let (fused, a) = run(BatchOptions::default());
    let (unfused, b) = run(BatchOptions { fuse: false, share_memory: true });
    let (kept, c) = run(BatchOptions { fuse: false, share_memory: false });
    assert_eq!((fused, unfused, kept), (1, 100, 100));
    let wide: Vec<f64> = b.iter().map(|&x| x.into()).collect();
    assert!(nmse(&a, &wide) < 1e-12, "{:e}", nmse(&a, &wide));
    assert_eq!(b, c);
}

#[test]
fn a_feed_forward_layer_is_two_kernels() {
    for (m, hidden, inner) in [(1usize, 64usize, 160usize), (3, 48, 100), (33, 64, 96), (70, 20, 36)] {
        let (x, gate) = (random(5, m * hidden), random(6, inner * hidden));
        let (up, down) = (random(7, inner * hidden), random(8, hidden * inner));
        let mut batch = batch();
        let ids = [&x, &gate, &up, &down].map(|data| batch.upload(data));
        let (m32, h32, i32) = (m as u32, hidden as u32, inner as u32);
        let g = batch.matmul_nt(ids[0], ids[1], m32, h32, i32);
        let g = batch.swish(g);
        let u = batch.matmul_nt(ids[0], ids[2], m32, h32, i32);
        let gated = batch.mul(g, u);
        let y = batch.matmul_nt(gated, ids[3], m32, i32, h32);
        let y = batch.add(y, ids[0]);
        let out = batch.execute_and_read_blocking(&[y]).unwrap().remove(0);
        if m == 1 {
            assert_eq!(batch.num_launches(), Some(2), "{batch}");
        }
        let g = product(&x, &gate, (m, hidden, inner), true);
        let u = product(&x, &up, (m, hidden, inner), true);
        let gated: Vec<f32> = g.iter().zip(&u).map(|(&g, &u)| (silu(g) * u) as f32).collect();
        let mut expected = product(&gated, &down, (m, inner, hidden), true);
        expected.iter_mut().zip(&x).for_each(|(y, &x)| *y += f64::from(x));
        assert!(nmse(&out, &expected) < 1e-10, "m={m}: {:e}", nmse(&out, &expected));
        // What fusion did away with can be read all the same.
        let kept = batch.read_blocking(g_id(&batch, 5)).unwrap();
        assert!(nmse(&kept, &g.iter().map(|&g| silu(g)).collect::<Vec<_>>()) < 1e-10);
    }
}

/// The id of the value with this number, as recorded.
fn g_id(batch: &GpuCommandBatch, number: usize) -> BufferId {
    batch.ids().nth(number).unwrap()
}

#[test]
fn every_intermediate_can_be_read() {
    let mut batch = batch();
    let x = batch.upload(&[1.0, 2.0, 3.0, 4.0]);
    let a = batch.scale(x, 2.0);
    let b = batch.add_scalar(a, 1.0);
    let c = batch.mul(b, b);
    assert!(batch.read_blocking(c).is_err());
    batch.execute_blocking().unwrap();
    assert_eq!(batch.read_blocking(c).unwrap(), [9.0, 25.0, 49.0, 81.0]);
    assert_eq!(batch.read_blocking(a).unwrap(), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(
        batch.read_many_blocking(&[b, x]).unwrap(),
        [vec![3.0, 5.0, 7.0, 9.0], vec![1.0, 2.0, 3.0, 4.0]]
    );
    // New data, then more operations.
    batch.write(x, &[0.0, -1.0, 0.5, 10.0]).unwrap();
    batch.execute_blocking().unwrap();
    assert_eq!(batch.read_blocking(c).unwrap(), [1.0, 1.0, 4.0, 441.0]);
    assert_eq!(batch.read_blocking(a).unwrap(), [0.0, -2.0, 1.0, 20.0]);
    let d = batch.sub(c, x);
    assert!(batch.read_blocking(d).is_err());
    batch.execute_blocking().unwrap();
    assert_eq!(batch.read_blocking(d).unwrap(), [1.0, 2.0, 3.5, 431.0]);
    assert_eq!(batch.read_blocking(c).unwrap(), [1.0, 1.0, 4.0, 441.0]);
}

#[test]
fn reductions_are_right_at_every_length() {
    for len in [0usize, 1, 2, 255, 256, 257, 1_000_003] {
        let (a, b) = (random(9, len), random(10, len));
        let mut batch = batch();
        let (x, y) = (batch.upload(&a), batch.upload(&b));
        let ids = [batch.sum(x), batch.max(x), batch.min(x), batch.dot(x, y)];
        let got: Vec<f64> =
            batch.execute_and_read_blocking(&ids).unwrap().into_iter().map(|v| f64::from(v[0])).collect();
        let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (a, b) = (wide(&a), wide(&b));
        let dot: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        let size = a.iter().map(|a| a.abs()).sum::<f64>().max(1.0);
        assert!((got[0] - a.iter().sum::<f64>()).abs() <= 1e-6 * size, "sum of {len}");
        assert_eq!(got[1], a.iter().copied().fold(f64::NEG_INFINITY, f64::max), "max of {len}");
        assert_eq!(got[2], a.iter().copied().fold(f64::INFINITY, f64::min), "min of {len}");
        assert!((got[3] - dot).abs() <= 1e-6 * 2.0 * size, "dot of {len}");
    }
}

#[test]
fn rows_norms_transposes_and_casts() {
    let (rows, width) = (7usize, 300usize);
    let data = random(11, rows * width);
    let (gamma, beta) = (random(12, width), random(13, width));
    let mut batch = batch();
    let (x, g, b) = (batch.upload(&data), batch.upload(&gamma), batch.upload(&beta));
    let softmax = batch.softmax(x, width as u32);
    let rms = batch.rms_norm(x, g, 1e-6);
    let layer = batch.layer_norm(x, g, b, 1e-5);
    let turned = batch.transpose(x, rows as u32, width as u32);
    let small = batch.to_f16(x);
    let biased = batch.bias_add(x, g);
    let column = batch.upload(&random(14, rows));
    let scaled = batch.with_column(ElementwiseOp::Mul, x, column);
    let ids = [softmax, rms, layer, turned, small, biased, scaled];
    let got = batch.execute_and_read_blocking(&ids).unwrap();
    let wide: Vec<f64> = data.iter().map(|&x| x.into()).collect();
    let of_rows = |f: &dyn Fn(&[f64], usize, usize) -> f64| -> Vec<f64> {
        (0..rows * width).map(|i| f(&wide[i / width * width..][..width], i / width, i % width)).collect()
    };
    let square = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>() / width as f64;
    let mean = |row: &[f64]| row.iter().sum::<f64>() / width as f64;
    let columns = random(14, rows);
    let expected = [
        of_rows(&|row, _, c| row[c].exp() / row.iter().map(|x| x.exp()).sum::<f64>()),
        of_rows(&|row, _, c| row[c] / (square(row) + 1e-6).sqrt() * f64::from(gamma[c])),
        of_rows(&|row, _, c| {
            let variance = square(row) - mean(row).powi(2);
            (row[c] - mean(row)) / (variance + 1e-5).sqrt() * f64::from(gamma[c]) + f64::from(beta[c])
        }),
        (0..rows * width).map(|i| wide[i % rows * width + i / rows]).collect(),
        wide.iter().map(|&x| half::f16::from_f64(x).to_f64()).collect(),
        of_rows(&|row, _, c| row[c] + f64::from(gamma[c])),
        of_rows(&|row, r, c| row[c] * f64::from(columns[r])),
    ];
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert!(nmse(got, expected) < 1e-11, "{i}: {:e}", nmse(got, expected));
    }
}

#[test]
fn matmuls_of_both_layouts_with_everything_that_may_follow() {
    for (m, k, n) in [(1usize, 100usize, 70usize), (5, 33, 17), (40, 64, 130)] {
        let (a, b) = (random(15, m * k), random(16, k * n));
        let (bias, residual) = (random(17, n), random(18, m * n));
        for transposed_b in [false, true] {
            let mut batch = batch();
            let ids = [&a, &b, &bias, &residual].map(|data| batch.upload(data));
            let options = MatmulOptions {
                transposed_b,
                bias: Some(ids[2]),
                activation: Some(ElementwiseOp::Gelu),
                residual: Some(ids[3]),
            };
            let y = batch.matmul_with(ids[0], ids[1], m as u32, k as u32, n as u32, options);
            let out = batch.execute_and_read_blocking(&[y]).unwrap().remove(0);
            let expected: Vec<f64> = product(&a, &b, (m, k, n), transposed_b)
                .into_iter()
                .enumerate()
                .map(|(i, v)| {
                    let v = ElementwiseOp::Gelu.reference(&[v + f64::from(bias[i % n])]);
                    v + f64::from(residual[i])
                })
                .collect();
            assert!(nmse(&out, &expected) < 1e-10, "{m} {k} {n}: {:e}", nmse(&out, &expected));
        }
    }
}

#[test]
fn lengths_zero_and_one_and_imports_of_any_size() {
    let mut batch = batch();
    let empty = batch.upload(&[]);
    let (y, one) = (batch.relu(empty), batch.upload(&[-3.0]));
    let z = batch.abs(one);
    // Five floats: not whole vectors.
    let raw = batch.wgpu_device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 20,
        usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    batch.wgpu_queue().write_buffer(&raw, 0, bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0]));
    let imported = batch.import_buffer(Arc::new(raw), 5);
    let w = batch.scale(imported, 10.0);
    let got = batch.execute_and_read_blocking(&[y, z, w]).unwrap();
    assert_eq!(got, [vec![], vec![3.0], vec![10.0, 20.0, 30.0, 40.0, 50.0]]);
}

#[test]
fn wrong_calls_are_refused_by_name() {
    let (mut one, mut two) = (batch(), batch());
    let (a, b) = (one.upload(&[1.0, 2.0]), two.upload(&[1.0, 2.0]));
    let c = one.upload(&[1.0, 2.0, 3.0]);
    let message = |result: Result<BufferId, GpuError>| result.unwrap_err().to_string();
    assert!(message(one.try_relu(b)).starts_with("relu: the buffer id must be one of this batch"));
    assert_eq!(message(one.try_add(a, c)), "add: the number of elements must be 2, got 3");
    assert_eq!(message(one.try_matmul(a, c, 1, 2, 2)), "matmul: the elements of B must be 4, got 3");
    assert_eq!(message(one.try_matmul(a, c, 0, 0, 0)), "matmul: k must be at least 1, got 0");
    let huge = message(one.try_matmul(a, c, u32::MAX, u32::MAX, u32::MAX));
    assert!(huge.starts_with("matmul: the number of elements must be one that fits memory"), "{huge}");
    assert_eq!(
        message(one.try_softmax(c, 2)),
        "softmax: the number of elements must be a multiple of 2, got 3"
    );
    assert!(message(one.try_rms_norm(c, c, f32::NAN)).starts_with("rms_norm: eps must be"));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.mul(a, c))).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().starts_with("mul: the number of elements"));
    assert!(one.write(a, &[1.0]).is_err() && two.read_blocking(a).is_err());
    // The batch is as it was.
    let d = one.add(a, a);
    assert_eq!(one.execute_and_read_blocking(&[d]).unwrap(), [[2.0, 4.0]]);
}

#[test]
fn a_lost_device_is_an_error_and_a_new_one_works() {
    let gpu = GpuDevice::new().unwrap();
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let x = batch.upload(&random(20, 5000));
    let y = batch.exp(x);
    batch.execute_blocking().unwrap();
    gpu.wgpu_device().destroy();
    let error = batch.execute_blocking().and_then(|()| batch.read_blocking(y).map(drop)).unwrap_err();
    assert!(matches!(error, GpuError::DeviceLost { .. }), "{error}");
    let mut batch = GpuCommandBatch::new(GpuDevice::new().unwrap());
    let x = batch.upload(&[0.0]);
    let y = batch.exp(x);
    assert_eq!(batch.execute_and_read_blocking(&[y]).unwrap(), [[1.0]]);
}

#[test]
fn threads_share_a_device() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let data = random(seed, 10_000);
                let mut batch = batch();
                let x = batch.upload(&data);
                let y = batch.scale(x, 3.0);
                let expected: Vec<f32> = data.iter().map(|x| x * 3.0).collect();
                assert_eq!(batch.execute_and_read_blocking(&[y]).unwrap(), [expected]);
            });
        }
    });
}

#[test]
fn futures_run_on_any_executor() {
    let mut batch = batch();
    let x = batch.upload(&[2.0]);
    let y = batch.mul(x, x);
    let got = pollster::block_on(async {
        batch.execute().await?;
        batch.read(y).await
    });
    assert_eq!(got.unwrap(), [4.0]);
}

/// Random trees of operations give what f64 gives, fused and unfused, with memory shared or not.
#[test]
fn random_trees_agree_with_f64() {
    let seed = fulmen_testkit::seed();
    for round in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed + round);
        let len = [1usize, 7, 64, 257, 1000][rng.usize(..5)];
        let inputs: Vec<Vec<f32>> = (0..3).map(|i| random(seed * 7 + round * 3 + i, len)).collect();
        let one = [ElementwiseOp::Relu, ElementwiseOp::Tanh, ElementwiseOp::Sigmoid, ElementwiseOp::Gelu];
        let two = [ElementwiseOp::Add, ElementwiseOp::Sub, ElementwiseOp::Mul, ElementwiseOp::Max];
        let plan: Vec<(usize, usize, usize)> =
            (0..24).map(|i| (rng.usize(..8), rng.usize(..3 + i), rng.usize(..3 + i))).collect();
        let mut wide: Vec<Vec<f64>> = inputs.iter().map(|v| v.iter().map(|&x| x.into()).collect()).collect();
        for &(op, a, b) in &plan {
            let of = |i: usize| match op {
                0..4 => one[op].reference(&[wide[a][i]]),
                _ => two[op - 4].reference(&[wide[a][i], wide[b][i]]),
            };
            // Kept in range: products of products grow without end.
            let values: Vec<f64> = (0..len).map(|i| of(i).clamp(-8.0, 8.0)).collect();
            wide.push(values);
        }
        for (fuse, share_memory) in [(true, true), (false, true), (false, false)] {
            let options = BatchOptions { fuse, share_memory };
            let mut batch = GpuCommandBatch::with_options(GPU.clone(), options);
            let mut ids: Vec<BufferId> = inputs.iter().map(|data| batch.upload(data)).collect();
            for &(op, a, b) in &plan {
                let made = match op {
                    0 => batch.relu(ids[a]),
                    1 => batch.tanh(ids[a]),
                    2 => batch.sigmoid(ids[a]),
                    3 => batch.gelu(ids[a]),
                    4 => batch.add(ids[a], ids[b]),
                    5 => batch.sub(ids[a], ids[b]),
                    6 => batch.mul(ids[a], ids[b]),
                    _ => batch.maximum(ids[a], ids[b]),
                };
                ids.push(batch.clamp(made, -8.0, 8.0));
            }
            batch.execute_blocking().unwrap();
            for (id, expected) in ids.iter().zip(&wide) {
                let got = batch.read_blocking(*id).unwrap();
                // Values that cancel each other leave what was rounded: errors count beside a tenth at least.
                let error: f64 = got.iter().zip(expected).map(|(&g, e)| (f64::from(g) - e).powi(2)).sum();
                let size: f64 = expected.iter().map(|e| e.powi(2).max(0.01)).sum();
                assert!(error <= 1e-9 * size, "seed {seed}, round {round}: {error:e} beside {size:e}");
            }
        }
    }
}

/// Around the last element that one dimension of workgroups reaches, and beyond it.
#[test]
fn lengths_around_the_end_of_a_grid() {
    for len in [65_535 * 256 - 1, 65_535 * 256, 65_535 * 256 + 1] {
        let data: Vec<f32> = (0..len).map(|i| (i % 1000) as f32).collect();
        let mut batch = batch();
        let x = batch.upload(&data);
        let y = batch.add_scalar(x, 1.0);
        let got = batch.execute_and_read_blocking(&[y]).unwrap().remove(0);
        assert_eq!(got.len(), len);
        assert!(got.iter().zip(&data).all(|(y, x)| *y == x + 1.0), "{len}");
    }
}

/// What does not fit one binding is split without the caller's doing; what does not fit a buffer is refused.
#[test]
fn bindings_are_split_on_a_small_device() {
    let options =
        DeviceOptions { max_binding: Some(1 << 20), max_buffer: Some(8 << 20), ..DeviceOptions::default() };
    let mut batch = GpuCommandBatch::new(GpuDevice::with_options(&options).unwrap());
    let (len, k, n) = (1usize << 20, 512usize, 1500usize);
    let (data, a, b) = (random(30, len), random(31, 3 * k), random(32, k * n));
    let (x, left, right) = (batch.upload(&data), batch.upload(&a), batch.upload(&b));
    let y = batch.tanh(x);
    let y = batch.mul(y, x);
    let sum = batch.sum(y);
    let product_id = batch.matmul_nt(left, right, 3, k as u32, n as u32);
    let out = batch.relu(product_id);
    let got = batch.execute_and_read_blocking(&[y, sum, out]).unwrap();
    let expected: Vec<f64> = data.iter().map(|&x| f64::from(x).tanh() * f64::from(x)).collect();
    assert!(nmse(&got[0], &expected) < 1e-12);
    assert!((f64::from(got[1][0]) / expected.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    let expected: Vec<f64> = product(&a, &b, (3, k, n), true).into_iter().map(|v| v.max(0.0)).collect();
    assert!(nmse(&got[2], &expected) < 1e-11);

    let huge = batch.upload(&vec![0.0; 3 << 20]);
    batch.relu(huge);
    let error = batch.execute_blocking().unwrap_err();
    assert!(matches!(error, GpuError::TooLarge { .. }), "{error}");
}

#[test]
fn layers_share_their_kernels() {
    let (cache, hidden, inner) = (PipelineCache::new(), 32u32, 64u32);
    let gpu = GpuDevice::new().unwrap();
    let mut launched = std::collections::HashSet::new();
    for layer in 0..36 {
        let mut batch = GpuCommandBatch::new(gpu.clone());
        let size = (hidden * inner) as usize;
        let x = batch.upload(&random(layer, hidden as usize));
        let weights: Vec<BufferId> = (0..3).map(|i| batch.upload(&random(layer * 3 + i, size))).collect();
        let g = batch.matmul_nt(x, weights[0], 1, hidden, inner);
        let g = batch.swish(g);
        let u = batch.matmul_nt(x, weights[1], 1, hidden, inner);
        let gated = batch.mul(g, u);
        batch.matmul_nt(gated, weights[2], 1, inner, hidden);
        batch.execute_with_cache_blocking(&cache).unwrap();
        launched.insert(batch.num_launches().unwrap());
    }
    assert_eq!(launched, [2].into());
    assert_eq!((cache.len(), cache.compiled()), (2, 2));
}

/// The same operations in one batch, run again, and one by one: the same bits where the arithmetic is
/// the same.
#[test]
fn replay_gives_the_same_bits_and_single_operations_agree() {
    let (data, weights) = (random(40, 6 * 200), random(41, 200 * 90));
    let mut whole = batch();
    let (x, w) = (whole.upload(&data), whole.upload(&weights));
    let p = whole.matmul(x, w, 6, 200, 90);
    let t = whole.tanh(p);
    let s = whole.softmax(t, 90);
    let first = whole.execute_and_read_blocking(&[t, s]).unwrap();
    for _ in 0..3 {
        assert_eq!(whole.execute_and_read_blocking(&[t, s]).unwrap(), first);
    }
    let alone = |input: &[f32], op: &dyn Fn(&mut GpuCommandBatch, BufferId) -> BufferId| {
        let mut batch = batch();
        let x = batch.upload(input);
        let y = op(&mut batch, x);
        batch.execute_and_read_blocking(&[y]).unwrap().remove(0)
    };
    let p = alone(&data, &|batch, x| {
        let w = batch.upload(&weights);
        batch.matmul(x, w, 6, 200, 90)
    });
    let t = alone(&p, &|batch, x| batch.tanh(x));
    let s = alone(&t, &|batch, x| batch.softmax(x, 90));
    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    assert!(nmse(&first[0], &wide(&t)) < 1e-13 && nmse(&first[1], &wide(&s)) < 1e-13);
}

/// Fills the device's memory: the error says so, and the device goes on working.
#[test]
#[ignore = "fills the memory of the device, which on a software device is the machine's"]
fn memory_runs_out_with_an_error() {
    let gpu = GpuDevice::new().unwrap();
    let size = gpu.caps().max_buffer.min(2 << 30);
    let mut held = Vec::new();
    let error = loop {
        match gpu.create_buffer("test", size) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
        assert!(held.len() < 4096, "this device has no end");
    };
    assert!(matches!(error, GpuError::OutOfMemory { needed, .. } if needed == Some(size)), "{error}");
    let mut batch = GpuCommandBatch::new(gpu.clone());
    drop(held);
    let x = batch.upload(&[1.0, 2.0]);
    let y = batch.scale(x, 2.0);
    assert_eq!(batch.execute_and_read_blocking(&[y]).unwrap(), [[2.0, 4.0]]);
}

/// The kernels are compiled without run-time checks; with them they give the same bits, so no check
/// ever acts.
#[test]
fn run_time_checks_change_nothing() {
    let run = |check_trusted: bool| {
        let options = DeviceOptions { check_trusted, disk_cache: DiskCache::Off, ..DeviceOptions::default() };
        let mut batch = GpuCommandBatch::new(GpuDevice::with_options(&options).unwrap());
        let (x, w) = (batch.upload(&random(50, 37 * 101)), batch.upload(&random(51, 101 * 45)));
        let (gamma, row) = (batch.upload(&random(52, 45)), batch.upload(&random(53, 101)));
        let many = batch.matmul_nt(x, w, 37, 101, 45);
        let many = batch.gelu(many);
        let normed = batch.rms_norm(many, gamma, 1e-6);
        let soft = batch.softmax(normed, 45);
        let few = batch.matmul_nt(row, w, 1, 101, 45);
        let turned = batch.transpose(many, 37, 45);
        let (sum, dot) = (batch.sum(many), batch.dot(x, x));
        batch.execute_and_read_blocking(&[soft, few, turned, sum, dot]).unwrap()
    };
    assert_eq!(run(false), run(true));
}
