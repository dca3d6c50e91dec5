//! Products on a device: buffers with made-up contents, lists as programs, times.
#![allow(dead_code, unreachable_pub, reason = "the tests and the bench each use a part")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use fulmen_wgpu::kernel::{Caps, Kernel, StorageBinding, fold_grid};
use fulmen_wgpu::kernels::matmul::{MatmulBuffer, MatmulLaunches};
use fulmen_wgpu::{
    AdapterSelector, DeviceOptions, DiskCache, Dispatch, DispatchList, GpuBuffer, GpuDevice, Pipeline,
    PipelineCache,
};

pub struct Gpu {
    pub device: GpuDevice,
    pub caps: Caps,
    pipelines: PipelineCache,
}

/// The buffers of a matmul.
pub struct Buffers<'a> {
    pub a: &'a GpuBuffer,
    pub b: [&'a GpuBuffer; 2],
    /// Byte offset and size of the part of B that is bound, where it is not all.
    pub part: Option<(u64, u64)>,
    pub out: &'a GpuBuffer,
    pub extras: Vec<&'a GpuBuffer>,
}

const CALL: &str = "a matmul";

const FILL: &str = "struct Params { count: u32, seed: u32 }
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) w: vec3<u32>,
    @builtin(num_workgroups) g: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
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
    /// The adapter whose name contains `FULMEN_ADAPTER`, or the best.
    pub fn open() -> Self {
        let adapter = std::env::var("FULMEN_ADAPTER").map_or(AdapterSelector::Best, AdapterSelector::Name);
        let options = DeviceOptions { adapter, disk_cache: DiskCache::Off, ..DeviceOptions::default() };
        let device = GpuDevice::with_options(&options).unwrap_or_else(|error| {
            panic!("a GPU adapter is needed, hardware or software; ./scripts/test installs one: {error}")
        });
        Self { caps: device.caps(), device, pipelines: PipelineCache::new() }
    }

    pub fn name(&self) -> &str {
        &self.device.info().name
    }

    pub fn empty(&self, bytes: u64) -> GpuBuffer {
        self.device.create_buffer(CALL, bytes).expect("a buffer")
    }

    pub fn upload(&self, bytes: &[u8]) -> GpuBuffer {
        self.device.create_buffer_with(CALL, bytes).expect("a buffer")
    }

    /// A buffer of `count` floats that [`value`] gives.
    pub fn filled(&self, count: u32, seed: u32) -> GpuBuffer {
        let buffer = self.empty(u64::from(count) * 4);
        self.fill(&buffer, count, seed);
        buffer
    }

    pub fn fill(&self, buffer: &GpuBuffer, count: u32, seed: u32) {
        let kernel = Kernel {
            label: "fill".into(),
            wgsl: FILL.into(),
            bindings: vec![StorageBinding::read_write("dst", "f32")],
            param_words: 2,
        };
        let workgroups = fold_grid(u64::from(count).div_ceil(256), self.caps.max_workgroups).unwrap();
        let step = Dispatch {
            pipeline: self.pipeline(&kernel),
            bindings: vec![buffer.whole()],
            params: vec![count, seed],
            workgroups,
            label: "fill".to_owned(),
        };
        self.run(&DispatchList::compile(&self.device, vec![step]).expect("a program"));
    }

    fn pipeline(&self, kernel: &Kernel) -> Arc<Pipeline> {
        // SAFETY: the kernels clamp their indices to the buffers that their list names, their loops end, they
        // divide by nothing that can be zero, and they write workgroup memory before they read it.
        unsafe { self.pipelines.get_trusted(&self.device, kernel) }.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Compiles on all cores what is not compiled yet.
    pub fn compile_all(&self, kernels: &[&Kernel]) {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.pipeline(kernel);
            }
        };
        std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    }

    /// The steps of a list on these buffers.
    pub fn steps(&self, list: &MatmulLaunches, buffers: &Buffers<'_>) -> Vec<Dispatch> {
        let scratch: Vec<_> = list.scratch.iter().map(|&bytes| self.empty(bytes)).collect();
        let bound = |buffer: &MatmulBuffer| match *buffer {
            MatmulBuffer::A => buffers.a.whole(),
            MatmulBuffer::B(i) => match buffers.part {
                None => buffers.b[i as usize].whole(),
                Some((offset, size)) => buffers.b[i as usize].slice(offset..offset + size),
            },
            MatmulBuffer::Out => buffers.out.whole(),
            MatmulBuffer::Extra(i) => buffers.extras[i as usize].whole(),
            MatmulBuffer::Scratch(i) => scratch[i as usize].whole(),
        };
        let step = |step: &fulmen_wgpu::kernels::matmul::MatmulLaunch| Dispatch {
            pipeline: self.pipeline(&step.launch.kernel),
            bindings: step.buffers.iter().map(bound).collect(),
            params: step.launch.params.clone(),
            workgroups: step.launch.workgroups,
            label: step.launch.kernel.label.to_string(),
        };
        list.launches.iter().map(step).collect()
    }

    pub fn program(&self, steps: impl IntoIterator<Item = Dispatch>) -> DispatchList {
        DispatchList::compile(&self.device, steps.into_iter().collect())
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn run(&self, program: &DispatchList) {
        program.submit().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Microseconds of GPU time of each program, each in a pass of its own.
    pub fn time(&self, programs: &[&DispatchList]) -> Vec<f64> {
        let (device, queue) = (self.device.wgpu_device(), self.device.wgpu_queue());
        let count = programs.len() as u32 * 2;
        let set = device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count,
        });
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: u64::from(count) * 8,
                usage,
                mapped_at_creation: false,
            })
        };
        let resolved = buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC);
        let read = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        let mut encoder = device.create_command_encoder(&Default::default());
        for (i, program) in (0..).step_by(2).zip(programs) {
            let writes = wgpu::ComputePassTimestampWrites {
                query_set: &set,
                beginning_of_pass_write_index: Some(i),
                end_of_pass_write_index: Some(i + 1),
            };
            program.encode_timed(&mut encoder, Some(writes));
        }
        encoder.resolve_query_set(&set, 0..count, &resolved, 0);
        encoder.copy_buffer_to_buffer(&resolved, 0, &read, 0, None);
        queue.submit([encoder.finish()]);
        read.map_async(wgpu::MapMode::Read, .., |result| result.expect("mapped"));
        device.poll(wgpu::PollType::wait_indefinitely()).expect("polled");
        let bytes = read.get_mapped_range(..).expect("mapped").to_vec();
        let ticks: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|c| u64::from_ne_bytes(*c)).collect();
        let period = f64::from(queue.get_timestamp_period()) / 1e3;
        ticks.as_chunks::<2>().0.iter().map(|[from, to]| to.saturating_sub(*from) as f64 * period).collect()
    }

    /// The floats of the ranges (offset and length in bytes), one after the other.
    pub fn read_f32(&self, buffer: &GpuBuffer, ranges: &[(u64, u64)]) -> Vec<f32> {
        let slices: Vec<_> = ranges.iter().map(|(at, len)| buffer.slice(*at..at + len)).collect();
        let bytes = self.device.read_many(&slices).unwrap_or_else(|error| panic!("{error}")).concat();
        bytes.as_chunks::<4>().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
    }
}

pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}
