//! Graphs on a GPU through wgpu: in CI on a software adapter.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../fulmen-engine/tests/golden/mod.rs"]
mod golden;
#[path = "../../../fulmen-engine/tests/greedy/mod.rs"]
mod greedy;

mod capture;
mod decode_layer;
mod faults;
mod lost;
mod memory;
mod model;
mod offsets;
mod pairs;
mod q8_activations;
mod replay;
mod rope_store;
mod runs;
mod smollm2;

use fulmen_core::DeviceMemory;
use fulmen_wgpu::{DeviceOptions, WgpuDispatcher};

/// A dispatcher on a device of its own.
fn dispatcher() -> WgpuDispatcher {
    with(DeviceOptions::default())
}

fn with(options: DeviceOptions) -> WgpuDispatcher {
    WgpuDispatcher::on(&common::gpu_with(options)).unwrap()
}

/// Values on the device.
fn put<T: bytemuck::NoUninit>(wgpu: &mut WgpuDispatcher, values: &[T]) -> u64 {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let ptr = wgpu.alloc(bytes.len()).unwrap();
    wgpu.write(ptr, bytes).unwrap();
    ptr
}

fn get<T: bytemuck::Pod>(wgpu: &mut WgpuDispatcher, ptr: u64, count: usize) -> Vec<T> {
    let mut out = vec![T::zeroed(); count];
    wgpu.read(ptr, bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}

/// The message of what an error came from.
fn source(error: &fulmen_core::BackendError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
