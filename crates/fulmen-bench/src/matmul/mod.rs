//! Times matmuls by weights that stay on a wgpu device (`GpuMatmulCache`).
//!
//! Each matmul is checked in f64 before it is timed, and compared with the roofline of the device.

mod weight;

use std::fmt;
use std::time::Duration;

use fulmen_core::DType;
use fulmen_wgpu::tune::kernel_for;
use fulmen_wgpu::{GpuDevice, GpuMatmulCache, MatmulCacheOptions};
use serde::Serialize;

use weight::{Matmul, Times, round_trip};
pub(crate) use weight::{Weight, input};

use crate::ceilings::{Ceilings, Limit, MinimumWork, measure_ceilings};
use crate::progress::{Progress, Steps};
use crate::roofline::Point;
use crate::timer::warm_up_time;
use crate::{BenchError, dtype_name};

/// A matmul of `m` rows by a weight `[n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MatmulShape {
    /// The type of the weight.
    #[serde(serialize_with = "crate::serialize_dtype")]
    pub dtype: DType,
    /// Rows of the input.
    pub m: usize,
    /// Columns of the weight and of the input.
    pub k: usize,
    /// Rows of the weight, columns of the result.
    pub n: usize,
}

impl fmt::Display for MatmulShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatmulShape { dtype, m, k, n } = self;
        write!(f, "{} m={m} {n}x{k}", dtype_name(*dtype))
    }
}

impl MatmulShape {
    /// Floating-point operations.
    pub fn flops(&self) -> u64 {
        2 * self.m as u64 * self.k as u64 * self.n as u64
    }

    /// Bytes of the weight as it is stored, of the input and of the result.
    pub fn bytes(&self) -> u64 {
        let weight = self.n as u64 * self.k as u64 * self.dtype.block_bytes() as u64;
        weight / self.dtype.block_len() as u64 + 4 * self.m as u64 * (self.k as u64 + self.n as u64)
    }

    /// Fails if the weight cannot be stored in its type, or if the device has no kernel for it.
    pub(crate) fn validate(&self, gpu: &GpuDevice, exact: bool) -> Result<(), BenchError> {
        let (name, block) = (dtype_name(self.dtype), self.dtype.block_len());
        if !self.k.is_multiple_of(block) {
            let message = format!("k must be a multiple of {block} for {name}, and {} is not", self.k);
            return Err(BenchError::InvalidOption(message));
        }
        match self.kernel(gpu, exact)? {
            Some(_) => Ok(()),
            None => Err(BenchError::InvalidOption(format!("wgpu has no matmul kernel for {name} weights"))),
        }
    }

    /// The kernel that the device uses by default.
    fn kernel(&self, gpu: &GpuDevice, exact: bool) -> Result<Option<String>, BenchError> {
        let size = |size: usize| {
            u32::try_from(size).map_err(|_| BenchError::InvalidOption(format!("{size} is too large")))
        };
        let (m, n, k) = (size(self.m)?, size(self.n)?, size(self.k)?);
        Ok(kernel_for(gpu, self.dtype, m, (n, k), exact).map(|taken| taken.kernel))
    }
}

/// What is timed, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatmulOptions {
    /// The matmuls. Those by one weight stand together, so that it is uploaded once.
    pub shapes: Vec<MatmulShape>,
    /// Multiply block-quantized weights by f32 activations instead of quantized (q8) ones.
    pub exact: bool,
    /// Small buffers for the ceilings, and few runs, for software devices.
    pub quick: bool,
    /// Runs of each matmul; 30 by default, 3 with `quick`.
    pub repeat: Option<usize>,
}

impl MatmulOptions {
    /// The matmuls of real models; with `quick`, a few small ones.
    pub fn default_shapes(quick: bool) -> Vec<MatmulShape> {
        let shape = |dtype, m, k, n| MatmulShape { dtype, m, k, n };
        if quick {
            return vec![
                shape(DType::F32, 1, 256, 320),
                shape(DType::F32, 32, 256, 320),
                shape(DType::F16, 1, 256, 320),
                shape(DType::Q4_K, 1, 256, 320),
                shape(DType::Q4_K, 16, 256, 320),
            ];
        }
        let (k, n, head) = (2560, 9728, 151_936);
        let mut set = vec![
            shape(DType::F32, 4096, 4096, 4096),
            shape(DType::F32, 8192, 8192, 8192),
            shape(DType::F16, 4096, 4096, 4096),
            shape(DType::F16, 8192, 8192, 8192),
        ];
        set.extend([1, 8, 16, 32, 256, 1024].map(|m| shape(DType::F32, m, k, n)));
        set.extend([1, 32, 256].map(|m| shape(DType::F16, m, k, n)));
        set.extend([1, 4, 8, 16, 32, 128, 512].map(|m| shape(DType::Q4_K, m, k, n)));
        for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q5_K, DType::Q6_K] {
            set.push(shape(dtype, 1, k, n));
        }
        set.extend([1, 8].map(|m| shape(DType::Q4_K, m, k, head)));
        set.extend([DType::Q4_0, DType::Q6_K].map(|dtype| shape(dtype, 1, k, head)));
        set
    }
}

/// The times of one matmul. The serialized names are an interface: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatmulTimes {
    /// The matmul.
    #[serde(flatten)]
    pub shape: MatmulShape,
    /// The labels of its kernels.
    pub kernels: Vec<String>,
    /// They run on tensor cores (cooperative matrices).
    pub tensor_cores: bool,
    /// From an input on the host to the result on the host.
    pub wall_us: f64,
    /// Copying as many bytes to the device and back with wgpu alone.
    pub round_trip_us: f64,
    /// The kernels, by timestamps.
    pub gpu_us: Option<f64>,
    /// GFLOP/s of the kernels.
    pub gflop_s: Option<f64>,
    /// GB/s of the kernels.
    pub gb_s: Option<f64>,
    /// The least time that the roofline of the device allows.
    pub roofline_us: f64,
    /// Which ceiling of the roofline that is.
    pub limit: Limit,
    /// `roofline_us` divided by `gpu_us`.
    pub share: Option<f64>,
    /// Operations that must be done.
    pub flops: u64,
    /// Bytes that must be read or written.
    pub bytes: u64,
}

impl MatmulTimes {
    /// The shape, and whether tensor cores were used: `q4_k m=1 9728x2560`.
    pub fn name(&self) -> String {
        format!("{}{}", self.shape, if self.tensor_cores { " tensor cores" } else { "" })
    }

    /// Its point on a roofline chart; `None` if the device has no timestamps.
    pub fn point(&self) -> Option<Point> {
        let gflop_s = self.gflop_s?;
        Some(Point { name: self.name(), intensity: self.flops as f64 / self.bytes as f64, gflop_s })
    }
}

/// Everything that was measured. The serialized names are an interface: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatmulReport {
    /// The name of the device.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Few runs.
    pub quick: bool,
    /// Runs of each matmul.
    pub repeat: usize,
    /// Shapes that were tuned on this device.
    pub tuned_shapes: usize,
    /// What plain kernels reach.
    pub ceilings: Ceilings,
    /// The matmuls.
    pub matmuls: Vec<MatmulTimes>,
    /// Kernels that gave wrong results when they were tried.
    pub failures: Vec<String>,
}

/// Times matmuls on a device. A matmul that does not run on tensor cores by default is timed a second time
/// with the fastest kernel that does, if the device has them.
///
/// # Errors
/// [`BenchError::InvalidOption`] for a shape or type that cannot be, [`BenchError::WrongResult`] for a wrong
/// result of the default kernel, and what wgpu reports.
pub fn bench_matmul(
    gpu: &GpuDevice,
    options: &MatmulOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<MatmulReport, BenchError> {
    let shapes = &options.shapes;
    for shape in shapes {
        shape.validate(gpu, options.exact)?;
    }
    let repeat = options.repeat.unwrap_or(if options.quick { 3 } else { 30 });
    let mut steps = Steps::new(shapes.len() + 1, progress);
    steps.start("ceilings");
    let ceilings = measure_ceilings(gpu, options.quick, repeat)?;
    steps.finish(1);
    let mut bench =
        Bench { gpu, exact: options.exact, repeat, ceilings, matmuls: Vec::new(), failures: Vec::new() };
    let mut at = 0;
    while let Some(first) = shapes.get(at) {
        let same = |shape: &&MatmulShape| (shape.dtype, shape.k, shape.n) == (first.dtype, first.k, first.n);
        let rows: Vec<usize> = shapes[at..].iter().take_while(same).map(|shape| shape.m).collect();
        steps.start(&first.to_string());
        bench.weight(*first, &rows)?;
        at += rows.len();
        steps.finish(rows.len());
    }
    let info = gpu.info();
    Ok(MatmulReport {
        device: info.name.clone(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        quick: options.quick,
        repeat,
        tuned_shapes: gpu.tuned_matmuls(),
        ceilings,
        matmuls: bench.matmuls,
        failures: bench.failures,
    })
}

struct Bench<'a> {
    gpu: &'a GpuDevice,
    exact: bool,
    repeat: usize,
    ceilings: Ceilings,
    matmuls: Vec<MatmulTimes>,
    failures: Vec<String>,
}

impl Bench<'_> {
    /// All matmuls by one weight, which is freed afterwards.
    fn weight(&mut self, shape: MatmulShape, rows: &[usize]) -> Result<(), BenchError> {
        let options = MatmulCacheOptions { exact_activations: self.exact, ..Default::default() };
        let mut cache = GpuMatmulCache::with_options(self.gpu.clone(), options);
        let weight = Weight::upload(&mut cache, shape.dtype, shape.n, shape.k)?;
        for &m in rows {
            let shape = MatmulShape { m, ..shape };
            // A few runs of a long matmul, or of a large copy, are enough.
            let (up, down) = (4 * (m * shape.k) as u64, 4 * (m * shape.n) as u64);
            let long = shape.flops() > 100_000_000_000 || up + down > 64 << 20;
            let repeat = if long { self.repeat.min(5) } else { self.repeat };
            let round_trip_us = round_trip(self.gpu, up, down, repeat)?;
            let (mut matmul, warm_up) = (Matmul::new(&weight, m), warm_up_time(self.gpu));
            matmul.check(&mut cache)?;
            let wall_us = matmul.wall_us(&mut cache, repeat, warm_up)?;
            let times = Times { wall_us, gpu_us: matmul.gpu_us(&mut cache, repeat, warm_up)? };
            let candidates = cache.tensor_core_candidates(&weight.name, m)?;
            let tensor_cores =
                shape.kernel(self.gpu, self.exact)?.is_some_and(|name| candidates.contains(&name));
            self.add(&cache, &weight, shape, times, round_trip_us, tensor_cores)?;
            if !tensor_cores {
                self.on_tensor_cores(&mut cache, &mut matmul, shape, repeat, round_trip_us, candidates)?;
            }
        }
        Ok(())
    }

    /// Times the fastest of the kernels for tensor cores.
    fn on_tensor_cores(
        &mut self,
        cache: &mut GpuMatmulCache,
        matmul: &mut Matmul<'_>,
        shape: MatmulShape,
        repeat: usize,
        round_trip_us: f64,
        candidates: Vec<String>,
    ) -> Result<(), BenchError> {
        let (weight, m) = (matmul.weight(), shape.m);
        let name = &weight.name;
        let mut best: Option<(f64, String)> = None;
        for kernel in candidates {
            cache.set_kernel(name, m, Some(&kernel))?;
            // A kernel that is wrong is reported, and the others are still tried.
            match matmul.check(cache) {
                Err(error @ BenchError::WrongResult { .. }) => {
                    self.failures.push(format!("{kernel}: {error}"));
                    continue;
                }
                result => result?,
            }
            let us = match matmul.gpu_us(cache, 3, Duration::ZERO)? {
                Some(us) => us,
                None => matmul.wall_us(cache, 3, Duration::ZERO)?,
            };
            if best.as_ref().is_none_or(|(least, _)| us < *least) {
                best = Some((us, kernel));
            }
        }
        if let Some((_, kernel)) = best {
            cache.set_kernel(name, m, Some(&kernel))?;
            let warm_up = warm_up_time(self.gpu);
            let wall_us = matmul.wall_us(cache, repeat, warm_up)?;
            let times = Times { wall_us, gpu_us: matmul.gpu_us(cache, repeat, warm_up)? };
            self.add(cache, weight, shape, times, round_trip_us, true)?;
        }
        cache.set_kernel(name, m, None)?;
        Ok(())
    }

    fn add(
        &mut self,
        cache: &GpuMatmulCache,
        weight: &Weight,
        shape: MatmulShape,
        times: Times,
        round_trip_us: f64,
        tensor_cores: bool,
    ) -> Result<(), BenchError> {
        let (flops, bytes) = (shape.flops(), shape.bytes());
        let minimum = MinimumWork { bytes, mostly_read: true, flops };
        let (roofline_us, limit) = self.ceilings.roofline_us(&minimum);
        let gpu_us = times.gpu_us.filter(|&us| us > 0.0);
        let rate = |amount: u64| gpu_us.map(|us| amount as f64 / us / 1e3);
        self.matmuls.push(MatmulTimes {
            shape,
            kernels: cache.kernels(&weight.name, shape.m)?,
            tensor_cores,
            wall_us: times.wall_us,
            round_trip_us,
            gpu_us: times.gpu_us,
            gflop_s: rate(flops),
            gb_s: rate(bytes),
            roofline_us,
            limit,
            share: gpu_us.map(|us| roofline_us / us),
            flops,
            bytes,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_flops_of_a_matmul() {
        let shape = MatmulShape { dtype: DType::Q4_K, m: 2, k: 256, n: 3 };
        assert_eq!(shape.flops(), 2 * 2 * 256 * 3);
        assert_eq!(shape.bytes(), 3 * 144 + 4 * 2 * (256 + 3));
        assert_eq!(shape.to_string(), "q4_k m=2 3x256");
    }
}
