//! Runs plans of kernels on the first adapter, and compares.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::{
    collections::HashMap,
    sync::{Mutex, OnceLock},
};

use fulmen_wgpu::{
    kernel::{Access, Caps, Kernel},
    kernels::{LaunchList, Role},
};
use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BindingResource, Buffer, BufferBinding, BufferDescriptor,
    BufferUsages, ComputePipeline, ComputePipelineDescriptor, Device, DeviceDescriptor, ExperimentalFeatures,
    Features, Instance, InstanceDescriptor, MapMode, PollType, Queue, ShaderModuleDescriptor, ShaderSource,
};

/// A device and the pipelines that were made on it.
pub struct Gpu {
    device: Device,
    queue: Queue,
    /// What the device offers.
    pub caps: Caps,
    pipelines: Mutex<HashMap<Kernel, ComputePipeline>>,
}

/// The buffers after a plan ran: the inputs that kernels could write, and the outputs.
pub struct After {
    pub inputs: Vec<Vec<u8>>,
    pub outputs: Vec<Vec<u8>>,
}

/// The device that all tests of a file share.
pub fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| pollster::block_on(open()))
}

async fn open() -> Gpu {
    let instance = Instance::new(InstanceDescriptor::new_without_display_handle());
    let adapter = instance
        .request_adapter(&wgpu::RequestAdapterOptions::default())
        .await
        .expect("this test needs a GPU adapter, hardware or software; ./scripts/test installs one");
    let wanted = Features::SUBGROUP | Features::SHADER_F16 | Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
    let features = adapter.features() & wanted;
    let units = features.contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    let limits = adapter.limits();
    let (device, queue) = adapter
        .request_device(&DeviceDescriptor {
            required_features: features,
            required_limits: limits.clone(),
            // SAFETY: the one experimental feature is the cooperative matrix; the kernels that use it
            // load and store within their arrays.
            experimental_features: unsafe { ExperimentalFeatures::enabled() },
            ..DeviceDescriptor::default()
        })
        .await
        .expect("a device");
    let info = adapter.get_info();
    println!("{} {} {}", info.name, info.driver, info.driver_info);
    let caps = Caps {
        subgroups: features
            .contains(Features::SUBGROUP)
            .then_some((info.subgroup_min_size, info.subgroup_max_size)),
        f16: features.contains(Features::SHADER_F16),
        immediate_bytes: 0,
        cooperative_matrix: units,
        max_workgroups: limits.max_compute_workgroups_per_dimension,
        max_invocations: limits.max_compute_invocations_per_workgroup,
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        max_binding: limits.max_storage_buffer_binding_size,
        max_buffer: limits.max_buffer_size,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        binding_alignment: limits.min_storage_buffer_offset_alignment,
    };
    Gpu { device, queue, caps, pipelines: Mutex::default() }
}

impl Gpu {
    /// The device's own capabilities, and those without subgroups and 16-bit floats.
    pub fn caps_variants(&self) -> [Caps; 2] {
        [self.caps, Caps { subgroups: None, f16: false, ..self.caps }]
    }

    fn buffer(&self, bytes: u64, usage: BufferUsages) -> Buffer {
        let size = bytes.max(4).next_multiple_of(16);
        self.device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }

    /// A storage buffer whose padding is `padding`.
    fn storage(&self, data: &[u8], bytes: u64, padding: u8) -> Buffer {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = self.buffer(bytes, usage);
        let whole = data.len() / 4 * 4;
        self.queue.write_buffer(&buffer, 0, &data[..whole]);
        let mut rest = data[whole..].to_vec();
        rest.resize(buffer.size() as usize - whole, padding);
        self.queue.write_buffer(&buffer, whole as u64, &rest);
        buffer
    }

    fn pipeline(&self, kernel: &Kernel) -> ComputePipeline {
        let mut pipelines = self.pipelines.lock().unwrap();
        if let Some(pipeline) = pipelines.get(kernel) {
            return pipeline.clone();
        }
        let source = format!("{}@group(1) @binding(0) var<uniform> params: Params;\n", kernel.module());
        if std::env::var_os("SHOW_WGSL").is_some() {
            println!("{source}");
        }
        let desc =
            ShaderModuleDescriptor { label: Some(&kernel.label), source: ShaderSource::Wgsl(source.into()) };
        // SAFETY: the kernels stay within their bindings and their loops end; this is what is tested.
        let module =
            unsafe { self.device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked()) };
        let pipeline = self.device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(&kernel.label),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        pipelines.insert(kernel.clone(), pipeline.clone());
        pipeline
    }

    /// Runs a plan. The padding of inputs is NaN; that of outputs must stay as it was, but for the last word.
    pub fn run(&self, plan: &LaunchList, inputs: &[&[u8]], output_bytes: &[usize]) -> After {
        let outputs: Vec<Vec<u8>> = output_bytes.iter().map(|&bytes| vec![0xa5; bytes]).collect();
        let outputs: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
        self.run_on(plan, inputs, &outputs)
    }

    /// As [`run`](Self::run), with what the outputs hold before.
    pub fn run_on(&self, plan: &LaunchList, inputs: &[&[u8]], outputs: &[&[u8]]) -> After {
        self.run_aliased(plan, inputs, outputs, &[])
    }

    /// As [`run_on`](Self::run_on), where an output (the first number) may be the buffer of an input
    /// (the second).
    pub fn run_aliased(
        &self,
        plan: &LaunchList,
        inputs: &[&[u8]],
        outputs: &[&[u8]],
        aliases: &[(usize, usize)],
    ) -> After {
        let output_bytes: Vec<usize> = outputs.iter().map(|data| data.len()).collect();
        let inputs: Vec<Buffer> =
            inputs.iter().map(|data| self.storage(data, data.len() as u64, 0xff)).collect();
        let outputs: Vec<Buffer> = (0..)
            .zip(outputs)
            .map(|(o, data)| match aliases.iter().find(|(output, _)| *output == o) {
                Some(&(_, input)) => inputs[input].clone(),
                None => self.storage(data, data.len() as u64, 0xa5),
            })
            .collect();
        let scratch: Vec<Buffer> = plan.scratch.iter().map(|&bytes| self.storage(&[], bytes, 0xff)).collect();
        let buffer = |role| match role {
            Role::Input(i) => &inputs[i],
            Role::Output(i) => &outputs[i],
            Role::Scratch(i) => &scratch[i],
        };
        let mut written = vec![false; inputs.len()];
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for step in &plan.launches {
            let kernel = &step.launch.kernel;
            assert_eq!(kernel.bindings.len(), step.bindings.len(), "{}", kernel.label);
            assert_eq!(kernel.param_words as usize, step.launch.params.len(), "{}", kernel.label);
            let mut kernel = kernel.clone();
            for (at, part) in step.bindings.iter().enumerate() {
                if aliases.iter().any(|&(_, input)| part.role == Role::Input(input)) {
                    kernel.bindings[at].access = Access::ReadWrite;
                }
            }
            let pipeline = self.pipeline(&kernel);
            let entries: Vec<BindGroupEntry> = (0u32..)
                .zip(&step.bindings)
                .map(|(binding, part)| {
                    assert!(part.bytes <= self.caps.max_binding, "{}: {part:?}", kernel.label);
                    let size = std::num::NonZero::new(part.bytes);
                    let part = BufferBinding { buffer: buffer(part.role), offset: part.offset, size };
                    BindGroupEntry { binding, resource: BindingResource::Buffer(part) }
                })
                .collect();
            for (part, access) in step.bindings.iter().zip(step.launch.kernel.access()) {
                if let (Role::Input(i), Access::ReadWrite) = (part.role, access) {
                    written[i] = true;
                }
            }
            let group = |index: u32, entries: &[BindGroupEntry]| {
                let layout = &pipeline.get_bind_group_layout(index);
                self.device.create_bind_group(&BindGroupDescriptor { label: None, layout, entries })
            };
            let words: Vec<u8> = step.launch.params.iter().flat_map(|word| word.to_le_bytes()).collect();
            let params = self.buffer(words.len() as u64, BufferUsages::UNIFORM | BufferUsages::COPY_DST);
            self.queue.write_buffer(&params, 0, &words);
            let entry = BindGroupEntry { binding: 0, resource: params.as_entire_binding() };
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group(0, &entries), &[]);
            pass.set_bind_group(1, &group(1, &[entry]), &[]);
            let [x, y, z] = step.launch.workgroups;
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        self.queue.submit([encoder.finish()]);
        let inputs = inputs.iter().zip(written).map(|(buffer, w)| if w { self.read(buffer) } else { vec![] });
        let inputs = inputs.collect();
        let outputs = (0..).zip(&outputs).zip(output_bytes).map(|((o, buffer), bytes)| {
            let mut data = self.read(buffer);
            let aliased = aliases.iter().any(|&(output, _)| output == o);
            let kept = aliased || data[bytes.next_multiple_of(4)..].iter().all(|&byte| byte == 0xa5);
            assert!(
                kept,
                "{}: the padding was written",
                plan.launches.first().map_or("", |s| &s.launch.kernel.label)
            );
            data.truncate(bytes);
            data
        });
        After { outputs: outputs.collect(), inputs }
    }

    /// Runs a plan of f32 arrays with one output.
    pub fn run_f32(&self, plan: &LaunchList, inputs: &[&[f32]], len: usize) -> Vec<f32> {
        let inputs: Vec<&[u8]> = inputs.iter().map(|data| bytemuck::cast_slice(data)).collect();
        let mut after = self.run(plan, &inputs, &[len * 4]);
        bytemuck::pod_collect_to_vec(&after.outputs.remove(0))
    }

    fn read(&self, buffer: &Buffer) -> Vec<u8> {
        let staging = self.buffer(buffer.size(), BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        staging.slice(..).map_async(MapMode::Read, |result| result.expect("mapped"));
        self.device.poll(PollType::wait_indefinitely()).expect("polled");
        let data = staging.slice(..).get_mapped_range().expect("mapped").to_vec();
        staging.unmap();
        data
    }
}

/// Whether a result is as good as its reference. Subnormal numbers may be 0.
pub fn close(got: f32, want: f64, relative: f64) -> bool {
    let tiny = f64::from(f32::MIN_POSITIVE);
    let got = f64::from(got);
    if want.is_nan() {
        return got.is_nan();
    }
    if want.abs() > f64::from(f32::MAX) * (1.0 + 1e-7) {
        return got == want.signum() * f64::INFINITY || got.abs() > 3.4e38 && want.is_finite();
    }
    (got - want).abs() <= relative * want.abs() + if want.abs() <= 2.0 * tiny { 1.01 * tiny } else { 0.0 }
}

/// The squared error over the squares of the wanted.
pub fn nmse(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut error, mut square) = (0.0, 0.0);
    for (&got, &want) in got.iter().zip(want) {
        error += (f64::from(got) - want).powi(2);
        square += want * want;
    }
    if error == 0.0 { 0.0 } else { error / square }
}

/// Evenly drawn numbers.
pub fn draw(rng: &mut fastrand::Rng, n: usize, low: f32, high: f32) -> Vec<f32> {
    (0..n).map(|_| low + (high - low) * rng.f32()).collect()
}
