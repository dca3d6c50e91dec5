//! Weights that stay on the GPU, multiplied by new inputs.
//!
//! ```text
//! cargo run --release -p fulmen --example cached_matmul
//! ```

use std::time::Instant;

use fulmen::core::quant;
use fulmen::prelude::*;
use fulmen::wgpu::{CachedMatmul, MatmulInput, MatmulOutput};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (k, n) = (1024, 2048);
    let mut cache = GpuMatmulCache::on(GpuDevice::new()?);
    println!("{}", cache.device().info().name);

    // [n, k], as GGUF and PyTorch's Linear store it: in f32, and in 4-bit blocks.
    let values: Vec<f32> = (0..n * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 500.0).collect();
    cache.upload_weight("f32", &values, n, k)?;
    let blocks = quant::quantize_to_vec(DType::Q4_K, &values)?;
    cache.upload_weight_as("q4_k", DType::Q4_K, &blocks, n, k)?;

    let input: Vec<f32> = (0..k).map(|i| (i as f32 * 0.1).sin()).collect();
    let mut out = vec![0.0; n];
    for name in ["f32", "q4_k"] {
        cache.matmul_cached(name, &input, &mut out, 1)?;
        // From here on no buffers, bind groups or pipelines are created.
        let before = cache.device().stats();
        let start = Instant::now();
        for _ in 0..100 {
            cache.matmul_cached(name, &input, &mut out, 1)?;
        }
        let each = start.elapsed() / 100;
        let made = cache.device().stats().since(&before);
        assert_eq!((made.buffers, made.bind_groups), (0, 0));
        let info = cache.weight(name).ok_or("no such weight")?;
        println!("{name:>5}: {} bytes, {each:?} per matmul, first value {}", info.bytes, out[0]);
    }

    // Two matmuls in one submission; the intermediate result never leaves the GPU.
    cache.upload_weight("down", &values, k, n)?;
    let between = cache.device().create_buffer("example", 4 * n as u64)?;
    let mut last = vec![0.0; k];
    cache.matmul_many(&mut [
        CachedMatmul {
            weight: "f32",
            m: 1,
            input: MatmulInput::Host(&input),
            output: MatmulOutput::Buffer(&between),
        },
        CachedMatmul {
            weight: "down",
            m: 1,
            input: MatmulInput::Buffer(&between),
            output: MatmulOutput::Host(&mut last),
        },
    ])?;
    println!("two matmuls: first value {}", last[0]);
    println!("memory: {:?}", cache.memory());
    Ok(())
}
