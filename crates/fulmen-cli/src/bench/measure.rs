//! Timing one piece of work.

use std::time::{Duration, Instant};

use fulmen_wgpu::{BufferId, GpuCommandBatch, GpuDevice, GpuError, Profile, wgpu};
use serde::Serialize;

use super::raw::Ceilings;

/// A batch that was checked and is to be timed.
pub(super) struct Work {
    pub(super) name: String,
    pub(super) batch: GpuCommandBatch,
    pub(super) out: BufferId,
    pub(super) needs: Needs,
    /// Whether reading the result is part of what is timed.
    pub(super) read: bool,
    pub(super) note: Option<String>,
}

/// What a piece of work cannot do without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Bytes that are read or written once.
    pub(super) bytes: u64,
    /// Most of them are only read.
    pub(super) mostly_read: bool,
    /// Operations in f32.
    pub(super) flops: u64,
}

/// Medians in microseconds. Field names are those of the JSON output: add, do not rename.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) work: String,
    pub(super) ops: usize,
    pub(super) launches: usize,
    pub(super) execute_read_us: Option<f64>,
    /// Until the device is done.
    pub(super) execute_us: f64,
    /// Until the call returns: encoding and submitting.
    pub(super) submit_us: f64,
    pub(super) submit_us_per_op: f64,
    /// One pass, from its beginning to its end.
    pub(super) gpu_us: Option<f64>,
    pub(super) bytes: u64,
    pub(super) flops: u64,
    pub(super) floor_us: f64,
    /// `memory` or `arithmetic`.
    pub(super) bound: &'static str,
    /// The floor's part of the time on the GPU.
    pub(super) share: Option<f64>,
    pub(super) kernels: Vec<KernelTime>,
    /// Each kernel had a pass of its own when `kernels` was measured, which makes them slower.
    pub(super) kernels_in_split_passes: bool,
    pub(super) note: Option<String>,
}

/// One kernel of a profiled run.
#[derive(Debug, Serialize)]
pub(super) struct KernelTime {
    label: String,
    us: f64,
}

/// Runs before the first that counts.
const WARM_UP: usize = 3;

/// A GPU that was idle runs at a fraction of its clock: it is kept busy for this long before each series.
const BUSY: Duration = Duration::from_millis(300);

/// Runs a piece of work again and again, with some runs in flight, until the device is at its full clock.
fn keep_busy(work: &mut Work, gpu: &GpuDevice, busy: Duration) -> Result<(), GpuError> {
    let start = Instant::now();
    let mut runs = 0;
    while runs < WARM_UP || start.elapsed() < busy {
        for _ in 0..4 {
            work.batch.execute_blocking()?;
        }
        wait(gpu)?;
        runs += 4;
    }
    Ok(())
}

/// Times a piece of work; gives the profile of one run too, where the device has timestamps.
pub(super) fn measure(
    work: &mut Work,
    repeat: usize,
    ceilings: &Ceilings,
) -> Result<(Measured, Option<Profile>), GpuError> {
    let gpu = work.batch.device().clone();
    // A software device has no clock to wait for.
    let software = gpu.info().device_type == wgpu::DeviceType::Cpu;
    let busy = if software { Duration::ZERO } else { BUSY };
    keep_busy(work, &gpu, busy)?;
    let (mut submits, mut executes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeat {
        let start = Instant::now();
        work.batch.execute_blocking()?;
        submits.push(micros(start));
        wait(&gpu)?;
        executes.push(micros(start));
    }
    keep_busy(work, &gpu, busy)?;
    for _ in 0..if work.read { WARM_UP + repeat } else { 0 } {
        let start = Instant::now();
        let read = work.batch.execute_and_read_blocking(&[work.out])?;
        reads.push(micros(start));
        std::hint::black_box(read);
    }
    keep_busy(work, &gpu, busy)?;
    let gpu_us = gpu_time(&mut work.batch, repeat)?;
    keep_busy(work, &gpu, busy)?;
    let profile = supported(work.batch.execute_profiled())?;
    let ops = work.batch.num_operations();
    let (floor_us, bound) = ceilings.floor_us(&work.needs);
    let submit_us = median(&mut submits);
    let measured = Measured {
        work: work.name.clone(),
        ops,
        launches: work.batch.num_launches().unwrap_or(0),
        execute_read_us: work.read.then(|| median(&mut reads[WARM_UP..])),
        execute_us: median(&mut executes),
        submit_us,
        submit_us_per_op: submit_us / ops.max(1) as f64,
        gpu_us,
        bytes: work.needs.bytes,
        flops: work.needs.flops,
        floor_us,
        bound,
        share: gpu_us.filter(|&us| us > 0.0).map(|us| floor_us / us),
        kernels: profile.iter().flat_map(|p| &p.dispatches).map(KernelTime::of).collect(),
        kernels_in_split_passes: profile.as_ref().is_some_and(|p| p.split_passes),
        note: work.note.clone(),
    };
    Ok((measured, profile))
}

impl KernelTime {
    fn of(dispatch: &fulmen_wgpu::DispatchTime) -> KernelTime {
        KernelTime { label: dispatch.label.clone(), us: dispatch.duration_us }
    }
}

/// The median time of a whole run on the device; `None` where it has no timestamps.
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

/// `None` for what the device cannot do.
fn supported<T>(result: Result<T, GpuError>) -> Result<Option<T>, GpuError> {
    match result {
        Err(GpuError::Unsupported { .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// Waits until the device has done everything.
pub(super) fn wait(gpu: &GpuDevice) -> Result<(), GpuError> {
    // Without a time limit the only failure is a lost device, which the next line reports.
    let _ = gpu.wgpu_device().poll(wgpu::PollType::Wait { submission_index: None, timeout: None });
    gpu.check_alive()
}

pub(super) fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// The middle one; 0 of nothing.
pub(super) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
