//! Timing one recorded command batch.

use std::time::{Duration, Instant};

use fulmen_wgpu::{BufferId, GpuCommandBatch, GpuDevice, GpuError, Profile};
use serde::Serialize;

use crate::ceilings::{Ceilings, Limit, MinimumWork};
use crate::timer::{median, micros, wait, warm_up_time};

/// A recorded batch whose result was checked.
pub(super) struct BatchCase {
    pub(super) name: String,
    pub(super) batch: GpuCommandBatch,
    pub(super) out: BufferId,
    pub(super) minimum: MinimumWork,
    /// Whether reading the result is part of what is timed.
    pub(super) read: bool,
    pub(super) note: Option<String>,
}

/// Medians in microseconds. The serialized names are an interface: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchTimes {
    /// The case.
    pub case: String,
    /// Recorded ops.
    pub ops: usize,
    /// Kernel launches after fusion.
    pub launches: usize,
    /// Until the result is on the host.
    pub execute_read_us: Option<f64>,
    /// Until the device is done.
    pub execute_us: f64,
    /// Until the call returns: encoding and submitting.
    pub submit_us: f64,
    /// `submit_us` divided by the number of ops.
    pub submit_us_per_op: f64,
    /// The compute pass on the device, by timestamps.
    pub gpu_us: Option<f64>,
    /// Bytes that must be read or written.
    pub bytes: u64,
    /// Operations that must be done.
    pub flops: u64,
    /// The least time that the roofline of the device allows.
    pub roofline_us: f64,
    /// Which ceiling of the roofline that is.
    pub limit: Limit,
    /// `roofline_us` divided by `gpu_us`.
    pub share: Option<f64>,
    /// Every kernel of one profiled run.
    pub kernels: Vec<KernelTime>,
    /// Each kernel had a pass of its own when `kernels` was measured, which makes them slower.
    pub kernels_in_split_passes: bool,
    /// Sizes, in words.
    pub note: Option<String>,
}

/// One kernel of a profiled run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelTime {
    /// Its label.
    pub label: String,
    /// Its time in microseconds.
    pub us: f64,
}

/// Runs before the first that counts.
const WARM_UP_RUNS: usize = 3;

/// Runs a batch repeatedly, with several runs in flight, until the device is at its full clock.
fn warm_up(case: &mut BatchCase, gpu: &GpuDevice, duration: Duration) -> Result<(), GpuError> {
    let start = Instant::now();
    let mut runs = 0;
    while runs < WARM_UP_RUNS || start.elapsed() < duration {
        for _ in 0..4 {
            case.batch.execute_blocking()?;
        }
        wait(gpu)?;
        runs += 4;
    }
    Ok(())
}

/// Times a batch; also gives the profile of one run if the device has timestamps.
pub(super) fn measure(
    case: &mut BatchCase,
    repeat: usize,
    ceilings: &Ceilings,
) -> Result<(BatchTimes, Option<Profile>), GpuError> {
    let gpu = case.batch.device().clone();
    let duration = warm_up_time(&gpu);
    warm_up(case, &gpu, duration)?;
    let (mut submits, mut executes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeat {
        let start = Instant::now();
        case.batch.execute_blocking()?;
        submits.push(micros(start));
        wait(&gpu)?;
        executes.push(micros(start));
    }
    warm_up(case, &gpu, duration)?;
    for _ in 0..if case.read { WARM_UP_RUNS + repeat } else { 0 } {
        let start = Instant::now();
        let read = case.batch.execute_and_read_blocking(&[case.out])?;
        reads.push(micros(start));
        std::hint::black_box(read);
    }
    warm_up(case, &gpu, duration)?;
    let gpu_us = gpu_time(&mut case.batch, repeat)?;
    warm_up(case, &gpu, duration)?;
    let profile = supported(case.batch.execute_profiled())?;
    let ops = case.batch.num_operations();
    let (roofline_us, limit) = ceilings.roofline_us(&case.minimum);
    let submit_us = median(&mut submits);
    let times = BatchTimes {
        case: case.name.clone(),
        ops,
        launches: case.batch.num_launches().unwrap_or(0),
        execute_read_us: case.read.then(|| median(&mut reads[WARM_UP_RUNS..])),
        execute_us: median(&mut executes),
        submit_us,
        submit_us_per_op: submit_us / ops.max(1) as f64,
        gpu_us,
        bytes: case.minimum.bytes,
        flops: case.minimum.flops,
        roofline_us,
        limit,
        share: gpu_us.filter(|&us| us > 0.0).map(|us| roofline_us / us),
        kernels: profile.iter().flat_map(|p| &p.dispatches).map(KernelTime::of).collect(),
        kernels_in_split_passes: profile.as_ref().is_some_and(|p| p.split_passes),
        note: case.note.clone(),
    };
    Ok((times, profile))
}

impl KernelTime {
    fn of(dispatch: &fulmen_wgpu::DispatchTime) -> KernelTime {
        KernelTime { label: dispatch.label.clone(), us: dispatch.duration_us }
    }
}

/// The median time of a whole run on the device; `None` if it has no timestamps.
fn gpu_time(batch: &mut GpuCommandBatch, repeat: usize) -> Result<Option<f64>, GpuError> {
    let mut times = Vec::with_capacity(repeat);
    for _ in 0..repeat {
        match supported(batch.execute_timed())? {
            Some(time) => times.push(time),
            None => return Ok(None),
        }
    }
    Ok(Some(median(&mut times)))
}

/// `None` if the device cannot do it.
fn supported<T>(result: Result<T, GpuError>) -> Result<Option<T>, GpuError> {
    match result {
        Err(GpuError::Unsupported { .. }) => Ok(None),
        other => other.map(Some),
    }
}
