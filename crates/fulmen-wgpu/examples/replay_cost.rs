//! What a replayed dispatch costs the processor, and what the run-time checks of trusted kernels would
//! cost the device: `cargo run --release -p fulmen-wgpu --example replay_cost`.

use std::time::Instant;

use fulmen_wgpu::{
    DeviceOptions, Dispatch, DispatchList, GpuDevice, GpuError, PipelineCache, RecordMode,
    kernel::{Kernel, StorageBinding},
};

/// Adds a number to each element.
fn add() -> Kernel {
    Kernel {
        label: "add".into(),
        wgsl: "
            struct Params { n: u32, value: f32 }
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < params.n { output[id.x] = input[id.x] + params.value; }
            }"
        .into(),
        bindings: vec![StorageBinding::read("input", "f32"), StorageBinding::read_write("output", "f32")],
        param_words: 2,
    }
}

/// Loops over workgroup memory: what the checks slow down most.
fn tile() -> Kernel {
    Kernel {
        label: "tile".into(),
        wgsl: "
            struct Params { rounds: u32, value: f32 }
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
        bindings: vec![StorageBinding::read("input", "f32"), StorageBinding::read_write("output", "f32")],
        param_words: 2,
    }
}

/// Dispatches of the comparison with raw wgpu.
const MANY: usize = 100;

/// One hundred dispatches of one kernel on one bind group, in place: by wgpu alone, and by a list.
fn beside_raw() -> Result<(), GpuError> {
    let gpu =
        GpuDevice::with_options(&DeviceOptions { record: RecordMode::Always, ..DeviceOptions::default() })?;
    let cache = PipelineCache::new();
    let kernel = Kernel {
        label: "increment".into(),
        wgsl: "
            struct Params { n: u32, value: f32 }
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < params.n { data[id.x] += params.value; }
            }"
        .into(),
        bindings: vec![StorageBinding::read_write("data", "f32")],
        param_words: 2,
    };
    // SAFETY: it adds to as many elements as its parameter says, which the buffer has.
    let pipeline = unsafe { cache.get_trusted(&gpu, &kernel) }?;
    let buffer = gpu.create_buffer("example", 256)?;
    let dispatch = Dispatch {
        pipeline: pipeline.clone(),
        bindings: vec![buffer.whole()],
        params: vec![64, 1f32.to_bits()],
        workgroups: [1, 1, 1],
        label: "increment".to_owned(),
    };
    let list = DispatchList::compile(&gpu, vec![dispatch; MANY])?;
    let (device, queue) = (gpu.wgpu_device(), gpu.wgpu_queue());
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.raw().get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.raw().as_entire_binding() }],
    });
    let words: Vec<u8> = [64, 1f32.to_bits()].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    let raw = |encoder: &mut wgpu::CommandEncoder| {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(pipeline.raw());
        pass.set_bind_group(0, &group, &[]);
        pass.set_immediates(0, &words);
        for _ in 0..MANY {
            pass.dispatch_workgroups(1, 1, 1);
        }
    };
    // Each in a series of its own: what one leaves behind costs the next.
    let timed = |work: &mut dyn FnMut()| {
        let mut times = Vec::new();
        for _ in 0..300 {
            let start = Instant::now();
            work();
            times.push(start.elapsed().as_secs_f64() * 1e6 / MANY as f64);
            let _ = device.poll(wgpu::PollType::wait_indefinitely());
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let encoded = |record: &dyn Fn(&mut wgpu::CommandEncoder)| {
        let mut encoder = device.create_command_encoder(&Default::default());
        record(&mut encoder);
        encoder.finish()
    };
    let medians = [
        timed(&mut || drop(encoded(&raw))),
        timed(&mut || drop(encoded(&|encoder| list.encode(encoder)))),
        timed(&mut || _ = queue.submit([encoded(&raw)])),
        timed(&mut || _ = queue.submit([encoded(&|encoder| list.encode(encoder))])),
        timed(&mut || drop(list.submit())),
        timed(&mut || {
            let index = queue.submit([encoded(&raw)]);
            let timeout = Some(std::time::Duration::ZERO);
            let _ = device.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout });
        }),
    ];
    println!("{}: {MANY} dispatches of one kernel on one bind group, µs each", gpu.info().name);
    println!("  encoded: wgpu {:.3}, a list {:.3}", medians[0], medians[1]);
    println!(
        "  encoded and submitted: wgpu {:.3}, with a list's encoding {:.3}, a list {:.3}",
        medians[2], medians[3], medians[4]
    );
    println!("  by wgpu, with a look at the device after it: {:.3}", medians[5]);
    println!("  the list is recorded: {}", list.is_recorded());
    gpu.check_alive()
}

fn main() -> Result<(), GpuError> {
    beside_raw()?;
    for without in [wgpu::Features::empty(), wgpu::Features::IMMEDIATES] {
        let gpu = GpuDevice::with_options(&DeviceOptions {
            without,
            record: RecordMode::Always,
            ..DeviceOptions::default()
        })?;
        let cache = PipelineCache::new();
        // SAFETY: it adds as many elements as its parameter says, which the buffers have.
        let pipeline = unsafe { cache.get_trusted(&gpu, &add()) }?;
        let buffers = [gpu.create_buffer("example", 256)?, gpu.create_buffer("example", 256)?];
        let dispatches = (0..1000).map(|i| Dispatch {
            pipeline: pipeline.clone(),
            bindings: vec![buffers[i % 2].whole(), buffers[1 - i % 2].whole()],
            params: vec![64, 1f32.to_bits()],
            workgroups: [1, 1, 1],
            label: "add".to_owned(),
        });
        let list = DispatchList::compile(&gpu, dispatches.collect())?;
        let mut best = [f64::MAX; 2];
        for _ in 0..50 {
            let start = Instant::now();
            let submission = list.submit()?;
            let submitted = start.elapsed();
            if let Some(submission) = submission {
                gpu.wait(&submission)?;
            }
            for (best, now) in best.iter_mut().zip([submitted, start.elapsed()]) {
                *best = best.min(now.as_secs_f64() * 1e6);
            }
        }
        let [submit, wall] = best;
        println!("{}: {:?}, recorded: {}", gpu.info().name, pipeline.param_mode(), list.is_recorded());
        println!(
            "  1000 dispatches: {:.2} µs each to submit, {:.2} µs each in all",
            submit / 1e3,
            wall / 1e3
        );
        let empty = DispatchList::compile(&gpu, vec![])?;
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
        // SAFETY: it stays inside its 64 inputs, its 65,536 outputs and its tile, its loops end, and it
        // writes the tile before it reads it.
        let pipeline = unsafe { cache.get_trusted(&gpu, &tile()) }?;
        let (from, to) = (gpu.create_buffer("example", 256)?, gpu.create_buffer("example", 4 << 16)?);
        let dispatch = Dispatch {
            pipeline,
            bindings: vec![from.whole(), to.whole()],
            params: vec![4096, 0],
            workgroups: [1024, 1, 1],
            label: "tile".to_owned(),
        };
        let list = DispatchList::compile(&gpu, vec![dispatch])?;
        let mut best = f64::MAX;
        for _ in 0..10 {
            best = best.min(list.profile()?.total_us());
        }
        println!(
            "loop over workgroup memory, checks {}: {best:.1} µs",
            if check_trusted { "on" } else { "off" }
        );
    }
    Ok(())
}
