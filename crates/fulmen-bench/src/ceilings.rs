//! What plain wgpu kernels reach on a device, without Fulmen, and what wgpu's calls cost.

use std::time::Instant;

use fulmen_wgpu::{GpuDevice, GpuError, wgpu};
use serde::Serialize;

use crate::timer::{median, micros, wait};

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

/// Reads everything. The store keeps the compiler from removing the loads; its condition never holds.
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

/// Iterations of the loop in [`fma_kernel`], and FMAs of one invocation in each.
const ROUNDS: u64 = 128;
const PER_ROUND: u64 = 4 * ACCUMULATORS * 4;
const ACCUMULATORS: u64 = 8;

/// FMAs on registers and nothing else: independent accumulators hide the latency.
fn fma_kernel() -> String {
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

/// Two buffers of one size on the device; the first holds random values.
pub(crate) struct BufferPair {
    pub(crate) input: wgpu::Buffer,
    pub(crate) output: wgpu::Buffer,
    /// A power of two, at least 64 KiB: the kernels here rely on it.
    pub(crate) bytes: u64,
}

/// What plain kernels reach: the two ceilings of a roofline. Field names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ceilings {
    /// GB/s of a kernel that only reads.
    pub read_gb_s: f64,
    /// GB/s, read and written, of a kernel that writes as much as it reads.
    pub copy_gb_s: f64,
    /// GFLOP/s of FMAs in f32.
    pub f32_gflop_s: f64,
    /// The host took the times, because the device has no timestamps.
    pub by_host_clock: bool,
}

/// The least that a computation must do, however it is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumWork {
    /// Bytes that are read or written once.
    pub bytes: u64,
    /// Most of these bytes are only read.
    pub mostly_read: bool,
    /// Floating-point operations.
    pub flops: u64,
}

/// Which of the two ceilings limits a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// The bytes that it moves.
    Memory,
    /// The operations that it does.
    Arithmetic,
}

impl Limit {
    /// `memory` or `arithmetic`.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Arithmetic => "arithmetic",
        }
    }
}

impl Ceilings {
    /// The least time in microseconds that work can take by the roofline model, and which ceiling limits it.
    ///
    /// ```
    /// use fulmen_bench::ceilings::{Ceilings, Limit, MinimumWork};
    ///
    /// let ceilings =
    ///     Ceilings { read_gb_s: 1000.0, copy_gb_s: 900.0, f32_gflop_s: 20_000.0, by_host_clock: false };
    /// let gemv = MinimumWork { bytes: 50_000_000, mostly_read: true, flops: 100_000_000 };
    /// assert_eq!(ceilings.roofline_us(&gemv), (50.0, Limit::Memory));
    /// ```
    pub fn roofline_us(&self, work: &MinimumWork) -> (f64, Limit) {
        let gb_s = if work.mostly_read { self.read_gb_s } else { self.copy_gb_s };
        let memory = work.bytes as f64 / gb_s / 1e3;
        let arithmetic = work.flops as f64 / self.f32_gflop_s / 1e3;
        if memory >= arithmetic { (memory, Limit::Memory) } else { (arithmetic, Limit::Arithmetic) }
    }
}

/// What wgpu's calls cost the host, in microseconds. Field names are those of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CallCosts {
    /// An encoder with one pass and one dispatch.
    pub encode_us: f64,
    /// Submitting it, until the call returns.
    pub submit_us: f64,
    /// Encoding and submitting 100 dispatches in one pass, per dispatch: a lower bound for a command batch.
    pub dispatch_us: f64,
    /// Copying 4 bytes, mapping them and reading them.
    pub readback_us: f64,
    /// The same with `GpuDevice::read_many`.
    pub fulmen_readback_us: f64,
}

/// Measures the ceilings of a wgpu device: `repeat` runs of each kernel, medians. `quick` takes small
/// buffers, for software devices.
///
/// # Errors
/// What wgpu reports.
pub fn measure_ceilings(gpu: &GpuDevice, quick: bool, repeat: usize) -> Result<Ceilings, GpuError> {
    let bytes = if quick { 4 << 20 } else { 1 << 30 };
    let (raw, buffers) = (RawWgpu::new(gpu), crate::command_batch::stream_buffers(gpu, bytes)?);
    let relu = raw.relu(&buffers)?;
    raw.ceilings(&buffers, &relu, quick, repeat)
}

/// A plain kernel with its buffers and its grid.
pub(crate) struct RawKernel {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    grid: [u32; 2],
}

/// Runs and times plain kernels.
pub(crate) struct RawWgpu {
    gpu: GpuDevice,
    timestamps: Option<Timestamps>,
}

struct Timestamps {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    mapped: wgpu::Buffer,
}

impl RawWgpu {
    pub(crate) fn new(gpu: &GpuDevice) -> RawWgpu {
        let device = gpu.wgpu_device();
        let buffer = |usage| buffer(device, 16, usage);
        let timestamps = device.features().contains(wgpu::Features::TIMESTAMP_QUERY).then(|| Timestamps {
            set: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            mapped: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
        });
        RawWgpu { gpu: gpu.clone(), timestamps }
    }

    /// ReLU over the whole input buffer.
    pub(crate) fn relu(&self, buffers: &BufferPair) -> Result<RawKernel, GpuError> {
        let groups = (buffers.bytes / 16 / 256).max(1);
        // A power of two below the limit of every device for one dimension.
        let x = groups.min(1 << 15);
        self.kernel(RELU, buffers, [x as u32, (groups / x) as u32])
    }

    pub(crate) fn ceilings(
        &self,
        buffers: &BufferPair,
        relu: &RawKernel,
        quick: bool,
        repeat: usize,
    ) -> Result<Ceilings, GpuError> {
        let copy = self.median_us(relu, repeat)?;
        let vectors = buffers.bytes / 16;
        let mut read = f64::MAX;
        for groups in [1024, 2048, 4096, 16384] {
            let groups = (vectors / (256 * 4)).clamp(1, groups);
            read = read.min(self.median_us(&self.kernel(READ, buffers, [groups as u32, 1])?, repeat)?);
        }
        let groups = if quick { 16 } else { 4096 };
        let arithmetic = self.median_us(&self.kernel(&fma_kernel(), buffers, [groups, 1])?, repeat)?;
        let flops = u64::from(groups) * 256 * ROUNDS * PER_ROUND * 2;
        Ok(Ceilings {
            read_gb_s: buffers.bytes as f64 / read / 1e3,
            copy_gb_s: 2.0 * buffers.bytes as f64 / copy / 1e3,
            f32_gflop_s: flops as f64 / arithmetic / 1e3,
            by_host_clock: self.timestamps.is_none(),
        })
    }

    pub(crate) fn costs(&self, buffers: &BufferPair, repeat: usize) -> Result<CallCosts, GpuError> {
        let (device, queue) = (self.gpu.wgpu_device(), self.gpu.wgpu_queue());
        let tiny = self.kernel(RELU, buffers, [1, 1])?;
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
            encoder.copy_buffer_to_buffer(&buffers.output, 0, &mapped, 0, 4);
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
        Ok(CallCosts { encode_us, submit_us, dispatch_us, readback_us, fulmen_readback_us })
    }

    fn kernel(&self, wgsl: &str, buffers: &BufferPair, grid: [u32; 2]) -> Result<RawKernel, GpuError> {
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
                wgpu::BindGroupEntry { binding: 0, resource: buffers.input.as_entire_binding() },
                wgpu::BindGroupEntry { binding: 1, resource: buffers.output.as_entire_binding() },
            ],
        });
        self.gpu.check_alive()?;
        Ok(RawKernel { pipeline, group, grid })
    }

    /// The median time on the device, or on the host if the device has no timestamps.
    pub(crate) fn median_us(&self, kernel: &RawKernel, repeat: usize) -> Result<f64, GpuError> {
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
        kernel.encode(&mut encoder, self.timestamps.as_ref().map(|timestamps| &timestamps.set));
        if let Some(timestamps) = &self.timestamps {
            encoder.resolve_query_set(&timestamps.set, 0..2, &timestamps.resolved, 0);
            encoder.copy_buffer_to_buffer(&timestamps.resolved, 0, &timestamps.mapped, 0, 16);
        }
        queue.submit([encoder.finish()]);
        let Some(timestamps) = &self.timestamps else {
            wait(&self.gpu)?;
            return Ok(micros(start));
        };
        let bytes = self.read(&timestamps.mapped)?;
        let ticks: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|&t| u64::from_le_bytes(t)).collect();
        let ticks = ticks.last().zip(ticks.first()).map_or(0, |(end, start)| end.saturating_sub(*start));
        Ok(ticks as f64 * f64::from(queue.get_timestamp_period()) / 1e3)
    }

    /// Maps a buffer and gives its bytes.
    fn read(&self, buffer: &wgpu::Buffer) -> Result<Vec<u8>, GpuError> {
        buffer.map_async(wgpu::MapMode::Read, .., |_| {});
        wait(&self.gpu)?;
        let bytes = buffer.get_mapped_range(..).map(|view| view.to_vec());
        buffer.unmap();
        bytes.map_err(|error| GpuError::Internal { call: "get_mapped_range", message: error.to_string() })
    }
}

/// Dispatches of one pass, when the cost of one of many is measured.
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
