//! What a replayed dispatch costs the processor, and what the run-time checks of trusted kernels would cost the device:
//! `cargo run --release -p fulmen-wgpu --example replay_cost`.

use std::time::Instant;

use fulmen_wgpu::{
    DeviceOptions, GpuDevice, GpuError, PipelineCache, Program, Step,
    kernel::{Access, Kernel},
};

/// Adds a number to each element.
fn add() -> Kernel {
    Kernel {
        label: "add".into(),
        wgsl: "
            struct Params { n: u32, value: f32 }
            @group(0) @binding(0) var<storage, read> input: array<f32>;
            @group(0) @binding(1) var<storage, read_write> output: array<f32>;
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < params.n { output[id.x] = input[id.x] + params.value; }
            }"
        .into(),
        access: vec![Access::Read, Access::ReadWrite],
        param_words: 2,
    }
}

/// Loops over workgroup memory: what the checks slow down most.
fn tile() -> Kernel {
    Kernel {
        label: "tile".into(),
        wgsl: "
            struct Params { rounds: u32, value: f32 }
            @group(0) @binding(0) var<storage, read> input: array<f32>;
            @group(0) @binding(1) var<storage, read_write> output: array<f32>;
            var<workgroup> tile: array<f32, 1024>;
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
                for (var i = l; i < 1024; i += 64) { tile[i] = input[i & 63] + params.value; }
                workgroupBarrier();
                var sum = 0.0;
                for (var i = 0u; i < params.rounds; i++) { sum += tile[(i + l) & 1023]; }
                output[id.x] = sum;
            }"
        .into(),
        access: vec![Access::Read, Access::ReadWrite],
        param_words: 2,
    }
}

fn main() -> Result<(), GpuError> {
    for without in [wgpu::Features::empty(), wgpu::Features::IMMEDIATES] {
        let gpu = GpuDevice::with_options(&DeviceOptions { without, ..DeviceOptions::default() })?;
        let cache = PipelineCache::new();
        let pipeline = cache.get(&gpu, &add())?;
        let buffers = [gpu.create_buffer("example", 256)?, gpu.create_buffer("example", 256)?];
        let steps = (0..1000).map(|i| Step {
            pipeline: pipeline.clone(),
            bindings: vec![buffers[i % 2].whole(), buffers[1 - i % 2].whole()],
            params: vec![64, 1f32.to_bits()],
            workgroups: [1, 1, 1],
            label: "add".to_owned(),
        });
        let program = Program::compile(&gpu, steps.collect())?;
        let mut best = [f64::MAX; 2];
        for _ in 0..50 {
            let start = Instant::now();
            let submission = program.submit()?;
            let submitted = start.elapsed();
            if let Some(submission) = submission {
                gpu.wait(&submission)?;
            }
            for (best, now) in best.iter_mut().zip([submitted, start.elapsed()]) {
                *best = best.min(now.as_secs_f64() * 1e6);
            }
        }
        let [submit, wall] = best;
        println!("{}: {:?}", gpu.info().name, pipeline.param_mode());
        println!(
            "  1000 dispatches: {:.2} µs each to submit, {:.2} µs each in all",
            submit / 1e3,
            wall / 1e3
        );
        let empty = Program::compile(&gpu, vec![])?;
        let one = Instant::now();
        for _ in 0..1000 {
            empty.submit()?;
            gpu.check_alive()?;
        }
        println!("  checking the device: {:.3} µs", one.elapsed().as_secs_f64() * 1e3);
    }
    for check_trusted in [true, false] {
        let gpu = GpuDevice::with_options(&DeviceOptions { check_trusted, ..DeviceOptions::default() })?;
        let cache = PipelineCache::new();
        // SAFETY: it stays inside its 64 inputs, its 65,536 outputs and its tile, its loops end, and it writes the tile
        // before it reads it.
        let pipeline = unsafe { cache.get_trusted(&gpu, &tile()) }?;
        let (from, to) = (gpu.create_buffer("example", 256)?, gpu.create_buffer("example", 4 << 16)?);
        let step = Step {
            pipeline,
            bindings: vec![from.whole(), to.whole()],
            params: vec![4096, 0],
            workgroups: [1024, 1, 1],
            label: "tile".to_owned(),
        };
        let program = Program::compile(&gpu, vec![step])?;
        let mut best = f64::MAX;
        for _ in 0..10 {
            best = best.min(program.profile()?.total_us());
        }
        println!(
            "loop over workgroup memory, checks {}: {best:.1} µs",
            if check_trusted { "on" } else { "off" }
        );
    }
    Ok(())
}
