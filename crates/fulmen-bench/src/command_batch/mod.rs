//! Times the command batch (`GpuCommandBatch`) of a wgpu device: feed-forward layers, chains of element-wise
//! ops, a streaming pass over up to 1 GiB, and readback.
//!
//! Each batch is recorded once, checked in f64 and replayed; medians count.

mod chain;
mod feed_forward;
mod layer_stack;
mod readback;
mod stream;
mod timing;

use fulmen_wgpu::{GpuDevice, Profile};
use serde::Serialize;

pub use layer_stack::PipelineCounts;
pub use readback::ReadbackTimes;
pub use stream::RawComparison;
pub(crate) use stream::stream_buffers;
pub use timing::{BatchTimes, KernelTime};

use crate::BenchError;
use crate::ceilings::{BufferPair, CallCosts, Ceilings, RawKernel, RawWgpu};
use crate::progress::{Progress, Steps};
use feed_forward::FeedForward;
use timing::{BatchCase, measure};

/// What is measured, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandBatchOptions {
    /// Small sizes, for software devices.
    pub quick: bool,
    /// Runs of each case; 30 by default, 5 with `quick`.
    pub repeat: Option<usize>,
}

/// Everything that was measured. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandBatchReport {
    /// The name of the device.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// The API behind wgpu.
    pub interface: String,
    /// Sizes were small.
    pub quick: bool,
    /// Runs of each case.
    pub repeat: usize,
    /// What plain kernels reach.
    pub ceilings: Ceilings,
    /// What wgpu's calls cost.
    pub costs: CallCosts,
    /// The times of each case.
    pub cases: Vec<BatchTimes>,
    /// The streaming case compared with a plain wgpu kernel.
    pub pass: RawComparison,
    /// The times of reading results.
    pub readback: Vec<ReadbackTimes>,
    /// What the pipeline cache compiled for a stack of layers.
    pub pipelines: PipelineCounts,
    /// The kernels of the feed-forward layer on one row, if the device has timestamps.
    #[serde(skip)]
    pub profile: Option<Profile>,
}

struct Sizes {
    hidden: usize,
    inner: usize,
    chain: usize,
    stream: u64,
    layer: (usize, usize),
}

const FULL: Sizes = Sizes { hidden: 2560, inner: 9728, chain: 1 << 20, stream: 1 << 30, layer: (256, 1024) };
const QUICK: Sizes = Sizes { hidden: 128, inner: 320, chain: 1 << 14, stream: 4 << 20, layer: (64, 160) };

/// Rows of the feed-forward layer.
const ROWS: [u32; 3] = [1, 32, 256];

/// Cases, and the measurements before them.
const STEPS: usize = ROWS.len() + 3 + 2 + 2;

/// The device and what was measured on it so far.
struct Bench<'a> {
    gpu: &'a GpuDevice,
    repeat: usize,
    ceilings: Ceilings,
    steps: Steps<'a>,
    cases: Vec<BatchTimes>,
}

/// Runs every case on a device.
///
/// # Errors
/// What wgpu reports, and [`BenchError::WrongResult`] for a case whose result is wrong.
pub fn bench_command_batch(
    gpu: &GpuDevice,
    options: &CommandBatchOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<CommandBatchReport, BenchError> {
    let quick = options.quick;
    let sizes = if quick { QUICK } else { FULL };
    let repeat = options.repeat.unwrap_or(if quick { 5 } else { 30 });
    let mut steps = Steps::new(STEPS, progress);
    steps.start("ceilings");
    let (raw, buffers) = (RawWgpu::new(gpu), stream_buffers(gpu, sizes.stream)?);
    let relu = raw.relu(&buffers)?;
    let ceilings = raw.ceilings(&buffers, &relu, quick, repeat)?;
    let costs = raw.costs(&buffers, if quick { 20 } else { 200 })?;
    steps.finish(1);
    steps.start("readback");
    let readback = readback::measure(gpu, quick, repeat)?;
    steps.finish(1);
    let mut bench = Bench { gpu, repeat, ceilings, steps, cases: Vec::new() };

    let pass = bench.stream(&raw, &relu, &buffers, sizes.stream)?;
    drop((relu, buffers));
    let layer = FeedForward::new(gpu, 1, 1.0, sizes.hidden, sizes.inner)?;
    let mut profile = None;
    for m in ROWS {
        let of_this = bench.add(|gpu| layer.case(gpu, m))?;
        profile = profile.or(of_this);
    }
    drop(layer);
    bench.add(|gpu| chain::relu(gpu, sizes.chain, true))?;
    bench.add(|gpu| chain::relu(gpu, sizes.chain, false))?;
    bench.add(|gpu| chain::mixed(gpu, sizes.chain))?;
    let (case, pipelines) = layer_stack::case(gpu, sizes.layer.0, sizes.layer.1)?;
    bench.add(|_| Ok(case))?;
    let info = gpu.info();
    Ok(CommandBatchReport {
        device: info.name.clone(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        interface: info.backend.to_string(),
        quick,
        repeat,
        ceilings,
        costs,
        cases: bench.cases,
        pass,
        readback,
        pipelines,
        profile,
    })
}

impl Bench<'_> {
    /// Records a case, which checks it, and times it.
    fn add(
        &mut self,
        case: impl FnOnce(&GpuDevice) -> Result<BatchCase, BenchError>,
    ) -> Result<Option<Profile>, BenchError> {
        let mut case = case(self.gpu)?;
        self.steps.start(&case.name);
        let (times, profile) = measure(&mut case, self.repeat, &self.ceilings)?;
        self.cases.push(times);
        self.steps.finish(1);
        Ok(profile)
    }

    /// The streaming case, with the plain kernel right before and after it.
    fn stream(
        &mut self,
        raw: &RawWgpu,
        relu: &RawKernel,
        buffers: &BufferPair,
        asked: u64,
    ) -> Result<RawComparison, BenchError> {
        let before = raw.median_us(relu, self.repeat)?;
        self.add(|gpu| stream::case(gpu, buffers, asked))?;
        // The better of the two: the batch is compared with the best that the plain kernel does.
        let raw_gpu_us = before.min(raw.median_us(relu, self.repeat)?);
        let batch = self.cases.last().and_then(|case| case.gpu_us);
        Ok(RawComparison {
            raw_gpu_us,
            raw_gb_s: 2.0 * buffers.bytes as f64 / raw_gpu_us / 1e3,
            ratio: batch.map(|us| raw_gpu_us / us),
        })
    }
}
