//! Programs that Vulkan keeps: the same results as encoded ones, and nothing left behind.

mod common;

use std::sync::Arc;

use common::*;
use fulmen_wgpu::{
    BatchOptions, BufferId, DeviceOptions, DispatchList, GpuCommandBatch, GpuDevice, GpuError, PipelineCache,
    RecordMode,
};

/// Whether this device keeps lists whose parameters are immediate data.
fn keeps(gpu: &GpuDevice) -> bool {
    gpu.can_record() && gpu.caps().immediate_bytes > 0
}

/// A chain of operations that depend on each other and on older values, unfused: sixty launches.
fn chain(gpu: &GpuDevice, len: usize) -> (GpuCommandBatch, [BufferId; 2], BufferId) {
    let options = BatchOptions { fuse: false, ..BatchOptions::default() };
    let mut batch = GpuCommandBatch::with_options(gpu.clone(), options);
    let data: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin()).collect();
    let (a, b) = (batch.upload(&data), batch.upload(&data));
    let (mut x, mut old) = (a, b);
    for i in 0..20 {
        let scaled = batch.scale(x, 1.0 + i as f32 * 0.01);
        let sum = batch.add(scaled, old);
        old = x;
        x = batch.tanh(sum);
    }
    (batch, [a, b], x)
}

#[test]
fn replays_give_the_bits_of_encoded_runs() {
    let recorded = gpu();
    let encoded = gpu_with(DeviceOptions { record: RecordMode::Never, ..DeviceOptions::default() });
    for len in [1, 1000, 4099] {
        let mut both = [chain(&recorded, len), chain(&encoded, len)];
        let before = recorded.stats();
        for run in 0..8 {
            let mut seen = Vec::new();
            for (batch, inputs, out) in &mut both {
                let data: Vec<f32> = (0..len).map(|i| ((i + run * 31) as f32 * 0.11).cos()).collect();
                batch.write(inputs[run % 2], &data).unwrap();
                // With and without a read in the same submission.
                if run % 3 == 0 {
                    batch.execute_blocking().unwrap();
                    seen.push(batch.read_blocking(*out).unwrap());
                } else {
                    seen.push(batch.execute_and_read_blocking(&[*out]).unwrap().pop().unwrap());
                }
            }
            assert!(
                seen[0].iter().zip(&seen[1]).all(|(a, b)| a.to_bits() == b.to_bits()),
                "run {run}, {len} elements"
            );
        }
        let did = recorded.stats().since(&before);
        if keeps(&recorded) {
            assert_eq!(did.recordings, 1, "{len} elements");
            assert!(did.replays >= 5, "{did:?}");
            assert_eq!(did.dispatches, did.passes * 60, "{did:?}");
        }
        assert_eq!(encoded.stats().replays, 0);
    }
    // Three kinds of kernels, for all lengths.
    if keeps(&recorded) {
        assert!(recorded.stats().pipelines_recorded <= 6, "{:?}", recorded.stats());
    }
}

/// Increments that depend on each other, of a kernel without run-time checks.
fn increments(gpu: &GpuDevice, cache: &PipelineCache) -> (DispatchList, fulmen_wgpu::GpuBuffer) {
    // SAFETY: it adds to the first 64 elements of a buffer that has as many.
    let pipeline = unsafe { cache.get_trusted(gpu, &increment_kernel()) }.unwrap();
    let buffer = gpu.create_buffer("test", 256).unwrap();
    let dispatches = (0..32).map(|_| dispatch(&pipeline, vec![buffer.whole()], vec![], 1)).collect();
    (DispatchList::compile(gpu, dispatches).unwrap(), buffer)
}

#[test]
fn a_program_is_recorded_from_its_third_run_on() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (list, buffer) = increments(&gpu, &cache);
    for run in 1..=6 {
        list.submit().unwrap();
        assert_eq!(list.is_recorded(), keeps(&gpu) && run >= 3, "run {run}");
        assert_eq!(read(&gpu, &buffer, 1), [32.0 * run as f32]);
    }
}

#[test]
fn by_default_a_program_is_recorded_when_that_pays() {
    if std::env::var_os("FULMEN_WGPU_RECORD").is_some() {
        return; // which decides otherwise
    }
    let (gpu, cache) = (gpu_with(DeviceOptions::default()), PipelineCache::new());
    let (list, buffer) = increments(&gpu, &cache);
    for run in 1..=257 {
        list.submit().unwrap();
        // 256 runs of 32 dispatches, and never in software.
        assert_eq!(list.is_recorded(), keeps(&gpu) && run > 256, "run {run}");
    }
    assert_eq!(read(&gpu, &buffer, 1), [32.0 * 257.0]);
    let software = gpu.info().device_type == wgpu::DeviceType::Cpu;
    assert!(!software || !gpu.can_record());
}

#[test]
fn programs_go_while_they_run() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let mut kept = Vec::new();
    for _ in 0..20 {
        let (list, buffer) = increments(&gpu, &cache);
        for _ in 0..5 {
            list.submit().unwrap();
        }
        drop(list);
        kept.push(buffer);
    }
    for buffer in &kept {
        assert_eq!(read(&gpu, buffer, 1), [160.0]);
    }
    // The device and all that was made with it, while the last runs may be on their way.
    let (list, buffer) = increments(&gpu, &cache);
    for _ in 0..5 {
        list.submit().unwrap();
    }
    drop((kept, gpu, cache, buffer, list));
}

#[test]
fn threads_replay_one_program() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (list, buffer) = increments(&gpu, &cache);
    let list = Arc::new(list);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let list = list.clone();
            scope.spawn(move || {
                for _ in 0..25 {
                    list.submit().unwrap();
                }
            });
        }
    });
    assert_eq!(read(&gpu, &buffer, 1), [3200.0]);
    assert_eq!(list.is_recorded(), keeps(&gpu));
}

#[test]
fn a_destroyed_buffer_is_an_error_of_the_replay() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (list, buffer) = increments(&gpu, &cache);
    for _ in 0..4 {
        list.submit().unwrap();
    }
    buffer.raw().destroy();
    let error = list.submit().unwrap_err();
    assert!(matches!(error, GpuError::Validation { .. }), "{error}");
    // The device goes on.
    let (list, buffer) = increments(&gpu, &cache);
    list.submit().unwrap();
    assert_eq!(read(&gpu, &buffer, 1), [32.0]);
}

#[test]
fn a_lost_device_is_an_error_of_the_replay() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (list, _buffer) = increments(&gpu, &cache);
    for _ in 0..5 {
        list.submit().unwrap();
    }
    gpu.wgpu_device().destroy();
    // The loss may show a moment later, at the latest when somebody waits.
    let lost = (0..2000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        list.submit().err()
    });
    assert!(matches!(lost, Some(GpuError::DeviceLost { .. })), "{lost:?}");
}
