//! The GPU table: every operation of the command batch, and the matmuls of the matmul cache, against f64.
//!
//! The rows of [`table()`](crate::table()) are graphs, which any backend runs; these are what only the wgpu
//! backend has. They are run, reported and seeded in the same way. A row records its operation, runs it,
//! reads the result, compares it with the reference, and runs it again: a replay must give the same bits.

mod cached;
mod elementwise;
mod matmul;
mod reduce;
mod rows;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use fulmen_core::DType;
use fulmen_wgpu::{BufferId, GpuCommandBatch, GpuDevice, GpuError, kernels::Elem};

use crate::case::{Size, Tolerance};
use crate::check::{Failure, Outcome};
use crate::compare::{Agreement, Mismatch, compare_floats};
use crate::reference::Values;
use crate::report::{Filter, Report, Row};
use crate::sample::{RowKey, Sample};

/// One row.
pub struct GpuCase {
    /// Its name: operation, type and shape.
    pub name: String,
    /// The operation, by the name of its method.
    pub op: &'static str,
    /// The type of its elements or weights.
    pub dtype: DType,
    /// How long it takes.
    pub size: Size,
    run: Box<Run>,
}

/// What a row does on a device with the data of a generator.
type Run = dyn Fn(&GpuDevice, &mut fastrand::Rng) -> Result<Agreement, Failure>;

impl std::fmt::Debug for GpuCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuCase").field("name", &self.name).finish_non_exhaustive()
    }
}

impl GpuCase {
    fn new(
        op: &'static str,
        dtype: DType,
        shape: impl AsRef<str>,
        run: impl Fn(&GpuDevice, &mut fastrand::Rng) -> Result<Agreement, Failure> + 'static,
    ) -> GpuCase {
        let name = format!("{op}/{}/{}", dtype.name().to_lowercase(), shape.as_ref());
        GpuCase { name, op, dtype, size: Size::Quick, run: Box::new(run) }
    }

    pub(crate) fn key(&self) -> RowKey<'_> {
        RowKey { op: self.op, dtype: self.dtype, name: &self.name, size: self.size }
    }

    fn large(self) -> GpuCase {
        GpuCase { size: Size::Large, ..self }
    }

    fn large_if(self, large: bool) -> GpuCase {
        if large { self.large() } else { self }
    }

    /// Runs the row with the data of a seed.
    pub fn check(&self, gpu: &GpuDevice, seed: u64) -> Outcome {
        let mut hasher = DefaultHasher::new();
        (seed, &self.name).hash(&mut hasher);
        match (self.run)(gpu, &mut fastrand::Rng::with_seed(hasher.finish())) {
            Ok(agreement) => Outcome::Passed(agreement),
            Err(Failure::Gpu(GpuError::Unsupported { call, what })) => {
                Outcome::Unsupported(format!("{call}: this device has no {what}"))
            }
            Err(failure) => Outcome::Failed(failure),
        }
    }
}

/// Every row.
pub fn gpu_table() -> Vec<GpuCase> {
    let families = [elementwise::cases(), reduce::cases(), rows::cases(), matmul::cases(), cached::cases()];
    families.into_iter().flatten().collect()
}

/// The names of the operations, in the order of the table.
pub fn gpu_ops() -> Vec<&'static str> {
    let mut ops: Vec<&'static str> = Vec::new();
    for case in gpu_table() {
        if !ops.contains(&case.op) {
            ops.push(case.op);
        }
    }
    ops
}

/// Runs the rows that the filter takes; `progress` is called with each row when it is done.
pub fn run_gpu_table(gpu: &GpuDevice, filter: &Filter, seed: u64, progress: impl FnMut(&Row)) -> Report {
    run(gpu, filter, &Sample::Full, seed, progress)
}

/// Runs a sample of the rows that the filter takes.
pub fn run_gpu_sample(gpu: &GpuDevice, filter: &Filter, sample: &Sample, seed: u64) -> Report {
    run(gpu, filter, sample, seed, |_| {})
}

fn run(
    gpu: &GpuDevice,
    filter: &Filter,
    sample: &Sample,
    seed: u64,
    mut progress: impl FnMut(&Row),
) -> Report {
    let table = gpu_table();
    let keys: Vec<RowKey<'_>> = table.iter().map(GpuCase::key).collect();
    let selected = sample.select(&keys, filter);
    let mut rows = Vec::new();
    for (case, _) in table.iter().zip(&selected).filter(|(_, run)| **run) {
        let start = Instant::now();
        let outcome = case.check(gpu, seed);
        let &GpuCase { ref name, op, dtype, .. } = case;
        let row = Row { name: name.clone(), op, dtype, outcome, elapsed: start.elapsed() };
        progress(&row);
        rows.push(row);
    }
    let skipped = table.iter().filter(|case| filter.takes_gpu(case)).count().saturating_sub(rows.len());
    let unsupported_weights = Vec::new();
    Report { backend: "wgpu", unsupported_weights, seed, rows, sample: sample.clone(), skipped }
}

/// The type of stored elements as a type of the table.
fn dtype(elem: Elem) -> DType {
    match elem {
        Elem::F32 => DType::F32,
        Elem::F16 => DType::F16,
    }
}

/// Number of elements after which values repeat: not a multiple of any vector, row or workgroup.
const PERIOD: usize = 1_000_003;

/// Uniform values between `low` and `high`.
fn draw(random: &mut fastrand::Rng, len: usize, low: f32, high: f32) -> Vec<f32> {
    let mut values: Vec<f32> = (0..len.min(PERIOD)).map(|_| low + (high - low) * random.f32()).collect();
    while values.len() < len {
        let more = (len - values.len()).min(PERIOD);
        values.extend_from_within(..more);
    }
    values
}

/// The values rounded to f16.
fn to_f16_and_back(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect()
}

/// Records an operation on uploaded inputs, runs it twice, and checks the result.
fn run_batch(
    gpu: &GpuDevice,
    inputs: &[(&[f32], Elem)],
    record: impl Fn(&mut GpuCommandBatch, &[BufferId]) -> Result<BufferId, GpuError>,
    judge: impl FnOnce(&[f32]) -> Result<Agreement, Mismatch>,
) -> Result<Agreement, Failure> {
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let ids: Vec<BufferId> = inputs.iter().map(|(data, elem)| batch.upload_as(data, *elem)).collect();
    let out = record(&mut batch, &ids)?;
    batch.execute_blocking()?;
    let got = batch.read_blocking(out)?;
    let expected = batch.len_of(out).unwrap_or(0);
    if got.len() as u64 != expected {
        return Err(Failure::Length { expected, got: got.len() as u64 });
    }
    let agreement =
        judge(&got).map_err(|mismatch| Failure::Wrong { tensor: "the result".to_owned(), mismatch })?;
    let again = batch.execute_and_read_blocking(&[out])?.pop().unwrap_or_default();
    let differs = |(index, (a, b)): (usize, (&f32, &f32))| (a.to_bits() != b.to_bits()).then_some(index);
    if let Some(index) = got.iter().zip(&again).enumerate().find_map(differs) {
        return Err(Failure::Unrepeatable { tensor: "the result".to_owned(), byte: 4 * index });
    }
    Ok(agreement)
}

/// Compares with the bound on the whole tensor, as rows of the graph table.
fn within(got: &[f32], expected: Vec<f64>, tolerance: Tolerance) -> Result<Agreement, Mismatch> {
    compare_floats(got, &Values::plain(expected), tolerance)
}

/// Compares each element with its own bound, `relative` of its size; where `expected` is shorter it repeats.
/// Subnormal values may be flushed to zero, and values too large for f32 may be infinite.
fn relative(got: &[f32], expected: &[f64], relative: f64) -> Result<Agreement, Mismatch> {
    let tiny = f64::from(f32::MIN_POSITIVE);
    let mut worst = 0.0f64;
    for (index, &got) in got.iter().enumerate() {
        let (want, got) = (expected[index % expected.len()], f64::from(got));
        let flushed = if want.abs() <= 2.0 * tiny { 1.01 * tiny } else { 0.0 };
        let good = if want.is_nan() {
            got.is_nan()
        } else if want.abs() > f64::from(f32::MAX) * (1.0 + 1e-7) {
            got == want.signum() * f64::INFINITY || (got.abs() > 3.4e38 && want.is_finite())
        } else {
            (got - want).abs() <= relative * want.abs() + flushed
        };
        if !good {
            return Err(Mismatch { index, expected: want, got, nmse: f64::NAN });
        }
        if want.is_normal() && want.abs() > 2.0 * tiny && got.is_finite() {
            worst = worst.max((got - want).abs() / want.abs());
        }
    }
    Ok(Agreement { error: worst, allowed: relative })
}
