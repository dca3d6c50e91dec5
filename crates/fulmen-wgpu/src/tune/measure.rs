//! Measuring the candidates of a matmul.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use crate::{error::GpuError, kernel::Kernel, matmul_cache::GpuMatmulCache};

/// How long measuring may take.
#[derive(Clone, Copy, Debug)]
pub struct TuneOptions {
    /// Runs of each candidate that count; the median of them is its time.
    pub runs: usize,
    /// The device is kept busy for this long first: one that was idle runs at a fraction of its clock.
    pub warm_up: Duration,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { runs: 11, warm_up: Duration::from_millis(200) }
    }
}

/// What came of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its result was right, and a run takes this many microseconds.
    Right(f64),
    /// Its result was wrong: it is never taken.
    Wrong,
    /// The device or the shape does not fit it.
    Refused(String),
    /// Its first run took this many microseconds, so much more than the best one's that it was not run again.
    Slow(f64),
}

/// A candidate and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The kernel, as the tables name it.
    pub kernel: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was measured for one matmul.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// Every candidate; the first is the one that the table names.
    pub candidates: Vec<Measured>,
    /// The number of the fastest one whose result was right; `None` if there is none.
    pub best: Option<usize>,
}

impl Tuning {
    /// The microseconds of a candidate, if it was right and timed.
    pub fn micros(&self, candidate: usize) -> Option<f64> {
        match self.candidates.get(candidate)?.outcome {
            Outcome::Right(us) => Some(us),
            _ => None,
        }
    }
}

/// A candidate whose first run takes this many times the best one's is not run again.
const TOO_SLOW: f64 = 4.0;

impl GpuMatmulCache {
    /// Measures every kernel that could multiply `m` rows by a weight, remembers the fastest whose result
    /// `is_right`, and uses it from now on; other caches and batches of this device do so too.
    /// [`GpuDevice::save_tuned`] keeps it for other processes.
    ///
    /// [`GpuDevice::save_tuned`]: crate::GpuDevice::save_tuned
    ///
    /// # Errors
    /// As [`matmul_cached`](Self::matmul_cached); candidates that cannot run are not an error.
    pub fn tune(
        &mut self,
        weight_name: &str,
        input: &[f32],
        m: usize,
        options: TuneOptions,
        is_right: &mut dyn FnMut(&[f32]) -> bool,
    ) -> Result<Tuning, GpuError> {
        let names = self.candidates(weight_name, m)?;
        self.compile_all(weight_name, m, &names)?;
        let info = self.weight(weight_name);
        let mut output = vec![0.0f32; info.map_or(0, |info| info.rows) * m];
        let (mut candidates, mut best): (Vec<Measured>, Option<(usize, f64)>) = (Vec::new(), None);
        for (number, kernel) in names.into_iter().enumerate() {
            self.set_kernel(weight_name, m, Some(&kernel))?;
            if number == 0 {
                self.keep_busy(weight_name, m, options.warm_up)?;
            }
            output.fill(f32::NAN);
            let outcome = match self.matmul_cached(weight_name, input, &mut output, m) {
                Err(error @ (GpuError::DeviceLost { .. } | GpuError::UnknownWeight { .. })) => {
                    self.set_kernel(weight_name, m, None)?;
                    return Err(error);
                }
                Err(error) => Outcome::Refused(error.to_string()),
                Ok(()) if !is_right(&output) => Outcome::Wrong,
                Ok(()) => self.time(weight_name, m, options.runs, best.map(|(_, us)| us))?,
            };
            if let Outcome::Right(us) = outcome
                && best.is_none_or(|(_, least)| us < least)
            {
                best = Some((number, us));
            }
            candidates.push(Measured { kernel, outcome });
        }
        self.set_kernel(weight_name, m, None)?;
        if let Some((number, us)) = best {
            self.remember(weight_name, m, &candidates[number].kernel, us)?;
        }
        Ok(Tuning { candidates, best: best.map(|(number, _)| number) })
    }

    /// The median time of a matmul with the kernel that is set.
    fn time(&mut self, name: &str, m: usize, runs: usize, best: Option<f64>) -> Result<Outcome, GpuError> {
        let once = self.once(name, m)?;
        if best.is_some_and(|best| once > TOO_SLOW * best) {
            return Ok(Outcome::Slow(once));
        }
        let mut times = Vec::with_capacity(runs);
        for _ in 0..runs.max(1) {
            times.push(self.once(name, m)?);
        }
        times.sort_by(f64::total_cmp);
        Ok(Outcome::Right(times[times.len() / 2]))
    }

    /// One run: by the device's clock, or by the host's where it has none.
    fn once(&mut self, name: &str, m: usize) -> Result<f64, GpuError> {
        match self.time_us(name, m) {
            Err(GpuError::Unsupported { .. }) => {
                let start = Instant::now();
                self.run_own(name, m)?;
                Ok(start.elapsed().as_secs_f64() * 1e6)
            }
            result => result,
        }
    }

    fn keep_busy(&mut self, name: &str, m: usize, time: Duration) -> Result<(), GpuError> {
        let start = Instant::now();
        while start.elapsed() < time {
            self.run_own(name, m)?;
        }
        Ok(())
    }

    /// Compiles the kernels of all candidates, on all processors: the driver takes longer for that than for
    /// running them.
    fn compile_all(&self, name: &str, m: usize, names: &[String]) -> Result<(), GpuError> {
        let kernels: Vec<Kernel> = names.iter().flat_map(|kernel| self.kernels_by(name, m, kernel)).collect();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(kernels.len().max(1));
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                // One that does not compile is refused when it is run.
                let _ = self.pipeline(kernel);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // A thread that the system refuses is done without.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        self.device().check_alive()
    }
}
