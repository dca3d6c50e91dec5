//! Operations in place: fewer buffers, the same numbers, and nothing read after it is gone.

use std::sync::Arc;

use fulmen_wgpu::*;

fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.f32() * 4.0 - 2.0).collect()
}

fn batch(gpu: &GpuDevice, fuse: bool) -> GpuCommandBatch {
    GpuCommandBatch::with_options(gpu.clone(), BatchOptions { fuse, ..Default::default() })
}

#[test]
fn a_chain_in_place_needs_the_buffer_of_its_upload_only() {
    let gpu = GpuDevice::new().unwrap();
    let data = random(1, 1003);
    for fuse in [false, true] {
        let mut counted = Vec::new();
        let mut results = Vec::new();
        for in_place in [false, true] {
            let mut batch = batch(&gpu, fuse);
            let mut y = batch.upload(&data);
            for _ in 0..5 {
                y = if in_place { batch.in_place().scale(y, 1.5) } else { batch.scale(y, 1.5) };
                y = if in_place { batch.in_place().relu(y) } else { batch.relu(y) };
            }
            let before = gpu.stats();
            batch.execute_blocking().unwrap();
            counted.push(gpu.stats().since(&before).buffers);
            assert_eq!(batch.num_launches(), Some(if fuse { 1 } else { 10 }));
            results.push(batch.read_blocking(y).unwrap());
        }
        assert_eq!(counted, [2, 1], "the upload, and a result unless it is in place");
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn runs_start_from_what_the_last_one_left_until_the_upload_is_written() {
    let gpu = GpuDevice::new().unwrap();
    let mut batch = batch(&gpu, true);
    let x = batch.upload(&[1.0, 2.0, -3.0]);
    let y = batch.in_place().scale(x, 2.0);
    let doubled = batch.add(y, y);
    batch.execute_blocking().unwrap();
    assert_eq!(batch.read_blocking(y).unwrap(), [2.0, 4.0, -6.0]);
    batch.execute_blocking().unwrap();
    assert_eq!(batch.read_many_blocking(&[y, doubled]).unwrap(), [[4.0, 8.0, -12.0], [8.0, 16.0, -24.0]]);
    batch.write(x, &[1.0, 1.0, 1.0]).unwrap();
    let error = batch.read_blocking(y).unwrap_err().to_string();
    assert!(error.contains("inputs have changed"), "{error}");
    batch.execute_blocking().unwrap();
    assert_eq!(batch.read_many_blocking(&[y, doubled]).unwrap(), [[2.0; 3], [4.0; 3]]);
}

#[test]
fn readers_of_what_is_overwritten_see_it_as_it_was() {
    let gpu = GpuDevice::new().unwrap();
    let data = random(2, 64);
    for fuse in [false, true] {
        let mut batch = batch(&gpu, fuse);
        let (x, w) = (batch.upload(&data), batch.upload(&random(3, 64)));
        // Each would be computed later, or again, if it were fused: as the epilogue of the sum, or when
        // it is read.
        let early = batch.scale(x, 3.0);
        let product = batch.matmul_nt(x, w, 8, 8, 8);
        let y = batch.in_place().neg(x);
        let between = batch.add_scalar(y, 1.0);
        let z = batch.in_place().add(y, early);
        let late = batch.mul(product, between);
        let sum = batch.add(late, z);
        let mut plain = self::batch(&gpu, false);
        let (px, pw) = (plain.upload(&data), plain.upload(&random(3, 64)));
        let p_early = plain.scale(px, 3.0);
        let p_product = plain.matmul_nt(px, pw, 8, 8, 8);
        let py = plain.neg(px);
        let p_between = plain.add_scalar(py, 1.0);
        let pz = plain.add(py, p_early);
        let p_late = plain.mul(p_product, p_between);
        let p_sum = plain.add(p_late, pz);
        batch.execute_blocking().unwrap();
        plain.execute_blocking().unwrap();
        let got = batch.read_many_blocking(&[early, product, between, z, late, sum]).unwrap();
        let want = plain.read_many_blocking(&[p_early, p_product, p_between, pz, p_late, p_sum]).unwrap();
        for (number, (got, want)) in got.iter().zip(&want).enumerate() {
            for (g, w) in got.iter().zip(want) {
                assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "value {number}, fuse {fuse}: {g} {w}");
            }
        }
    }
}

#[test]
fn row_operations_and_imports_are_overwritten_too() {
    let gpu = GpuDevice::new().unwrap();
    let (data, gain, shift) = (random(4, 40), random(5, 8), random(6, 8));
    let buffer = gpu.create_buffer_with("test", bytemuck::cast_slice(&data)).unwrap();
    let mut batch = batch(&gpu, true);
    let x = batch.import_buffer(Arc::new(buffer.raw().clone()), 40);
    let (g, b) = (batch.upload(&gain), batch.upload(&shift));
    let mut y = batch.in_place().rms_norm(x, g, 1e-5);
    y = batch.in_place().bias_add(y, b);
    y = batch.in_place().softmax(y, 8);
    y = batch.in_place().layer_norm(y, g, b, 1e-5);
    y = batch.in_place().with_row(y, ElementwiseOp::Mul, g);
    y = batch.in_place().clamp(y, -1.0, 1.0);
    y = batch.in_place().add_scalar(y, 0.5);
    let before = gpu.stats();
    batch.execute_blocking().unwrap();
    assert_eq!(gpu.stats().since(&before).buffers, 2, "the uploads of gain and shift");
    let mut plain = self::batch(&gpu, true);
    let (px, pg, pb) = (plain.upload(&data), plain.upload(&gain), plain.upload(&shift));
    let mut p = plain.rms_norm(px, pg, 1e-5);
    p = plain.bias_add(p, pb);
    p = plain.softmax(p, 8);
    p = plain.layer_norm(p, pg, pb, 1e-5);
    p = plain.with_row(ElementwiseOp::Mul, p, pg);
    p = plain.clamp(p, -1.0, 1.0);
    p = plain.add_scalar(p, 0.5);
    plain.execute_blocking().unwrap();
    let want = plain.read_blocking(p).unwrap();
    assert_eq!(batch.read_blocking(y).unwrap(), want);
    // The caller's own buffer has changed.
    let bytes = gpu.read_many(&[buffer.slice(0..160)]).unwrap().concat();
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), want);
}

#[test]
fn what_is_gone_or_cannot_be_overwritten_is_refused() {
    let gpu = GpuDevice::new().unwrap();
    let mut batch = batch(&gpu, true);
    let x = batch.upload(&[1.0; 8]);
    let y = batch.in_place().relu(x);
    let count = batch.num_buffers();
    for error in [
        batch.try_relu(x).unwrap_err(),
        batch.try_sum(x).unwrap_err(),
        batch.try_add(y, x).unwrap_err(),
        batch.in_place().try_neg(x).unwrap_err(),
    ] {
        assert!(error.to_string().contains("which relu (value"), "{error}");
    }
    batch.execute_blocking().unwrap();
    assert!(batch.read_blocking(x).is_err());
    // A gain that is what is overwritten; 16 bits; an import that is no whole vector.
    let error = batch.in_place().try_rms_norm(y, y, 1e-5).unwrap_err().to_string();
    assert!(error.starts_with("rms_norm: a second operand must be another value"), "{error}");
    assert_eq!(batch.num_buffers(), count, "nothing was recorded");
    let half = batch.upload_as(&[1.0; 8], kernels::Elem::F16);
    let error = batch.in_place().try_neg(half).unwrap_err().to_string();
    assert!(error.contains("must be F32, got F16"), "{error}");
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    let descriptor = wgpu::BufferDescriptor { label: None, size: 12, usage, mapped_at_creation: false };
    let import = batch.import_buffer(Arc::new(gpu.wgpu_device().create_buffer(&descriptor)), 3);
    let error = batch.in_place().try_neg(import).unwrap_err().to_string();
    assert!(error.contains("at least 16 bytes"), "{error}");
    let text = batch.to_string();
    assert!(text.contains("relu(%0) overwriting %0"), "{text}");
}
