//! Kernels and helpers that the tests share.
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use fulmen_wgpu::{
    BufferSlice, DeviceOptions, DiskCache, Dispatch, GpuBuffer, GpuDevice, Pipeline, PipelineCache,
    RecordMode,
    kernel::{Kernel, StorageBinding},
};

/// A device without a disk cache, which records lists as soon as it can. Software will do, but there
/// must be one.
pub(crate) fn gpu() -> GpuDevice {
    gpu_with(DeviceOptions { record: RecordMode::Always, ..DeviceOptions::default() })
}

pub(crate) fn gpu_with(options: DeviceOptions) -> GpuDevice {
    let disk_cache = match options.disk_cache {
        DiskCache::UserFolder => DiskCache::Off,
        other => other,
    };
    GpuDevice::with_options(&DeviceOptions { disk_cache, ..options }).unwrap_or_else(|error| {
        panic!("these tests need a GPU adapter, hardware or software; ./scripts/test installs one: {error}")
    })
}

/// `out[i] = a[i] + factor * b[i]` for `i < n`.
pub(crate) fn add_kernel() -> Kernel {
    Kernel {
        label: "add".into(),
        wgsl: "
            struct Params { n: u32, factor: f32 }
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < params.n { out[id.x] = a[id.x] + params.factor * b[id.x]; }
            }"
        .into(),
        bindings: vec![
            StorageBinding::read("a", "f32"),
            StorageBinding::read("b", "f32"),
            StorageBinding::read_write("out", "f32"),
        ],
        param_words: 2,
    }
}

/// `data[i] += 1` for all of it; no parameters.
pub(crate) fn increment_kernel() -> Kernel {
    Kernel {
        label: "increment".into(),
        wgsl: "
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < arrayLength(&data) { data[id.x] += 1.0; }
            }"
        .into(),
        bindings: vec![StorageBinding::read_write("data", "f32")],
        param_words: 0,
    }
}

pub(crate) fn dispatch(
    pipeline: &Arc<Pipeline>,
    bindings: Vec<BufferSlice>,
    params: Vec<u32>,
    groups: u32,
) -> Dispatch {
    let label = pipeline.label().to_owned();
    Dispatch { pipeline: pipeline.clone(), bindings, params, workgroups: [groups, 1, 1], label }
}

/// `a + factor * b` as a dispatch, with the buffer it writes.
pub(crate) fn add_dispatch(
    gpu: &GpuDevice,
    cache: &PipelineCache,
    a: &[f32],
    b: &[f32],
    factor: f32,
) -> (Dispatch, GpuBuffer) {
    let pipeline = cache.get(gpu, &add_kernel()).unwrap();
    let (a_buffer, b_buffer) = (buffer(gpu, a), buffer(gpu, b));
    let out = gpu.create_buffer("test", a.len() as u64 * 4).unwrap();
    let n = a.len() as u32;
    let bindings = vec![a_buffer.whole(), b_buffer.whole(), out.whole()];
    (dispatch(&pipeline, bindings, vec![n, factor.to_bits()], n.div_ceil(64)), out)
}

pub(crate) fn buffer(gpu: &GpuDevice, data: &[f32]) -> GpuBuffer {
    gpu.create_buffer_with("test", &bytes(data)).unwrap()
}

pub(crate) fn bytes(data: &[f32]) -> Vec<u8> {
    data.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

pub(crate) fn read(gpu: &GpuDevice, buffer: &GpuBuffer, count: usize) -> Vec<f32> {
    floats(&gpu.read_many(&[buffer.slice(0..count as u64 * 4)]).unwrap()[0])
}
