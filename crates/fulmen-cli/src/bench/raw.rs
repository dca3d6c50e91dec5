//! wgpu without Fulmen: plain kernels that show what the device can do, and what its calls cost.

use std::time::Instant;

use fulmen_wgpu::{GpuDevice, GpuError, wgpu};
use serde::Serialize;

use super::measure::{Needs, median, micros, wait};

/// A plain ReLU: each invocation reads one vector and writes one.
const RELU: &str = "
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + lane;
    if i < arrayLength(&b) { b[i] = max(a[i], vec4<f32>()); }
}";

/// Reads everything, and writes only what never happens.
const READ: &str = "
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let step = groups.x * 256u;
    var s = array<vec4<f32>, 4>();
    for (var i = id.x; i < arrayLength(&a); i += 4u * step) {
        s[0] += a[i];
        s[1] += a[i + step];
        s[2] += a[i + 2u * step];
        s[3] += a[i + 3u * step];
    }
    let sum = s[0] + s[1] + s[2] + s[3];
    if sum.x == 1e30 { b[id.x & 255u] = sum; }
}";

/// Rounds of the loop in [`arithmetic`], and multiply-adds of one lane in each.
const ROUNDS: u64 = 128;
const PER_ROUND: u64 = 4 * ACCUMULATORS * 4;
const ACCUMULATORS: u64 = 8;

/// Multiply-adds on registers and nothing else.
fn arithmetic() -> String {
    let all = |line: fn(u64) -> String| (0..ACCUMULATORS).map(line).collect::<String>();
    let once = all(|i| format!("s{i} = fma(s{i}, m, c); "));
    let sum = all(|i| format!("+ s{i}"));
    format!(
        "
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4<f32>>;
@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {{
    let m = a[lane];
    let c = a[lane + 256u];
    {}
    for (var i = 0u; i < {ROUNDS}u; i++) {{ {once} {once} {once} {once} }}
    let sum = vec4<f32>() {sum};
    if sum.x == 1e30 {{ b[lane] = sum; }}
}}",
        all(|i| format!("var s{i} = a[lane + {}u]; ", 512 + 256 * i))
    )
}

/// Two buffers of one size on the device; the first holds numbers.
pub(super) struct Arena {
    pub(super) input: wgpu::Buffer,
    pub(super) output: wgpu::Buffer,
    /// A power of two, of at least 64 KiB: the kernels here count on it.
    pub(super) bytes: u64,
}

/// What plain kernels reach.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Ceilings {
    pub(super) read_gb_s: f64,
    pub(super) copy_gb_s: f64,
    pub(super) f32_gflop_s: f64,
    /// By the clock of the host, as the device has no timestamps.
    pub(super) by_host_clock: bool,
}

impl Ceilings {
    /// The least time in microseconds that work can take, and what it is bound by.
    pub(super) fn floor_us(&self, needs: &Needs) -> (f64, &'static str) {
        let gb_s = if needs.mostly_read { self.read_gb_s } else { self.copy_gb_s };
        let memory = needs.bytes as f64 / gb_s / 1e3;
        let arithmetic = needs.flops as f64 / self.f32_gflop_s / 1e3;
        if memory >= arithmetic { (memory, "memory") } else { (arithmetic, "arithmetic") }
    }
}

/// What wgpu's calls cost the host, in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Costs {
    /// An encoder with one pass and one dispatch.
    pub(super) encode_us: f64,
    /// Submitting it, until the call returns.
    pub(super) submit_us: f64,
    /// Encoding and submitting [`MANY`] dispatches in one pass, per dispatch: what a batch cannot go below.
    pub(super) dispatch_us: f64,
    /// Copying 4 bytes, mapping them and seeing them.
    pub(super) readback_us: f64,
    /// The same by `GpuDevice::read_many`.
    pub(super) fulmen_readback_us: f64,
}

/// A raw kernel with its buffers and its grid.
pub(super) struct RawKernel {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    grid: [u32; 2],
}

/// Times raw kernels.
pub(super) struct Raw {
    gpu: GpuDevice,
    queries: Option<Queries>,
}

struct Queries {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    mapped: wgpu::Buffer,
}

impl Raw {
    pub(super) fn new(gpu: &GpuDevice) -> Raw {
        let device = gpu.wgpu_device();
        let buffer = |usage| buffer(device, 16, usage);
        let queries = device.features().contains(wgpu::Features::TIMESTAMP_QUERY).then(|| Queries {
            set: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            mapped: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
        });
        Raw { gpu: gpu.clone(), queries }
    }

    /// The ReLU over the whole arena.
    pub(super) fn relu(&self, arena: &Arena) -> Result<RawKernel, GpuError> {
        let groups = (arena.bytes / 16 / 256).max(1);
        // A power of two, and few enough for any device in one dimension.
        let x = groups.min(1 << 15);
        self.kernel(RELU, arena, [x as u32, (groups / x) as u32])
    }

    pub(super) fn ceilings(
        &self,
        arena: &Arena,
        relu: &RawKernel,
        quick: bool,
        repeat: usize,
    ) -> Result<Ceilings, GpuError> {
        let copy = self.median_us(relu, repeat)?;
        let vectors = arena.bytes / 16;
        let mut read = f64::MAX;
        for groups in [1024, 2048, 4096, 16384] {
            let groups = (vectors / (256 * 4)).clamp(1, groups);
            read = read.min(self.median_us(&self.kernel(READ, arena, [groups as u32, 1])?, repeat)?);
        }
        let groups = if quick { 16 } else { 4096 };
        let arithmetic = self.median_us(&self.kernel(&arithmetic(), arena, [groups, 1])?, repeat)?;
        let flops = u64::from(groups) * 256 * ROUNDS * PER_ROUND * 2;
        Ok(Ceilings {
            read_gb_s: arena.bytes as f64 / read / 1e3,
            copy_gb_s: 2.0 * arena.bytes as f64 / copy / 1e3,
            f32_gflop_s: flops as f64 / arithmetic / 1e3,
            by_host_clock: self.queries.is_none(),
        })
    }

    pub(super) fn costs(&self, arena: &Arena, repeat: usize) -> Result<Costs, GpuError> {
        let (device, queue) = (self.gpu.wgpu_device(), self.gpu.wgpu_queue());
        let tiny = self.kernel(RELU, arena, [1, 1])?;
        let mapped = buffer(device, 4, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        let word = self.gpu.create_buffer("bench", 4)?.slice(0..4);
        let mut times: [Vec<f64>; 5] = Default::default();
        for _ in 0..repeat + 3 {
            let start = Instant::now();
            let mut encoder = device.create_command_encoder(&Default::default());
            tiny.encode(&mut encoder, None);
            let commands = encoder.finish();
            times[0].push(micros(start));
            let start = Instant::now();
            queue.submit([commands]);
            times[1].push(micros(start));
            wait(&self.gpu)?;
            let start = Instant::now();
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&arena.output, 0, &mapped, 0, 4);
            queue.submit([encoder.finish()]);
            std::hint::black_box(self.read(&mapped)?);
            times[2].push(micros(start));
            let start = Instant::now();
            std::hint::black_box(self.gpu.read_many(std::slice::from_ref(&word))?);
            times[3].push(micros(start));
            let start = Instant::now();
            let mut encoder = device.create_command_encoder(&Default::default());
            tiny.encode_times(&mut encoder, None, MANY);
            queue.submit([encoder.finish()]);
            times[4].push(micros(start) / f64::from(MANY));
            wait(&self.gpu)?;
        }
        let medians = times.map(|mut t| median(&mut t[3..]));
        let [encode_us, submit_us, readback_us, fulmen_readback_us, dispatch_us] = medians;
        Ok(Costs { encode_us, submit_us, dispatch_us, readback_us, fulmen_readback_us })
    }

    fn kernel(&self, wgsl: &str, arena: &Arena, grid: [u32; 2]) -> Result<RawKernel, GpuError> {
        let device = self.gpu.wgpu_device();
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("raw"),
            source: wgpu::ShaderSource::Wgsl(wgsl.into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some("raw"),
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("raw"),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[
                wgpu::BindGroupEntry { binding: 0, resource: arena.input.as_entire_binding() },
                wgpu::BindGroupEntry { binding: 1, resource: arena.output.as_entire_binding() },
            ],
        });
        self.gpu.check_alive()?;
        Ok(RawKernel { pipeline, group, grid })
    }

    /// The median time on the device, or by the host's clock where it has no timestamps.
    pub(super) fn median_us(&self, kernel: &RawKernel, repeat: usize) -> Result<f64, GpuError> {
        let mut times = Vec::with_capacity(repeat + 2);
        for _ in 0..repeat + 2 {
            times.push(self.time_us(kernel)?);
        }
        Ok(median(&mut times[2..]))
    }

    fn time_us(&self, kernel: &RawKernel) -> Result<f64, GpuError> {
        let (device, queue) = (self.gpu.wgpu_device(), self.gpu.wgpu_queue());
        let start = Instant::now();
        let mut encoder = device.create_command_encoder(&Default::default());
        kernel.encode(&mut encoder, self.queries.as_ref().map(|queries| &queries.set));
        if let Some(queries) = &self.queries {
            encoder.resolve_query_set(&queries.set, 0..2, &queries.resolved, 0);
            encoder.copy_buffer_to_buffer(&queries.resolved, 0, &queries.mapped, 0, 16);
        }
        queue.submit([encoder.finish()]);
        let Some(queries) = &self.queries else {
            wait(&self.gpu)?;
            return Ok(micros(start));
        };
        let bytes = self.read(&queries.mapped)?;
        let ticks: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|&t| u64::from_le_bytes(t)).collect();
        let ticks = ticks.last().zip(ticks.first()).map_or(0, |(end, begin)| end.saturating_sub(*begin));
        Ok(ticks as f64 * f64::from(queue.get_timestamp_period()) / 1e3)
    }

    /// Maps a buffer that was copied to and gives its bytes.
    fn read(&self, buffer: &wgpu::Buffer) -> Result<Vec<u8>, GpuError> {
        buffer.map_async(wgpu::MapMode::Read, .., |_| {});
        wait(&self.gpu)?;
        let bytes = buffer.get_mapped_range(..).map(|view| view.to_vec());
        buffer.unmap();
        bytes.map_err(|error| GpuError::Internal { call: "get_mapped_range", message: error.to_string() })
    }
}

/// Dispatches of one pass, where many are timed.
const MANY: u32 = 100;

impl RawKernel {
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, times: Option<&wgpu::QuerySet>) {
        self.encode_times(encoder, times, 1);
    }

    fn encode_times(&self, encoder: &mut wgpu::CommandEncoder, times: Option<&wgpu::QuerySet>, count: u32) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes: times.map(|query_set| wgpu::ComputePassTimestampWrites {
                query_set,
                beginning_of_pass_write_index: Some(0),
                end_of_pass_write_index: Some(1),
            }),
        });
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        for _ in 0..count {
            pass.dispatch_workgroups(self.grid[0], self.grid[1], 1);
        }
    }
}

fn buffer(device: &wgpu::Device, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("raw"),
        size,
        usage,
        mapped_at_creation: false,
    })
}
