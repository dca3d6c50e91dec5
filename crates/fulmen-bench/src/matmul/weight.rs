//! One matmul: its weight, its check and its times.

use std::time::{Duration, Instant};

use fulmen_core::{DType, quant};
use fulmen_wgpu::{GpuDevice, GpuError, GpuMatmulCache, wgpu};

use crate::BenchError;
use crate::data::{check_len, random_values, spread_indices};
use crate::timer::{median, micros, wait};

/// A weight on the device. Its rows repeat with a prime period, which divides no tile size, so that every
/// element of a result can be checked with few dot products.
pub(crate) struct Weight {
    pub(crate) name: String,
    k: usize,
    n: usize,
    dtype: DType,
    /// The rows of one period, dequantized.
    rows: Vec<f32>,
}

const PERIOD: usize = 61;

impl Weight {
    /// Uploads random values that keep results near 1.
    pub(crate) fn upload(
        cache: &mut GpuMatmulCache,
        dtype: DType,
        n: usize,
        k: usize,
    ) -> Result<Weight, BenchError> {
        let count = PERIOD.min(n);
        let values = random_values(60, count * k, (3.0 / k as f32).sqrt());
        let encoded = quant::quantize_to_vec(dtype, &values)?;
        let rows = quant::dequantize_to_vec(dtype, &encoded, count * k)?;
        let row = encoded.len() / count;
        let mut bytes = Vec::with_capacity(n * row);
        while bytes.len() < n * row {
            let more = encoded.len().min(n * row - bytes.len());
            bytes.extend_from_slice(&encoded[..more]);
        }
        let name = format!("{} {n}x{k}", dtype.name());
        cache.upload_weight_as(&name, dtype, &bytes, n, k)?;
        Ok(Weight { name, k, n, dtype, rows })
    }

    /// Checks every column of some rows of a result in f64. The tolerance of block-quantized weights covers
    /// activations rounded to 8 bits, that of f16 weights activations rounded to f16.
    pub(crate) fn check(&self, input: &[f32], got: &[f32], m: usize) -> Result<(), BenchError> {
        let (case, period) = (format!("{} m={m}", self.name), self.rows.len() / self.k);
        check_len(&case, got, m * self.n)?;
        let tolerance = match (self.dtype, self.dtype.block_len()) {
            (DType::F32 | DType::BF16, _) => 1e-5,
            (_, 1) => 2e-3,
            _ => 5e-2,
        };
        for row in spread_indices(m, 4) {
            let a = &input[row * self.k..][..self.k];
            let dot = |of: usize| -> (f64, f64) {
                let terms = a.iter().zip(&self.rows[of * self.k..][..self.k]);
                let terms = terms.map(|(&x, &w)| f64::from(x) * f64::from(w));
                let (sum, square) =
                    terms.fold((0.0, 0.0), |(sum, square), term| (sum + term, square + term * term));
                (sum, square.sqrt())
            };
            let expected: Vec<(f64, f64)> = (0..period).map(dot).collect();
            for col in 0..self.n {
                let ((expected, size), index) = (expected[col % period], row * self.n + col);
                let off = (f64::from(got[index]) - expected).abs();
                if off.is_nan() || off > tolerance * size {
                    return Err(BenchError::WrongResult { case, index, expected, got: got[index] });
                }
            }
        }
        Ok(())
    }
}

/// The times of a matmul in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// From an input on the host to the result on the host.
    pub(crate) wall_us: f64,
    /// The kernels alone; `None` if the device has no timestamps.
    pub(crate) gpu_us: Option<f64>,
}

/// An input for `m` rows.
pub(crate) fn input(m: usize, k: usize) -> Vec<f32> {
    random_values(61, m * k, 1.0)
}

/// An input of `m` rows for a weight.
pub(crate) struct Matmul<'a> {
    weight: &'a Weight,
    m: usize,
    input: Vec<f32>,
    output: Vec<f32>,
}

impl<'a> Matmul<'a> {
    pub(crate) fn new(weight: &'a Weight, m: usize) -> Matmul<'a> {
        let output = vec![f32::NAN; m * weight.n];
        Matmul { weight, m, input: input(m, weight.k), output }
    }

    pub(crate) fn weight(&self) -> &'a Weight {
        self.weight
    }

    fn multiply(&mut self, cache: &mut GpuMatmulCache) -> Result<(), GpuError> {
        cache.matmul_cached(&self.weight.name, &self.input, &mut self.output, self.m)
    }

    /// Checks the result of the kernels that the cache currently selects.
    pub(crate) fn check(&mut self, cache: &mut GpuMatmulCache) -> Result<(), BenchError> {
        self.output.fill(f32::NAN);
        self.multiply(cache)?;
        self.weight.check(&self.input, &self.output, self.m)
    }

    /// The median time from host to host, after warming the device up.
    pub(crate) fn wall_us(
        &mut self,
        cache: &mut GpuMatmulCache,
        repeat: usize,
        warm_up: Duration,
    ) -> Result<f64, BenchError> {
        let (start, mut runs) = (Instant::now(), 0);
        while runs < 3 || start.elapsed() < warm_up {
            self.multiply(cache)?;
            runs += 1;
        }
        let mut times = Vec::with_capacity(repeat);
        for _ in 0..repeat {
            let start = Instant::now();
            self.multiply(cache)?;
            times.push(micros(start));
        }
        Ok(median(&mut times))
    }

    /// The median time of the kernels on the device, after warming it up with them: host copies leave it
    /// idle. `None` if it has no timestamps.
    pub(crate) fn gpu_us(
        &self,
        cache: &mut GpuMatmulCache,
        repeat: usize,
        warm_up: Duration,
    ) -> Result<Option<f64>, BenchError> {
        let (start, mut times) = (Instant::now(), Vec::new());
        while times.len() < 2 * repeat || (start.elapsed() < warm_up && times.len() < 100_000) {
            match cache.time_us(&self.weight.name, self.m) {
                Ok(us) => times.push(us),
                Err(GpuError::Unsupported { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        let counted = times.len() - repeat;
        Ok(Some(median(&mut times[counted..])))
    }
}

/// The median time that wgpu alone takes to copy as many bytes to the device and back: the lower bound from
/// host to host.
pub(crate) fn round_trip(gpu: &GpuDevice, up: u64, down: u64, repeat: usize) -> Result<f64, GpuError> {
    let buffer = |size: u64, usage| {
        gpu.wgpu_device().create_buffer(&wgpu::BufferDescriptor {
            label: Some("raw"),
            size: size.next_multiple_of(4).max(4),
            usage,
            mapped_at_creation: false,
        })
    };
    let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let (to, result) = (buffer(up, storage), buffer(down, storage));
    let mapped = buffer(down, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let data = vec![1u8; up.next_multiple_of(4) as usize];
    let mut out = vec![0u8; mapped.size() as usize];
    let mut times = Vec::with_capacity(repeat + 3);
    for _ in 0..repeat + 3 {
        let start = Instant::now();
        gpu.wgpu_queue().write_buffer(&to, 0, &data);
        let mut encoder = gpu.wgpu_device().create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&result, 0, &mapped, 0, mapped.size());
        gpu.wgpu_queue().submit([encoder.finish()]);
        mapped.map_async(wgpu::MapMode::Read, .., |_| {});
        wait(gpu)?;
        match mapped.get_mapped_range(..) {
            Ok(view) => out.copy_from_slice(&view),
            Err(error) => {
                return Err(GpuError::Internal { call: "get_mapped_range", message: error.to_string() });
            }
        }
        mapped.unmap();
        times.push(micros(start));
        std::hint::black_box(&out);
    }
    Ok(median(&mut times[3..]))
}
