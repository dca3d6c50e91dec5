//! Array round trips and replays, timed: what `examples/python/overhead.py` times from Python.
//! `scripts/bench-python` runs both and compares. Without a device of wgpu there are no figures.
//!
//! ```text
//! cargo run --release -p fulmen --example overhead
//! ```

use std::time::{Duration, Instant};

use fulmen::prelude::*;
use fulmen::wgpu::BatchOptions;

/// 64 MiB of f32.
const ELEMENTS: usize = 16 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = match GpuDevice::new() {
        Err(GpuError::NoAdapter { .. }) => {
            println!("{{}}");
            return Ok(());
        }
        opened => opened?,
    };
    let (write, read) = round_trip(gpu.clone())?;
    let Replays { replay, replay_input, input } = replays(gpu)?;
    let times = [
        ("write", write),
        ("read", read),
        ("replay", replay),
        ("replay_input", replay_input),
        ("input", input),
    ];
    let fields: Vec<String> =
        times.iter().map(|(name, time)| format!("\"{name}_us\": {:.3}", time.as_secs_f64() * 1e6)).collect();
    println!("{{{}}}", fields.join(", "));
    Ok(())
}

/// The shortest times of writing an array to the GPU and of reading it.
fn round_trip(gpu: GpuDevice) -> Result<(Duration, Duration), GpuError> {
    let options = BatchOptions { share_memory: false, ..BatchOptions::default() };
    let mut batch = GpuCommandBatch::with_options(gpu, options);
    let data: Vec<f32> = (0..ELEMENTS).map(|i| i as f32).collect();
    let value = batch.upload(&data);
    batch.execute_blocking()?;
    let mut out = vec![0.0; ELEMENTS];
    let (mut write, mut read) = (Duration::MAX, Duration::MAX);
    for _ in 0..7 {
        let start = Instant::now();
        batch.write(value, &data)?;
        batch.execute_blocking()?;
        let wrote = Instant::now();
        batch.read_into_blocking(value, &mut out)?;
        read = read.min(wrote.elapsed());
        write = write.min(wrote - start);
    }
    assert_eq!(out, data);
    Ok((write, read))
}

/// The shortest times of one of 100 calls.
struct Replays {
    /// A replay of a small batch.
    replay: Duration,
    /// A replay with a new input.
    replay_input: Duration,
    /// Writing the input alone.
    input: Duration,
}

fn replays(gpu: GpuDevice) -> Result<Replays, GpuError> {
    let mut batch = GpuCommandBatch::new(gpu);
    let x = batch.upload(&[1.0; 64]);
    let doubled = batch.scale(x, 2.0);
    let y = batch.relu(doubled);
    batch.execute_and_read_blocking(&[y])?;
    let new = [3.0; 64];
    let mut hundred = |call: &dyn Fn(&mut GpuCommandBatch) -> Result<(), GpuError>| {
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..100 {
                call(&mut batch)?;
            }
            best = best.min(start.elapsed() / 100);
            batch.execute_and_read_blocking(&[y])?;
        }
        Ok::<_, GpuError>(best)
    };
    let replay = hundred(&|batch| batch.execute_blocking())?;
    let replay_input = hundred(&|batch| {
        batch.write(x, &new)?;
        batch.execute_blocking()
    })?;
    let input = hundred(&|batch| batch.write(x, &new))?;
    Ok(Replays { replay, replay_input, input })
}
