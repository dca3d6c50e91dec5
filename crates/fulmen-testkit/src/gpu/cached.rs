//! Matmuls with weights resident on the device: every type, various numbers of rows.

use fulmen_core::{DType, quant};
use fulmen_wgpu::{GpuDevice, GpuMatmulCache};

use super::{GpuCase, draw};
use crate::case::{Size, Tolerance};
use crate::check::Failure;
use crate::compare::{Agreement, compare_floats};
use crate::reference::Values;

const TYPES: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

/// Numbers of rows: one, few, around powers of two, many.
const ALL_ROWS: [usize; 11] = [1, 2, 3, 4, 5, 16, 17, 32, 65, 256, 1024];
const FEW_ROWS: [usize; 5] = [1, 3, 5, 16, 17];
const MODEL_ROWS: [usize; 4] = [1, 4, 32, 256];

/// Sides of a weight: odd, below a vector, below a tile, those of Qwen3-4B.
const SIDES: [usize; 9] = [1, 3, 4, 6, 64, 255, 256, 2560, 9728];
/// More rows of a weight than workgroups in a grid dimension; an LM head.
const TALL: [usize; 2] = [65_536, 151_936];

/// Distinct rows of a weight; they repeat, so that every element of a result can be checked with few dot
/// products.
const PERIOD: usize = 61;

/// Rows of the input whose results are checked.
const CHECKED_ROWS: usize = 12;

/// The tolerance for a type: activations may be quantized to q8 for quantized weights and rounded to f16 for
/// F16.
fn tolerance(dtype: DType) -> Tolerance {
    match (dtype, dtype.block_len()) {
        (DType::F32 | DType::BF16, _) => Tolerance::nmse(1e-11),
        (_, 1) => Tolerance::FLOAT_MATMUL,
        _ => Tolerance::QUANTIZED_MATMUL,
    }
}

/// A weight with `count` distinct rows: its bytes, and the values of those rows.
struct Weight {
    bytes: Vec<u8>,
    rows: Vec<f32>,
    count: usize,
}

impl Weight {
    fn draw(random: &mut fastrand::Rng, dtype: DType, n: usize, k: usize) -> Result<Weight, Failure> {
        let count = PERIOD.min(n);
        let encoded = quant::quantize_to_vec(dtype, &draw(random, count * k, -1.0, 1.0))?;
        let rows = quant::dequantize_to_vec(dtype, &encoded, count * k)?;
        let total = encoded.len() / count * n;
        let mut bytes = Vec::with_capacity(total);
        while bytes.len() < total {
            let more = encoded.len().min(total - bytes.len());
            bytes.extend_from_slice(&encoded[..more]);
        }
        Ok(Weight { bytes, rows, count })
    }

    /// The result of some rows of the input with all rows of the weight.
    fn reference(&self, input: &[f32], m: usize, n: usize, k: usize) -> Values {
        let (mut data, mut sizes) = (vec![0.0; m * n], vec![0.0; m * n]);
        let step = m.div_ceil(CHECKED_ROWS);
        let mut checked: Vec<usize> = (0..m).step_by(step).chain([m - 1]).collect();
        checked.dedup();
        let mut known = Vec::with_capacity(checked.len() * n);
        for row in checked {
            let a = &input[row * k..][..k];
            let dots: Vec<(f64, f64)> = (0..self.count)
                .map(|of| {
                    let terms = a.iter().zip(&self.rows[of * k..][..k]);
                    let terms = terms.map(|(&x, &w)| f64::from(x) * f64::from(w));
                    terms.fold((0.0, 0.0), |(sum, square), term| (sum + term, square + term * term))
                })
                .collect();
            for col in 0..n {
                let (sum, square) = dots[col % self.count];
                data[row * n + col] = sum;
                sizes[row * n + col] = f64::sqrt(square);
                known.push(row * n + col);
            }
        }
        Values { data, sizes: Some(sizes), known: Some(known) }
    }
}

/// All matmuls with one weight.
fn matmuls(
    gpu: &GpuDevice,
    random: &mut fastrand::Rng,
    (dtype, k, n): (DType, usize, usize),
    rows: &[usize],
) -> Result<Agreement, Failure> {
    let weight = Weight::draw(random, dtype, n, k)?;
    let mut cache = GpuMatmulCache::on(gpu.clone());
    cache.upload_weight_as("w", dtype, &weight.bytes, n, k)?;
    let mut closest = Agreement::default();
    for &m in rows {
        let input = draw(random, m * k, -1.0, 1.0);
        let (mut got, mut again) = (vec![f32::NAN; m * n], vec![f32::NAN; m * n]);
        cache.matmul_cached("w", &input, &mut got, m)?;
        let expected = weight.reference(&input, m, n, k);
        let tensor = format!("the result of {m} rows");
        let agreement = compare_floats(&got, &expected, tolerance(dtype))
            .map_err(|mismatch| Failure::Wrong { tensor: tensor.clone(), mismatch })?;
        if agreement.share() >= closest.share() {
            closest = agreement;
        }
        // Elements that were not checked must at least be finite, and a second call must give the same bits.
        cache.matmul_cached("w", &input, &mut again, m)?;
        let strange = |i: &usize| !got[*i].is_finite() || got[*i].to_bits() != again[*i].to_bits();
        if let Some(index) = (0..m * n).find(strange) {
            return Err(Failure::Unrepeatable { tensor, byte: 4 * index });
        }
    }
    Ok(closest)
}

fn case(dtype: DType, k: usize, n: usize, rows: &'static [usize], size: Size) -> GpuCase {
    let count = rows.len();
    let case = GpuCase::new("matmul_cached", dtype, format!("k{k}/n{n}/{count}m"), move |gpu, random| {
        matmuls(gpu, random, (dtype, k, n), rows)
    });
    GpuCase { size, ..case }
}

pub(super) fn cases() -> Vec<GpuCase> {
    let mut cases = Vec::new();
    for dtype in TYPES {
        let block = dtype.block_len();
        let (k, odd) = (if block == 1 { 64 } else { block }, if block == 1 { 255 } else { 3 * block });
        cases.push(case(dtype, k, 65, &FEW_ROWS, Size::Quick));
        cases.push(case(dtype, odd, 6, &FEW_ROWS, Size::Quick));
        cases.push(case(dtype, 2560, 9728, &MODEL_ROWS, Size::Large));
        for k in SIDES.into_iter().filter(|k| k.is_multiple_of(block)) {
            for n in SIDES {
                cases.push(case(dtype, k, n, &ALL_ROWS, Size::Full));
            }
        }
        for n in TALL {
            let k = block.max(64);
            cases.push(case(dtype, k, n, &FEW_ROWS, Size::Large));
            cases.push(case(dtype, 2560, n, &MODEL_ROWS, Size::Full));
        }
    }
    cases
}
