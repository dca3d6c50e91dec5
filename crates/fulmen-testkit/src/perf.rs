//! Timing of a case, and the device's bandwidth and arithmetic ceilings.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fulmen_core::{Backend, BackendError, CopyCall, DTypeError, ExecError, PlanOptions, Work};

use crate::case::Case;
use crate::draw::Pools;
use crate::rig::Rig;

/// The ceilings of a device, measured on the same machine in the same run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// Bytes per nanosecond when a buffer of the case's size is only read.
    pub read_gb_s: f64,
    /// Floating-point operations per nanosecond of the fastest matmul.
    pub gflop_s: f64,
}

/// What limits a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The bytes that it moves.
    Memory,
    /// The operations that it does.
    Compute,
}

/// How fast a case ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The median of the runs.
    pub median: Duration,
    /// The fastest run.
    pub best: Duration,
    /// How many times were taken.
    pub runs: usize,
    /// What a run does.
    pub work: Work,
}

impl Timing {
    /// Bytes per nanosecond.
    pub fn gb_s(&self) -> f64 {
        self.work.bytes as f64 / self.nanoseconds()
    }

    /// Operations per nanosecond.
    pub fn gflop_s(&self) -> f64 {
        self.work.flops as f64 / self.nanoseconds()
    }

    /// The fraction of the roofline that was reached, and which ceiling bounds it.
    pub fn share(&self, ceiling: Ceiling) -> (f64, Bound) {
        let memory = self.work.bytes as f64 / ceiling.read_gb_s;
        let compute = self.work.flops as f64 / ceiling.gflop_s;
        let (least, bound) =
            if memory >= compute { (memory, Bound::Memory) } else { (compute, Bound::Compute) };
        (least / self.nanoseconds(), bound)
    }

    fn nanoseconds(&self) -> f64 {
        (self.median.as_secs_f64() * 1e9).max(1.0)
    }
}

/// Why a case could not be timed.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The backend failed.
    #[error(transparent)]
    Run(#[from] ExecError),
    /// The data could not be generated.
    #[error(transparent)]
    Data(#[from] DTypeError),
}

/// Times a case: some warm-up runs, then runs until `budget` is spent, at least three. On a device with
/// replay, a batch of replays that hides the cost of synchronization is timed as one.
pub fn time_case(
    backend: &mut dyn Backend,
    case: &Case,
    pools: &mut Pools,
    budget: Duration,
) -> Result<Timing, PerfError> {
    let data = pools.draw_case(case)?;
    let options = PlanOptions { guard: 0, ..case.plan_options() };
    let rig = Rig::new(backend, case.graph.clone(), &options, &data)?;
    let times = time_runs(backend, &rig, budget);
    rig.release(backend)?;
    let mut times = times?;
    times.sort_unstable();
    Ok(Timing { median: times[times.len() / 2], best: times[0], runs: times.len(), work: case.work })
}

fn time_runs(backend: &mut dyn Backend, rig: &Rig, budget: Duration) -> Result<Vec<Duration>, ExecError> {
    let Some(id) = backend.prepare(rig.bound.program())? else {
        return time_batches(1, budget, |_| rig.run(backend));
    };
    let mut replay = |count: u32| -> Result<(), ExecError> {
        (0..count).try_for_each(|_| backend.replay(id).map(|_| ()))?;
        Ok(backend.synchronize()?)
    };
    let times = replays_between_waits(&mut replay).and_then(|batch| time_batches(batch, budget, replay));
    backend.release(id);
    times
}

/// The number of replays that makes the cost of synchronization negligible.
fn replays_between_waits(replay: &mut impl FnMut(u32) -> Result<(), ExecError>) -> Result<u32, ExecError> {
    const LONG: Duration = Duration::from_millis(1);
    let mut batch = 1;
    loop {
        let start = Instant::now();
        replay(batch)?;
        if start.elapsed() >= LONG || batch >= 1 << 12 {
            return Ok(batch);
        }
        batch *= 2;
    }
}

/// The time per run of each of some batches.
fn time_batches(
    batch: u32,
    budget: Duration,
    mut run: impl FnMut(u32) -> Result<(), ExecError>,
) -> Result<Vec<Duration>, ExecError> {
    let (warm_up, start) = (budget / 5, Instant::now());
    let mut warm_runs = 0;
    while warm_runs < 1 || start.elapsed() < warm_up {
        run(batch)?;
        warm_runs += 1;
    }
    let (mut times, start) = (Vec::new(), Instant::now());
    while times.len() < 3 || start.elapsed() < budget {
        let began = Instant::now();
        run(batch)?;
        times.push(began.elapsed() / batch);
    }
    Ok(times)
}

/// Bytes per nanosecond that a device reads and writes when it copies a buffer larger than any cache: the
/// best of some runs.
pub fn copy_gb_s(backend: &mut dyn Backend) -> Result<f64, BackendError> {
    let (from, to) = (backend.alloc(COPIED)?, backend.alloc(COPIED)?);
    let call = CopyCall { input: from, output: to, bytes: COPIED };
    let mut best = f64::INFINITY;
    let mut copy = || -> Result<(), BackendError> {
        for _ in 0..8 {
            let start = Instant::now();
            for _ in 0..COPIES {
                backend.dispatch_copy(&call)?;
            }
            backend.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(())
    };
    let copied = copy();
    backend.free(from)?;
    backend.free(to)?;
    copied?;
    Ok(2.0 * (COPIED * COPIES) as f64 / (best * 1e9))
}

/// Bytes of the buffer that is copied, and copies per synchronization.
const COPIED: usize = 512 << 20;
const COPIES: usize = 4;

/// Measures the read bandwidth of the host's threads, each over its own part of a buffer. A small buffer
/// stays in a cache, so the ceiling of a case is that of a buffer of its size.
#[derive(Debug)]
pub struct HostReader {
    data: Vec<u64>,
    threads: usize,
    /// By the binary logarithm of the size.
    measured: HashMap<u32, f64>,
}

impl HostReader {
    /// The largest buffer measured, larger than any cache.
    pub const LARGEST: usize = 512 << 20;
    const SMALLEST: usize = 64 << 10;

    /// A reader with this many threads.
    pub fn new(threads: usize) -> HostReader {
        HostReader { data: vec![1; Self::LARGEST / 8], threads: threads.max(1), measured: HashMap::new() }
    }

    /// How many threads read.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Bytes per nanosecond of reading a buffer of about this size (the next power of two).
    pub fn gb_s(&mut self, bytes: u64) -> f64 {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(Self::SMALLEST, Self::LARGEST);
        let bytes = bytes.next_power_of_two();
        let (data, threads) = (&self.data[..bytes / 8], self.threads);
        *self.measured.entry(bytes.ilog2()).or_insert_with(|| read_gb_s(data, threads))
    }
}

fn read_gb_s(data: &[u64], threads: usize) -> f64 {
    // Enough passes to make the start of the threads negligible.
    let passes = (HostReader::LARGEST / size_of_val(data)).clamp(1, 256);
    let read = |part: &[u64]| {
        for _ in 0..passes {
            let sum = std::hint::black_box(part).iter().fold(0u64, |sum, &x| sum.wrapping_add(x));
            std::hint::black_box(sum);
        }
    };
    let once = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            data.chunks(data.len().div_ceil(threads)).for_each(|part| {
                scope.spawn(move || read(part));
            });
        });
        start.elapsed().as_secs_f64()
    };
    let best = (0..5).map(|_| once()).fold(f64::INFINITY, f64::min);
    (size_of_val(data) * passes) as f64 / best / 1e9
}
