//! Readback: how long it takes to get bytes from the device to the host.

use std::time::Instant;

use fulmen_wgpu::{GpuBuffer, GpuDevice, GpuError, wgpu};
use serde::Serialize;

use crate::BenchError;
use crate::data::random_value;
use crate::timer::{median, micros, wait};

/// The times for one size. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReadbackTimes {
    /// Bytes that are read.
    pub bytes: u64,
    /// wgpu alone: copy, map, and copy into a new `Vec`.
    pub raw_us: f64,
    /// `GpuDevice::read_many`, into a new `Vec`.
    pub read_us: f64,
    /// `GpuDevice::download_into`, into a `Vec` that is reused.
    pub into_us: f64,
    /// GB/s of wgpu alone.
    pub raw_gb_s: f64,
    /// GB/s of `GpuDevice::read_many`.
    pub read_gb_s: f64,
    /// GB/s of `GpuDevice::download_into`.
    pub into_gb_s: f64,
}

const FULL: [u64; 3] = [1 << 10, 4 << 20, 64 << 20];
const QUICK: [u64; 3] = [1 << 10, 64 << 10, 1 << 20];

/// Times each size, after checking that all three ways give what was written.
pub(super) fn measure(gpu: &GpuDevice, quick: bool, repeat: usize) -> Result<Vec<ReadbackTimes>, BenchError> {
    let sizes = if quick { QUICK } else { FULL };
    sizes.into_iter().map(|bytes| read(gpu, bytes, repeat)).collect()
}

fn read(gpu: &GpuDevice, bytes: u64, repeat: usize) -> Result<ReadbackTimes, BenchError> {
    let data: Vec<u8> = (0..bytes / 4).flat_map(|i| random_value(50, i).to_le_bytes()).collect();
    let buffer = gpu.create_buffer_with("bench", &data)?;
    let staging = gpu.wgpu_device().create_buffer(&wgpu::BufferDescriptor {
        label: Some("raw"),
        size: bytes,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let slice = buffer.slice(0..bytes);
    let mut kept = vec![0; data.len()];
    gpu.download_into(&slice, &mut kept)?;
    for got in [&raw(gpu, &buffer, &staging)?, &gpu.read_many(std::slice::from_ref(&slice))?.concat(), &kept]
    {
        if let Some(index) = (0..data.len().max(got.len())).find(|&i| data.get(i) != got.get(i)) {
            let value = |bytes: &[u8]| bytes.get(index).map_or(f32::NAN, |&byte| byte.into());
            let (expected, got) = (f64::from(value(&data)), value(got));
            return Err(BenchError::WrongResult {
                case: format!("readback of {bytes} bytes"),
                index,
                expected,
                got,
            });
        }
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    // Not interleaved: each way would touch the pages that the next one needs.
    for _ in 0..repeat + 3 {
        let start = Instant::now();
        std::hint::black_box(raw(gpu, &buffer, &staging)?);
        times[0].push(micros(start));
    }
    for _ in 0..repeat + 3 {
        let start = Instant::now();
        std::hint::black_box(gpu.read_many(std::slice::from_ref(&slice))?);
        times[1].push(micros(start));
    }
    for _ in 0..repeat + 3 {
        let start = Instant::now();
        gpu.download_into(&slice, &mut kept)?;
        times[2].push(micros(start));
    }
    let [raw_us, read_us, into_us] = times.map(|mut times| median(&mut times[3..]));
    let gb_s = |us: f64| bytes as f64 / us / 1e3;
    Ok(ReadbackTimes {
        bytes,
        raw_us,
        read_us,
        into_us,
        raw_gb_s: gb_s(raw_us),
        read_gb_s: gb_s(read_us),
        into_gb_s: gb_s(into_us),
    })
}

/// What a program on wgpu alone would do.
fn raw(gpu: &GpuDevice, buffer: &GpuBuffer, staging: &wgpu::Buffer) -> Result<Vec<u8>, GpuError> {
    let mut encoder = gpu.wgpu_device().create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(buffer.raw(), 0, staging, 0, staging.size());
    gpu.wgpu_queue().submit([encoder.finish()]);
    staging.map_async(wgpu::MapMode::Read, .., |_| {});
    wait(gpu)?;
    let bytes = staging.get_mapped_range(..).map(|view| view.to_vec());
    staging.unmap();
    bytes.map_err(|error| GpuError::Internal { call: "get_mapped_range", message: error.to_string() })
}
