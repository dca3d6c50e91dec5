//! One element-wise pass over much memory, beside a raw kernel that does the same.

use std::sync::Arc;

use fulmen_wgpu::{GpuCommandBatch, GpuDevice, GpuError};
use serde::Serialize;

use super::BenchError;
use super::data::{check_len, number};
use super::measure::{Needs, Work};
use super::raw::Arena;

/// The same pass without Fulmen.
#[derive(Debug, Serialize)]
pub(super) struct Beside {
    pub(super) raw_gpu_us: f64,
    pub(super) raw_gb_s: f64,
    /// The raw kernel's time over that of the batch: above 1, the batch is faster.
    pub(super) ratio: Option<f64>,
}

/// Bytes of one piece that is filled on the host.
const PIECE: u64 = 32 << 20;

/// Two buffers of `bytes`, or of less where the device has not as much; room for a third is tried too.
pub(super) fn arena(gpu: &GpuDevice, bytes: u64) -> Result<Arena, GpuError> {
    let caps = gpu.caps();
    let most = caps.max_binding.min(caps.max_buffer).max(1);
    let mut bytes = bytes.min(1 << most.ilog2());
    loop {
        match buffers(gpu, bytes) {
            Ok((input, output)) => return Ok(Arena { input, output, bytes }),
            Err(GpuError::OutOfMemory { .. } | GpuError::TooLarge { .. }) if bytes > 1 << 20 => bytes /= 2,
            Err(error) => return Err(error),
        }
    }
}

type Buffers = (fulmen_wgpu::wgpu::Buffer, fulmen_wgpu::wgpu::Buffer);

fn buffers(gpu: &GpuDevice, bytes: u64) -> Result<Buffers, GpuError> {
    let input = gpu.create_buffer("bench", bytes)?;
    let output = gpu.create_buffer("bench", bytes)?;
    // What the batch will need for its own result.
    drop(gpu.create_buffer("bench", bytes)?);
    let mut piece = Vec::new();
    for start in (0..bytes).step_by(PIECE as usize) {
        let len = PIECE.min(bytes - start);
        piece.clear();
        piece.extend((start / 4..(start + len) / 4).map(element));
        gpu.upload("bench", &input, start, bytemuck::cast_slice(&piece))?;
    }
    Ok((input.raw().clone(), output.raw().clone()))
}

fn element(index: u64) -> f32 {
    number(40, index)
}

/// ReLU over the input of the arena; every element is checked.
pub(super) fn work(gpu: &GpuDevice, arena: &Arena, asked: u64) -> Result<Work, BenchError> {
    const NAME: &str = "pass";
    let mut batch = GpuCommandBatch::new(gpu.clone());
    // At most what a binding holds.
    let len = (arena.bytes / 4) as usize;
    let x = batch.try_import_buffer(Arc::new(arena.input.clone()), len)?;
    let out = batch.try_relu(x)?;
    batch.execute_blocking()?;
    let got = batch.read_blocking(out)?;
    check_len(NAME, &got, len)?;
    for (index, &got) in got.iter().enumerate() {
        let expected = element(index as u64).max(0.0);
        if got != expected {
            let expected = expected.into();
            return Err(BenchError::Wrong { work: NAME.to_owned(), index, expected, got });
        }
    }
    let needs = Needs { bytes: 2 * arena.bytes, mostly_read: false, flops: len as u64 };
    let mut note = format!("relu over {} MiB", arena.bytes >> 20);
    if arena.bytes < asked {
        note += &format!(" (instead of {} MiB: this device has no room for more)", asked >> 20);
    }
    Ok(Work { name: NAME.to_owned(), batch, out, needs, read: false, note: Some(note) })
}
