//! Finds the fastest matmul kernel of a wgpu device for each shape.
//!
//! Every candidate runs on random values and is checked in f64; one whose result is wrong is never selected.
//! The device remembers the fastest; `GpuDevice::save_tuned` keeps it for later processes.

use std::time::{Duration, Instant};

use fulmen_core::DType;
use fulmen_wgpu::tune::{Outcome, TuneOptions, Tuning, kernel_for};
use fulmen_wgpu::{GpuDevice, GpuMatmulCache, MatmulCacheOptions};
use serde::Serialize;

use crate::BenchError;
use crate::matmul::{MatmulShape, Weight, input};
use crate::progress::{Progress, Steps};
use crate::timer::warm_up_time;

/// Which matmuls are tuned: every combination of types, shapes and rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuneRequest {
    /// Types of the weights.
    pub dtypes: Vec<DType>,
    /// Shapes of the weights, `(n, k)`.
    pub shapes: Vec<(usize, usize)>,
    /// Rows of the input.
    pub rows: Vec<usize>,
    /// Multiply weights by f32 activations instead of rounded (q8 or f16) ones.
    pub exact: bool,
    /// No matmul starts after this.
    pub time_limit: Duration,
}

impl Default for TuneRequest {
    /// Matmuls of real models.
    fn default() -> TuneRequest {
        TuneRequest {
            dtypes: vec![DType::F32, DType::F16, DType::Q4_K, DType::Q6_K],
            shapes: vec![(9728, 2560), (2560, 9728)],
            rows: vec![1, 2, 4, 8, 16, 32, 128, 512],
            exact: false,
            time_limit: Duration::from_secs(600),
        }
    }
}

impl TuneRequest {
    fn matmuls(&self) -> Vec<MatmulShape> {
        let mut all = Vec::new();
        for &dtype in &self.dtypes {
            for &(n, k) in &self.shapes {
                all.extend(self.rows.iter().map(|&m| MatmulShape { dtype, m, k, n }));
            }
        }
        all
    }
}

/// What happened to a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CandidateOutcome {
    /// Its result was right, and it was timed.
    Right,
    /// Its first run was so slow that it was not run again.
    Slow,
    /// Its result was wrong.
    Wrong,
    /// The device or the shape does not fit it.
    Refused,
}

/// A kernel that was tried. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The kernel.
    pub kernel: String,
    /// What happened.
    pub outcome: CandidateOutcome,
    /// Its time in microseconds: the median, or the only run of a slow one.
    pub us: Option<f64>,
}

/// A matmul and its candidates. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TunedMatmul {
    /// The matmul.
    #[serde(flatten)]
    pub shape: MatmulShape,
    /// The time of the kernel that the built-in table selects.
    pub table_us: Option<f64>,
    /// The time of the fastest kernel.
    pub best_us: Option<f64>,
    /// The fastest kernel; `None` if no result was right.
    pub best: Option<String>,
    /// Every kernel that was tried.
    pub candidates: Vec<Candidate>,
}

impl TunedMatmul {
    fn new(shape: MatmulShape, tuning: Tuning) -> TunedMatmul {
        let (table_us, best) = (tuning.micros(0), tuning.best);
        let best_us = best.and_then(|best| tuning.micros(best));
        let candidate = |kernel: String, outcome: &Outcome| {
            let (outcome, us) = match outcome {
                Outcome::Right(us) => (CandidateOutcome::Right, Some(*us)),
                Outcome::Slow(us) => (CandidateOutcome::Slow, Some(*us)),
                Outcome::Wrong => (CandidateOutcome::Wrong, None),
                Outcome::Refused(_) => (CandidateOutcome::Refused, None),
            };
            Candidate { kernel, outcome, us }
        };
        let candidates: Vec<Candidate> =
            tuning.candidates.into_iter().map(|one| candidate(one.kernel, &one.outcome)).collect();
        let best = best.and_then(|best| candidates.get(best)).map(|best| best.kernel.clone());
        TunedMatmul { shape, table_us, best_us, best, candidates }
    }

    /// How many candidates had this outcome.
    pub fn count(&self, outcome: CandidateOutcome) -> usize {
        self.candidates.iter().filter(|candidate| candidate.outcome == outcome).count()
    }
}

/// The kernel that a device uses for a matmul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedKernel {
    /// The matmul.
    pub shape: MatmulShape,
    /// The kernel; `None` if there is none for this type.
    pub kernel: Option<String>,
    /// It was measured on this device; otherwise the built-in table selects it.
    pub tuned: bool,
}

/// The kernels that a device uses for matmuls, without measuring anything.
///
/// # Errors
/// [`BenchError::InvalidOption`] for a size of 2^32 or more.
pub fn selected_kernels(gpu: &GpuDevice, request: &TuneRequest) -> Result<Vec<SelectedKernel>, BenchError> {
    let size = |size: usize| {
        u32::try_from(size).map_err(|_| BenchError::InvalidOption(format!("{size} is too large")))
    };
    let selected = |shape: MatmulShape| {
        let weight = (size(shape.n)?, size(shape.k)?);
        let taken = kernel_for(gpu, shape.dtype, size(shape.m)?, weight, request.exact);
        let tuned = taken.as_ref().is_some_and(|taken| taken.measured);
        Ok(SelectedKernel { shape, kernel: taken.map(|taken| taken.kernel), tuned })
    };
    request.matmuls().into_iter().map(selected).collect()
}

/// Measures every kernel for every matmul of the request. The device uses the fastest ones from then on; they
/// are not written to disk.
///
/// # Errors
/// [`BenchError::InvalidOption`] for a shape or type that cannot be, and what wgpu reports. Candidates that
/// are wrong or cannot run are not an error.
pub fn tune_matmuls(
    gpu: &GpuDevice,
    request: &TuneRequest,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<TunedMatmul>, BenchError> {
    let matmuls = request.matmuls();
    for shape in &matmuls {
        shape.validate(gpu, request.exact)?;
    }
    let mut steps = Steps::new(matmuls.len(), progress);
    let start = Instant::now();
    let mut tuned = Vec::new();
    // The matmuls by one weight stand together.
    for by_weight in matmuls.chunks(request.rows.len().max(1)) {
        let Some(&MatmulShape { dtype, n, k, .. }) = by_weight.first() else { break };
        let options = MatmulCacheOptions { exact_activations: request.exact, ..Default::default() };
        let mut cache = GpuMatmulCache::with_options(gpu.clone(), options);
        let weight = Weight::upload(&mut cache, dtype, n, k)?;
        for &shape in by_weight {
            if start.elapsed() > request.time_limit {
                return Ok(tuned);
            }
            steps.start(&shape.to_string());
            let options = TuneOptions { warm_up: warm_up_time(gpu), ..TuneOptions::default() };
            let input = input(shape.m, k);
            let mut is_right = |got: &[f32]| weight.check(&input, got, shape.m).is_ok();
            let tuning = cache.tune(&weight.name, &input, shape.m, options, &mut is_right)?;
            tuned.push(TunedMatmul::new(shape, tuning));
            steps.finish(1);
        }
    }
    Ok(tuned)
}
