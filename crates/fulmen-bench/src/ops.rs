//! Times the ops of a device, case by case of the op table (`fulmen-testkit`), and compares each with the
//! memory bandwidth and the FLOP/s that the device reaches.

use std::time::Duration;

use fulmen_core::{Backend, DeviceInfo, DeviceKind};
use fulmen_testkit::draw::Pools;
use fulmen_testkit::perf::{Bound, Ceiling, HostReader, Timing, copy_gb_s, time_case};
use fulmen_testkit::{Case, Filter, table};
use serde::Serialize;

use crate::progress::{Progress, Steps};
use crate::{BenchError, dtype_name};

/// What is timed, and for how long.
#[derive(Clone, Debug)]
pub struct OpBenchOptions {
    /// The cases.
    pub filter: Filter,
    /// Every case of the table, not only the shapes of real models.
    pub all: bool,
    /// The time for each case; by default 300 ms on the CPU and 30 ms on other devices, whose times vary
    /// less.
    pub budget: Option<Duration>,
    /// The seed of the data.
    pub seed: u64,
    /// CPU threads that measure the memory bandwidth of the host.
    pub threads: usize,
}

/// The highest figures of a device. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpCeiling {
    /// GB/s of a buffer that no cache holds.
    pub read_gb_s: f64,
    /// GFLOP/s of the fastest matmul.
    pub gflop_s: f64,
    /// That matmul.
    pub gflop_s_by: String,
    /// How the bandwidth was measured.
    #[serde(skip)]
    pub bandwidth_source: BandwidthSource,
}

/// How the memory bandwidth of a device was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandwidthSource {
    /// CPU threads read a buffer.
    HostRead {
        /// How many.
        threads: usize,
    },
    /// The device copies a buffer.
    DeviceCopy,
}

/// One case. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpResult {
    /// The name of the case.
    pub name: String,
    /// Its op.
    pub op: &'static str,
    /// Its type.
    pub dtype: String,
    /// Its times, or why it could not run.
    #[serde(flatten)]
    pub outcome: OpOutcome,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum OpOutcome {
    /// It was timed.
    Timed(OpTimes),
    /// The backend refused it or failed.
    Failed {
        /// Why.
        error: String,
    },
}

/// The times of a case. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OpTimes {
    /// The median.
    pub seconds: f64,
    /// The fastest run.
    pub best_seconds: f64,
    /// Runs.
    pub runs: usize,
    /// Bytes that must be read or written.
    pub bytes: u64,
    /// Operations that must be done.
    pub flops: u64,
    /// GB/s.
    pub gb_s: f64,
    /// GFLOP/s.
    pub gflop_s: f64,
    /// GB/s that a buffer of this size reaches.
    pub ceiling_gb_s: f64,
    /// How much of the ceiling that limits it was reached, from 0 to 1.
    pub share: f64,
    /// Which ceiling that is: `memory` or `compute`.
    pub bound: &'static str,
}

/// Everything that was measured. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpReport {
    /// The device, as `--device` takes it.
    pub device: String,
    /// Its name.
    pub name: String,
    /// The seed of the data.
    pub seed: u64,
    /// The highest figures of the device.
    pub ceiling: OpCeiling,
    /// The cases.
    pub cases: Vec<OpResult>,
}

/// The matmuls whose fastest one sets the ceiling of FLOP/s: 512 rows, each type.
const PEAK_MATMULS: &str = "qwen3-4b/m512/2560x2560";

/// Times the cases of the op table on a device.
///
/// # Errors
/// [`BenchError::NoCases`] if the filter leaves none; [`BenchError::Bandwidth`] and [`BenchError::Peak`] if
/// the ceilings cannot be measured. A case that fails is part of the report.
pub fn bench_ops(
    device: &DeviceInfo,
    backend: &mut dyn Backend,
    options: &OpBenchOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<OpReport, BenchError> {
    let wanted = |case: &Case| options.filter.takes(case) && (options.all || case.timed);
    let cases: Vec<Case> = table().into_iter().filter(wanted).collect();
    if cases.is_empty() {
        return Err(BenchError::NoCases);
    }
    let on_host = device.kind == DeviceKind::Cpu;
    let budget = options.budget.unwrap_or(Duration::from_millis(if on_host { 300 } else { 30 }));
    let mut pools = Pools::new(options.seed);
    let mut bandwidth = match on_host {
        true => Bandwidth::Host(HostReader::new(options.threads)),
        false => Bandwidth::Device(copy_gb_s(backend).map_err(BenchError::Bandwidth)?),
    };
    let (gflop_s, gflop_s_by) = peak_matmul(backend, &mut pools, budget.min(Duration::from_millis(200)))?;
    let read_gb_s = bandwidth.gb_s(u64::MAX);
    let mut steps = Steps::new(cases.len(), progress);
    let mut results = Vec::with_capacity(cases.len());
    for case in cases {
        steps.start(&case.name);
        let timing = time_case(backend, &case, &mut pools, budget);
        let ceiling = Ceiling { read_gb_s: bandwidth.gb_s(case.work.bytes), gflop_s };
        let outcome = match timing {
            Ok(timing) => OpOutcome::Timed(OpTimes::new(&timing, ceiling)),
            Err(error) => OpOutcome::Failed { error: error.to_string() },
        };
        results.push(OpResult { name: case.name, op: case.op, dtype: dtype_name(case.dtype), outcome });
        steps.finish(1);
    }
    let bandwidth_source = bandwidth.source();
    Ok(OpReport {
        device: device.selector().to_string(),
        name: device.name.clone(),
        seed: options.seed,
        ceiling: OpCeiling { read_gb_s, gflop_s, gflop_s_by, bandwidth_source },
        cases: results,
    })
}

impl OpTimes {
    fn new(timing: &Timing, ceiling: Ceiling) -> OpTimes {
        let (share, bound) = timing.share(ceiling);
        OpTimes {
            seconds: timing.median.as_secs_f64(),
            best_seconds: timing.best.as_secs_f64(),
            runs: timing.runs,
            bytes: timing.work.bytes,
            flops: timing.work.flops,
            gb_s: timing.gb_s(),
            gflop_s: timing.gflop_s(),
            ceiling_gb_s: ceiling.read_gb_s,
            share,
            bound: match bound {
                Bound::Memory => "memory",
                Bound::Compute => "compute",
            },
        }
    }
}

/// The memory bandwidth of a device.
enum Bandwidth {
    /// By the size of the buffer: a small one stays in a cache.
    Host(HostReader),
    /// The same for every size.
    Device(f64),
}

impl Bandwidth {
    fn gb_s(&mut self, bytes: u64) -> f64 {
        match self {
            Bandwidth::Host(reader) => reader.gb_s(bytes),
            Bandwidth::Device(gb_s) => *gb_s,
        }
    }

    fn source(&self) -> BandwidthSource {
        match self {
            Bandwidth::Host(reader) => BandwidthSource::HostRead { threads: reader.threads() },
            Bandwidth::Device(_) => BandwidthSource::DeviceCopy,
        }
    }
}

/// GFLOP/s of the fastest matmul, and its name.
fn peak_matmul(
    backend: &mut dyn Backend,
    pools: &mut Pools,
    budget: Duration,
) -> Result<(f64, String), BenchError> {
    let mut best = (0.0, String::new());
    for case in table().into_iter().filter(|case| case.op == "mul_mat" && case.name.ends_with(PEAK_MATMULS)) {
        let timing = time_case(backend, &case, pools, budget).map_err(BenchError::Peak)?;
        let gflop_s = case.work.flops as f64 / (timing.best.as_secs_f64() * 1e9);
        if gflop_s > best.0 {
            best = (gflop_s, case.name);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_matmuls_for_the_peak() {
        assert!(table().iter().any(|case| case.op == "mul_mat" && case.name.ends_with(PEAK_MATMULS)));
    }

    #[test]
    fn a_failed_case_serializes_as_its_error() {
        let outcome = OpOutcome::Failed { error: "no kernel".to_owned() };
        let result = OpResult { name: "a/b".to_owned(), op: "a", dtype: "f32".to_owned(), outcome };
        let json = serde_json::to_value(result).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "name": "a/b", "op": "a", "dtype": "f32", "error": "no kernel" })
        );
    }
}
