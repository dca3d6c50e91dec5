//! One element-wise op over a large buffer, compared with a plain wgpu kernel that does the same.

use std::sync::Arc;

use fulmen_wgpu::{GpuCommandBatch, GpuDevice, GpuError};
use serde::Serialize;

use super::timing::BatchCase;
use crate::BenchError;
use crate::ceilings::{BufferPair, MinimumWork};
use crate::data::{check_len, random_value};

/// The plain kernel's times. Field names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RawComparison {
    /// Its time on the GPU in microseconds.
    pub raw_gpu_us: f64,
    /// GB/s, read and written.
    pub raw_gb_s: f64,
    /// Its time divided by that of the batch: above 1, the batch is faster.
    pub ratio: Option<f64>,
}

/// Bytes that are filled on the host and uploaded at a time.
const CHUNK: u64 = 32 << 20;

/// Two buffers of `bytes`, or of less if the device does not have enough memory for three of them: the batch
/// needs one for its result.
pub(crate) fn stream_buffers(gpu: &GpuDevice, bytes: u64) -> Result<BufferPair, GpuError> {
    let caps = gpu.caps();
    let most = caps.max_binding.min(caps.max_buffer).max(1);
    let mut bytes = bytes.min(1 << most.ilog2());
    loop {
        match buffers(gpu, bytes) {
            Ok((input, output)) => return Ok(BufferPair { input, output, bytes }),
            Err(GpuError::OutOfMemory { .. } | GpuError::TooLarge { .. }) if bytes > 1 << 20 => bytes /= 2,
            Err(error) => return Err(error),
        }
    }
}

type Buffers = (fulmen_wgpu::wgpu::Buffer, fulmen_wgpu::wgpu::Buffer);

fn buffers(gpu: &GpuDevice, bytes: u64) -> Result<Buffers, GpuError> {
    let input = gpu.create_buffer("bench", bytes)?;
    let output = gpu.create_buffer("bench", bytes)?;
    // What the batch will need for its result.
    drop(gpu.create_buffer("bench", bytes)?);
    let mut chunk = Vec::new();
    for start in (0..bytes).step_by(CHUNK as usize) {
        let len = CHUNK.min(bytes - start);
        chunk.clear();
        chunk.extend((start / 4..(start + len) / 4).map(element));
        gpu.upload("bench", &input, start, bytemuck::cast_slice(&chunk))?;
    }
    Ok((input.raw().clone(), output.raw().clone()))
}

fn element(index: u64) -> f32 {
    random_value(40, index)
}

/// ReLU over the input buffer; every element is checked.
pub(super) fn case(gpu: &GpuDevice, buffers: &BufferPair, asked: u64) -> Result<BatchCase, BenchError> {
    const NAME: &str = "pass";
    let mut batch = GpuCommandBatch::new(gpu.clone());
    // A binding is at most 4 GiB.
    let len = (buffers.bytes / 4) as usize;
    let x = batch.try_import_buffer(Arc::new(buffers.input.clone()), len)?;
    let out = batch.try_relu(x)?;
    batch.execute_blocking()?;
    let got = batch.read_blocking(out)?;
    check_len(NAME, &got, len)?;
    for (index, &got) in got.iter().enumerate() {
        let expected = element(index as u64).max(0.0);
        if got != expected {
            let expected = expected.into();
            return Err(BenchError::WrongResult { case: NAME.to_owned(), index, expected, got });
        }
    }
    let minimum = MinimumWork { bytes: 2 * buffers.bytes, mostly_read: false, flops: len as u64 };
    let mut note = format!("ReLU over {} MiB", buffers.bytes >> 20);
    if buffers.bytes < asked {
        note += &format!(" (instead of {} MiB: not enough device memory)", asked >> 20);
    }
    Ok(BatchCase { name: NAME.to_owned(), batch, out, minimum, read: false, note: Some(note) })
}
