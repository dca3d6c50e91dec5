//! From a weight and a number of rows to the launches of a matmul.

use std::ops::Range;

use super::choose::choose;
use super::format::Format;
use super::gemm_int8::Int8Tile;
use super::gemv::{Activations, QuantGemv};
use super::{QuantWeight, dequantize, quantize_q8};
use crate::kernel::Caps;
use crate::kernels::matmul::gemm_coop::CoopSource;
use crate::kernels::matmul::launches::{bound, check_bindings};
use crate::kernels::matmul::prelude::{EpilogueMode, Job};
use crate::kernels::matmul::{
    self, CoopTile, EpilogueSource, Layout, MatmulConfig, MatmulShape, split_k_sum,
};
use crate::kernels::matmul::{MatmulBuffer, MatmulError, MatmulLaunch, MatmulLaunches, MatmulStage};
use crate::kernels::preprocess::values;

/// Why a matmul with a quantized weight cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// There are no kernels for the format.
    #[error("there is no kernel for the weight {weight}: not Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4")]
    Format {
        /// The weight.
        weight: QuantWeight,
    },
    /// A side is zero, or rows are not whole blocks.
    #[error("the weight {weight} has a side of length 0 or rows that are not whole blocks")]
    Sides {
        /// The weight.
        weight: QuantWeight,
    },
    /// A slice of bytes is not as long as the weight.
    #[error("the weight {weight} takes {expected} bytes, not {got}")]
    Length {
        /// The weight.
        weight: QuantWeight,
        /// Bytes that it takes.
        expected: usize,
        /// Bytes that there are.
        got: usize,
    },
    /// The matmul cannot be launched.
    #[error(transparent)]
    Matmul(#[from] MatmulError),
}

/// A kernel and its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantMatmulConfig {
    /// GEMV or small-M GEMM.
    Gemv(QuantGemv),
    /// Tiled int8 GEMM from q8 activations.
    Int8(Int8Tile),
    /// Cooperative-matrix GEMM with A in f16; W is dequantized to f16 on the way.
    Coop(CoopTile),
    /// Rows of W are dequantized to f32 in scratch and multiplied by this kernel.
    Dequantize(MatmulConfig),
}

impl std::fmt::Display for QuantMatmulConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gemv(config) => config.fmt(f),
            Self::Int8(config) => config.fmt(f),
            Self::Coop(config) => config.fmt(f),
            Self::Dequantize(config) => write!(f, "dequantize, {config}"),
        }
    }
}

/// Bytes of f32 values that are dequantized at once: little scratch, much of which stays in a large device's
/// L2.
const CHUNK: u64 = 64 << 20;

/// Rows of W that are dequantized to f32 at once.
pub(super) fn chunk_rows(weight: QuantWeight, caps: &Caps) -> u32 {
    let rows = CHUNK.min(caps.max_binding) / (u64::from(weight.k) * 4);
    // At most 2²⁴; multiples of four keep stores whole vectors.
    (rows as u32 / 4 * 4).max(4)
}

/// The launches of a matmul with `m` rows of A, by the kernel that [`choose`] names for q8 activations.
///
/// # Errors
/// Where there are no kernels for the weight, or the device is too small.
pub fn launches(
    m: u32,
    weight: QuantWeight,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, QuantError> {
    column_launches(m, weight, 0..weight.n, epilogue, caps)
}

/// As [`launches`], for a range of the output's columns: W is bound to its rows of that range, everything
/// else whole.
///
/// # Errors
/// As [`launches`].
pub fn column_launches(
    m: u32,
    weight: QuantWeight,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, QuantError> {
    Format::of(weight)?;
    let part = QuantWeight { n: columns.end.saturating_sub(columns.start).max(1), ..weight };
    let config = choose(m, part, Activations::Q8, caps).ok_or(MatmulError::NoKernel)?;
    launches_with(config, m, weight, columns, epilogue, caps)
}

/// As [`column_launches`], by the kernel that the caller names.
///
/// # Errors
/// As [`column_launches`]; and where the kernel does not fit the shape or the device.
pub fn launches_with(
    config: QuantMatmulConfig,
    m: u32,
    weight: QuantWeight,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, QuantError> {
    let format = Format::of(weight)?;
    let shape = MatmulShape::f32(m, weight.k, weight.n, Layout::Nk);
    let job = Job { shape, columns, epilogue: EpilogueMode::Single(epilogue), caps };
    check(format, &job)?;
    let launches = match config {
        QuantMatmulConfig::Gemv(gemv) => gemv_launches(gemv, format, &job)?,
        QuantMatmulConfig::Int8(tile) => int8_launches(tile, format, &job)?,
        QuantMatmulConfig::Coop(tile) => matmul::coop_launches(tile, &job, &coop_source(format))?,
        QuantMatmulConfig::Dequantize(config) => dequantize_launches(config, format, weight, &job, epilogue)?,
    };
    Ok(launches)
}

fn gemv_launches(rows: QuantGemv, format: Format, job: &Job<'_>) -> Result<MatmulLaunches, MatmulError> {
    let MatmulShape { m, k, .. } = job.shape;
    let launch = rows.launch(format, job)?;
    let extras = (0..job.epilogue.source().inputs.len() as u32).map(MatmulBuffer::Extra);
    let multiply = |a: MatmulBuffer| {
        let buffers = [a, MatmulBuffer::B(0), MatmulBuffer::Out].into_iter().chain(extras).collect();
        MatmulLaunch { stage: MatmulStage::Multiply, launch, buffers }
    };
    if rows.activations == Activations::F32 {
        return Ok(MatmulLaunches { launches: vec![multiply(MatmulBuffer::A)], scratch: Vec::new() });
    }
    let q8_bytes = quantize_q8::q8_bytes(m, k);
    bound(job, "A as q8", q8_bytes)?;
    let first = quantize_launch(job)?;
    Ok(MatmulLaunches { launches: vec![first, multiply(MatmulBuffer::Scratch(0))], scratch: vec![q8_bytes] })
}

/// B of the cooperative-matrix GEMM: blocks, dequantized to f16 half a block at a time.
fn coop_source(format: Format) -> CoopSource {
    CoopSource {
        array: ("w", "vec4<u32>"),
        file: "qmatmul/coop_b_quantized.wgsl",
        values: values![format: format.name(), unpack: format.unpack()].into(),
        vectors_per_fetch: 4,
        raw_type: "Raw",
    }
}

fn quantize_launch(job: &Job<'_>) -> Result<MatmulLaunch, MatmulError> {
    let launch = quantize_q8::quantize_q8(job.shape.m, job.shape.k, job.caps)?;
    let buffers = vec![MatmulBuffer::A, MatmulBuffer::Scratch(0)];
    Ok(MatmulLaunch { stage: MatmulStage::QuantizeActivations, launch, buffers })
}

/// A is quantized, tiles are multiplied, split-K slices are added.
fn int8_launches(tiles: Int8Tile, format: Format, job: &Job<'_>) -> Result<MatmulLaunches, MatmulError> {
    let MatmulShape { m, k, .. } = job.shape;
    let launch = tiles.launch(format, job)?;
    let q8_bytes = quantize_q8::q8_bytes(m, k);
    bound(job, "A as q8", q8_bytes)?;
    let first = quantize_launch(job)?;
    let extras = (0..job.epilogue.source().inputs.len() as u32).map(MatmulBuffer::Extra);
    let slices = tiles.used_slices(k);
    if slices == 1 {
        let buffers = [MatmulBuffer::Scratch(0), MatmulBuffer::B(0), MatmulBuffer::Out]
            .into_iter()
            .chain(extras)
            .collect();
        return Ok(MatmulLaunches {
            launches: vec![first, MatmulLaunch { stage: MatmulStage::Multiply, launch, buffers }],
            scratch: vec![q8_bytes],
        });
    }
    let sums = u64::from(slices) * u64::from(m) * u64::from(job.n()) * 4;
    bound(job, "the scratch", sums)?;
    let multiply = MatmulLaunch {
        stage: MatmulStage::Multiply,
        launch,
        buffers: vec![MatmulBuffer::Scratch(0), MatmulBuffer::B(0), MatmulBuffer::Scratch(1)],
    };
    let buffers = [MatmulBuffer::Scratch(1), MatmulBuffer::Out].into_iter().chain(extras).collect();
    let launch = split_k_sum::launch(job, slices)?;
    let sum = MatmulLaunch { stage: MatmulStage::SplitKSum, launch, buffers };
    Ok(MatmulLaunches { launches: vec![first, multiply, sum], scratch: vec![q8_bytes, sums] })
}

fn dequantize_launches(
    config: MatmulConfig,
    format: Format,
    weight: QuantWeight,
    job: &Job<'_>,
    epilogue: &EpilogueSource,
) -> Result<MatmulLaunches, MatmulError> {
    let (start, end) = (job.columns.start, job.columns.end);
    let rows = chunk_rows(weight, job.caps).min(end - start);
    let values = u64::from(rows) * u64::from(weight.k) * 4;
    bound(job, "rows of W as f32", values)?;
    let mut all = MatmulLaunches { launches: Vec::new(), scratch: vec![values] };
    for first in (start..end).step_by(rows as usize) {
        let columns = first..end.min(first.saturating_add(rows));
        let launch = dequantize::launch(format, weight, first - start..columns.end - start, job.caps)?;
        let buffers = vec![MatmulBuffer::B(0), MatmulBuffer::Scratch(0)];
        all.launches.push(MatmulLaunch { stage: MatmulStage::Dequantize, launch, buffers });
        let MatmulLaunches { launches, scratch } =
            matmul::launches_with(config, job.shape, columns, epilogue, job.caps)?;
        for mut launch in launches {
            for buffer in &mut launch.buffers {
                *buffer = match *buffer {
                    MatmulBuffer::B(_) => MatmulBuffer::Scratch(0),
                    MatmulBuffer::Scratch(i) => MatmulBuffer::Scratch(i + 1),
                    buffer => buffer,
                };
            }
            all.launches.push(launch);
        }
        // The chunks use one scratch, one after the other.
        for (i, bytes) in scratch.into_iter().enumerate() {
            match all.scratch.get_mut(i + 1) {
                Some(held) => *held = bytes.max(*held),
                None => all.scratch.push(bytes),
            }
        }
    }
    Ok(all)
}

/// The ranges of columns into which a matmul is split so that each part of W can be bound, starting where a
/// binding may start.
///
/// # Errors
/// Where there are no kernels for the weight, or a few rows of it are larger than a binding.
pub fn split_columns(weight: QuantWeight, caps: &Caps) -> Result<Vec<Range<u32>>, QuantError> {
    let row = weight.packed_row_bytes()?;
    let bytes = weight.packed_bytes()?;
    if bytes <= caps.max_binding {
        return Ok(std::iter::once(0..weight.n).collect());
    }
    // Rows are multiples of 16 bytes: after this many of them an offset is aligned again. And four: whole
    // vectors.
    let step = u64::from(caps.binding_alignment / 16).max(4);
    let rows = caps.max_binding / row / step * step;
    if rows == 0 {
        let shape = MatmulShape::f32(1, weight.k, weight.n, Layout::Nk);
        return Err(MatmulError::Binding { what: "W", shape, bytes, max: caps.max_binding }.into());
    }
    // Fewer than `n`, which is a u32.
    let rows = rows as u32;
    let starts = (0..weight.n).step_by(rows as usize);
    Ok(starts.map(|from| from..weight.n.min(from.saturating_add(rows))).collect())
}

fn check(format: Format, job: &Job<'_>) -> Result<(), MatmulError> {
    let (shape, columns) = (job.shape, job.columns.clone());
    if shape.m == 0 {
        return Err(MatmulError::Empty { shape });
    }
    if columns.is_empty() || columns.end > shape.n {
        return Err(MatmulError::Columns { shape, columns });
    }
    let (m, k, n) = (u64::from(shape.m), u64::from(shape.k), u64::from(shape.n));
    let area = |a: u64, b: u64| a.saturating_mul(b).saturating_mul(4);
    bound(job, "A", area(m, k))?;
    bound(job, "W", u64::from(job.n()) * format.row_bytes(shape.k))?;
    bound(job, "the output", area(m, n))?;
    check_bindings(job)
}
