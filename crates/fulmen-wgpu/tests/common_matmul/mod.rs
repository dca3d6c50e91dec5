//! The least that runs a plan: a device, compiled kernels, buffers with made-up contents, times.
#![allow(dead_code, unreachable_pub, reason = "the tests and the bench each use a part")]

use std::collections::HashMap;

use fulmen_wgpu::kernel::{Access, Caps, Kernel, fold_grid};
use fulmen_wgpu::kernels::matmul::{Plan, Role};
use wgpu::util::DeviceExt as _;

pub struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub caps: Caps,
    pub name: String,
    pipelines: HashMap<Kernel, wgpu::ComputePipeline>,
}

/// The buffers of a product.
pub struct Buffers<'a> {
    pub a: &'a wgpu::Buffer,
    pub b: [&'a wgpu::Buffer; 2],
    /// Byte offset and size of the part of B that is bound, where it is not all.
    pub part: Option<(u64, u64)>,
    pub out: &'a wgpu::Buffer,
    pub extras: Vec<&'a wgpu::Buffer>,
}

/// A plan that is ready to be encoded.
pub struct Ready {
    steps: Vec<(wgpu::ComputePipeline, wgpu::BindGroup, Vec<u8>, [u32; 3])>,
}

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

const FILL: &str = "struct Params { count: u32, seed: u32 }
@group(0) @binding(0) var<storage, read_write> dst: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let i = (w.x + g.x * (w.y + g.y * w.z)) * 256u + l;
    if (i >= params.count) { return; }
    var x = (i ^ params.seed) * 2654435769u;
    x = (x ^ (x >> 16u)) * 0x85ebca6bu;
    x = (x ^ (x >> 13u)) * 0xc2b2ae35u;
    x = x ^ (x >> 16u);
    dst[i] = f32(x >> 8u) / 8388608.0 - 1.0;
}
";

/// What `fill` puts at `i`.
pub fn value(i: u32, seed: u32) -> f32 {
    let mut x = (i ^ seed).wrapping_mul(2_654_435_769);
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^= x >> 16;
    (x >> 8) as f32 / 8_388_608.0 - 1.0
}

impl Gpu {
    /// The adapter whose name contains `FULMEN_ADAPTER`, or the first.
    pub fn open() -> Self {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            flags: wgpu::InstanceFlags::empty(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let wanted = std::env::var("FULMEN_ADAPTER").unwrap_or_default();
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
        let adapter = adapters.into_iter().find(|a| a.get_info().name.contains(&wanted));
        let adapter = adapter.expect("an adapter; install mesa-vulkan-drivers for a software one");
        let info = adapter.get_info();
        let wanted = wgpu::Features::IMMEDIATES
            | wgpu::Features::SUBGROUP
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::SHADER_F16;
        let features = adapter.features() & wanted;
        assert!(features.contains(wgpu::Features::IMMEDIATES), "{}: no immediates", info.name);
        let limits = adapter.limits();
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            required_features: features,
            required_limits: limits.clone(),
            ..Default::default()
        }))
        .expect("a device");
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        let caps = Caps {
            subgroups: subgroups.then_some((info.subgroup_min_size, info.subgroup_max_size)),
            f16: features.contains(wgpu::Features::SHADER_F16),
            immediate_bytes: limits.max_immediate_size,
            cooperative_matrix: false,
            max_workgroups: limits.max_compute_workgroups_per_dimension,
            max_invocations: limits.max_compute_invocations_per_workgroup,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
            binding_alignment: limits.min_storage_buffer_offset_alignment,
        };
        Self { device, queue, caps, name: info.name, pipelines: HashMap::new() }
    }

    pub fn empty(&self, bytes: u64) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.next_multiple_of(16),
            usage: USAGE,
            mapped_at_creation: false,
        })
    }

    pub fn upload(&self, bytes: &[u8]) -> wgpu::Buffer {
        let mut contents = bytes.to_vec();
        contents.resize(bytes.len().next_multiple_of(4), 0);
        let desc = wgpu::util::BufferInitDescriptor { label: None, contents: &contents, usage: USAGE };
        self.device.create_buffer_init(&desc)
    }

    /// A buffer of `count` floats that [`value`] gives.
    pub fn filled(&mut self, count: u32, seed: u32) -> wgpu::Buffer {
        let buffer = self.empty(u64::from(count) * 4);
        self.fill(&buffer, count, seed);
        buffer
    }

    pub fn fill(&mut self, buffer: &wgpu::Buffer, count: u32, seed: u32) {
        let kernel = Kernel {
            label: "fill".into(),
            wgsl: FILL.into(),
            access: vec![Access::ReadWrite],
            param_words: 2,
        };
        let pipeline = self.pipeline(&kernel);
        let group = self.bind(&pipeline, &[buffer.as_entire_binding()]);
        let [x, y, z] = fold_grid(u64::from(count).div_ceil(256), self.caps.max_workgroups).unwrap();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.set_immediates(0, &bytes_of(&[count, seed]));
        pass.dispatch_workgroups(x, y, z);
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    pub fn pipeline(&mut self, kernel: &Kernel) -> wgpu::ComputePipeline {
        if let Some(pipeline) = self.pipelines.get(kernel) {
            return pipeline.clone();
        }
        let pipeline = self.compile(kernel);
        self.pipelines.insert(kernel.clone(), pipeline.clone());
        pipeline
    }

    /// Compiles on all cores what is not compiled yet.
    pub fn compile_all(&mut self, kernels: impl IntoIterator<Item = Kernel>) {
        let mut new: Vec<_> = kernels.into_iter().filter(|k| !self.pipelines.contains_key(k)).collect();
        let mut seen = std::collections::HashSet::new();
        new.retain(|kernel| seen.insert(kernel.clone()));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let this = &*self;
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            let mut made = Vec::new();
            while let Some(kernel) = new.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                made.push((kernel.clone(), this.compile(kernel)));
            }
            made
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            handles.into_iter().flat_map(|handle| handle.join().unwrap()).collect()
        });
        self.pipelines.extend(made);
    }

    fn compile(&self, kernel: &Kernel) -> wgpu::ComputePipeline {
        let entries: Vec<_> = kernel
            .access
            .iter()
            .enumerate()
            .map(|(i, access)| wgpu::BindGroupLayoutEntry {
                binding: i as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: *access == Access::Read },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: kernel.param_words * 4,
        });
        // `enable` lines stay first.
        let (enables, text) = match kernel.wgsl.strip_prefix("enable f16;\n") {
            Some(text) => ("enable f16;\n", text),
            None => ("", kernel.wgsl.as_str()),
        };
        // With an override the module is translated late, as the switches for trusted text need it.
        let late = "override fulmen_translate_late: bool = true;";
        let text = format!("{enables}var<immediate> params: Params;\n{late}\n{text}");
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let desc = wgpu::ShaderModuleDescriptor { label: Some(&kernel.label), source };
        // SAFETY: the kernels clamp their indices to the buffers that their plan names, their loops end, and they divide
        // by nothing that can be zero.
        let module =
            unsafe { self.device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked()) };
        self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&kernel.label),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        })
    }

    fn bind(
        &self,
        pipeline: &wgpu::ComputePipeline,
        resources: &[wgpu::BindingResource<'_>],
    ) -> wgpu::BindGroup {
        let entries: Vec<_> = resources
            .iter()
            .enumerate()
            .map(|(i, r)| wgpu::BindGroupEntry { binding: i as u32, resource: r.clone() })
            .collect();
        let layout = pipeline.get_bind_group_layout(0);
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &layout,
            entries: &entries,
        })
    }

    pub fn prepare(&mut self, plan: &Plan, buffers: &Buffers<'_>) -> Ready {
        let scratch: Vec<_> = plan.scratch.iter().map(|&bytes| self.empty(bytes)).collect();
        let mut steps = Vec::new();
        for step in &plan.steps {
            let pipeline = self.pipeline(&step.launch.kernel);
            let resource = |role: &Role| match *role {
                Role::A => buffers.a.as_entire_binding(),
                Role::B(i) => match buffers.part {
                    None => buffers.b[i as usize].as_entire_binding(),
                    Some((offset, size)) => wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: buffers.b[i as usize],
                        offset,
                        size: Some(size.try_into().unwrap()),
                    }),
                },
                Role::Out => buffers.out.as_entire_binding(),
                Role::Extra(i) => buffers.extras[i as usize].as_entire_binding(),
                Role::Scratch(i) => scratch[i as usize].as_entire_binding(),
            };
            let resources: Vec<_> = step.buffers.iter().map(resource).collect();
            let group = self.bind(&pipeline, &resources);
            assert_eq!(step.launch.params.len(), step.launch.kernel.param_words as usize);
            steps.push((pipeline, group, bytes_of(&step.launch.params), step.launch.workgroups));
        }
        Ready { steps }
    }

    pub fn run(&self, ready: &[&Ready]) {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        ready.iter().for_each(|r| r.encode(&mut pass));
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    /// Microseconds of GPU time of each list, each in a pass of its own.
    pub fn time(&self, lists: &[Vec<&Ready>]) -> Vec<f64> {
        let count = lists.len() as u32 * 2;
        let set = self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count,
        });
        let resolve = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: u64::from(count) * 8,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for (i, list) in lists.iter().enumerate() {
            let i = i as u32 * 2;
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &set,
                    beginning_of_pass_write_index: Some(i),
                    end_of_pass_write_index: Some(i + 1),
                }),
            });
            list.iter().for_each(|r| r.encode(&mut pass));
        }
        encoder.resolve_query_set(&set, 0..count, &resolve, 0);
        self.queue.submit([encoder.finish()]);
        let bytes = self.read(&resolve, &[(0, u64::from(count) * 8)]);
        let ticks: Vec<u64> =
            bytes.chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        let period = f64::from(self.queue.get_timestamp_period());
        ticks.chunks_exact(2).map(|t| t[1].saturating_sub(t[0]) as f64 * period / 1e3).collect()
    }

    /// The bytes of the ranges (offset, length), one after the other.
    pub fn read(&self, buffer: &wgpu::Buffer, ranges: &[(u64, u64)]) -> Vec<u8> {
        let total: u64 = ranges.iter().map(|r| r.1).sum();
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: total,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for &(offset, length) in ranges {
            encoder.copy_buffer_to_buffer(buffer, offset, &staging, at, length);
            at += length;
        }
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |result| result.unwrap());
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        staging.get_mapped_range(..).unwrap().to_vec()
    }

    pub fn read_f32(&self, buffer: &wgpu::Buffer, ranges: &[(u64, u64)]) -> Vec<f32> {
        self.read(buffer, ranges).chunks_exact(4).map(|c| f32::from_ne_bytes(c.try_into().unwrap())).collect()
    }
}

impl Ready {
    fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        for (pipeline, group, params, [x, y, z]) in &self.steps {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, group, &[]);
            pass.set_immediates(0, params);
            pass.dispatch_workgroups(*x, *y, *z);
        }
    }
}

pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}
