//! A feed-forward layer whose weights stay on the GPU: recorded once, run with several inputs, and profiled.
//!
//! ```text
//! cargo run --release -p fulmen --example ffn
//! ```

use std::sync::Arc;

use fulmen::prelude::*;
use fulmen::wgpu::wgpu::{Buffer, BufferDescriptor, BufferUsages};

const HIDDEN: usize = 512;
const INNER: usize = 1536;

/// A weight matrix in a separate buffer: `import_buffer` shares it with any number of batches.
fn weight(gpu: &GpuDevice, rows: usize, columns: usize) -> Arc<Buffer> {
    let values = (0..rows * columns).map(|i| ((i * 7919 % 2003) as f32 / 1001.0 - 1.0) / columns as f32);
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let buffer = gpu.wgpu_device().create_buffer(&BufferDescriptor {
        label: Some("weight"),
        size: bytes.len() as u64,
        usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    gpu.wgpu_queue().write_buffer(&buffer, 0, &bytes);
    Arc::new(buffer)
}

fn main() -> Result<(), GpuError> {
    let gpu = GpuDevice::new()?;
    println!("{}", gpu.info().name);
    let (gate, up) = (weight(&gpu, INNER, HIDDEN), weight(&gpu, INNER, HIDDEN));
    let down = weight(&gpu, HIDDEN, INNER);

    // Recorded once. Weights are [outputs, inputs], as models store them.
    let mut batch = GpuCommandBatch::new(gpu);
    let (h, i) = (HIDDEN as u32, INNER as u32);
    let x = batch.upload(&[0.0; HIDDEN]);
    let gate = batch.import_buffer(gate, INNER * HIDDEN);
    let up = batch.import_buffer(up, INNER * HIDDEN);
    let down = batch.import_buffer(down, HIDDEN * INNER);
    let g = batch.matmul_nt(x, gate, 1, h, i);
    let g = batch.swish(g);
    let u = batch.matmul_nt(x, up, 1, h, i);
    let gated = batch.mul(g, u);
    let y = batch.matmul_nt(gated, down, 1, i, h);
    let y = batch.add(y, x);

    // Run for each input: only the first run compiles the kernels.
    for step in 1..=3 {
        let input: Vec<f32> = (0..HIDDEN).map(|i| (i * step) as f32 / HIDDEN as f32).collect();
        batch.write(x, &input)?;
        let out = batch.execute_and_read_blocking(&[y])?.remove(0);
        println!("step {step}: y[..4] = {:?}", &out[..4]);
    }
    println!("{} operations, {} kernels", batch.num_operations(), batch.num_launches().unwrap_or(0));

    // The time of each kernel, if the device supports timestamps.
    match batch.execute_profiled() {
        Ok(profile) => {
            for step in &profile.dispatches {
                println!("{:>8.1} µs  {}", step.duration_us, step.label);
            }
        }
        Err(GpuError::Unsupported { what, .. }) => println!("this device has no {what}"),
        Err(error) => return Err(error),
    }
    Ok(())
}
