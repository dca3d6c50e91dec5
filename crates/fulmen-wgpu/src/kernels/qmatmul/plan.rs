//! From a weight and a number of rows to launches.

use std::ops::Range;

use super::choose::choose;
use super::format::Format;
use super::rows::{Rows, Values};
use super::tiled::CodeTiles;
use super::{QuantWeight, dequantize, quantize};
use crate::kernel::Caps;
use crate::kernels::matmul::coop::Source;
use crate::kernels::matmul::head::{Ending, Job};
use crate::kernels::matmul::{self, Coop, EpilogueSource, KernelChoice, Layout, MatmulShape, reduce};
use crate::kernels::matmul::{Plan, PlanError, Role, Step};

/// Why a product with a quantized weight cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// There are no kernels for the format.
    #[error("no kernel multiplies by the weight {weight}: not Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K")]
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
    /// The product cannot be launched.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A kernel and its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Few rows of A.
    Rows(Rows),
    /// Many rows of A, as codes.
    Tiles(CodeTiles),
    /// Many rows of A, in 16 bits, on matrix units; W is decoded into 16 bits on the way.
    Coop(Coop),
    /// Parts of W become f32 in scratch and are multiplied by this kernel.
    Dequantize(KernelChoice),
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rows(choice) => choice.fmt(f),
            Self::Tiles(choice) => choice.fmt(f),
            Self::Coop(choice) => choice.fmt(f),
            Self::Dequantize(choice) => write!(f, "dequantize, {choice}"),
        }
    }
}

/// Bytes of f32 values that are made at once: little scratch, much of which a large device's cache holds.
const PART: u64 = 64 << 20;

/// Rows of W that are made f32 at once.
pub(super) fn part_rows(weight: QuantWeight, caps: &Caps) -> u32 {
    let rows = PART.min(caps.max_binding) / (u64::from(weight.k) * 4);
    // At most 2²⁴; multiples of four keep stores whole vectors.
    (rows as u32 / 4 * 4).max(4)
}

/// The launches of a product with `m` rows of A, by the kernel that [`choose`] names for int8 values.
///
/// # Errors
/// Where there are no kernels for the weight, or the device is too small.
pub fn plan(m: u32, weight: QuantWeight, epilogue: &EpilogueSource, caps: &Caps) -> Result<Plan, QuantError> {
    plan_columns(m, weight, 0..weight.n, epilogue, caps)
}

/// As [`plan`], for a range of the output's columns: W is bound to its rows of that range, everything else
/// whole.
///
/// # Errors
/// As [`plan`].
pub fn plan_columns(
    m: u32,
    weight: QuantWeight,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<Plan, QuantError> {
    Format::of(weight)?;
    let part = QuantWeight { n: columns.end.saturating_sub(columns.start).max(1), ..weight };
    let choice = choose(m, part, Values::Int8, caps).ok_or(PlanError::NoKernel)?;
    plan_with(choice, m, weight, columns, epilogue, caps)
}

/// As [`plan_columns`], by the kernel that the caller names.
///
/// # Errors
/// As [`plan_columns`]; and where the kernel does not fit the shape or the device.
pub fn plan_with(
    choice: Choice,
    m: u32,
    weight: QuantWeight,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<Plan, QuantError> {
    let format = Format::of(weight)?;
    let shape = MatmulShape::f32(m, weight.k, weight.n, Layout::Nk);
    let job = Job { shape, columns, ending: Ending::Single(epilogue), caps };
    check(format, &job)?;
    let plan = match choice {
        Choice::Rows(rows) => few(rows, format, &job)?,
        Choice::Tiles(tiles) => by_codes(tiles, format, &job)?,
        Choice::Coop(coop) => matmul::by_units(coop, &job, &source(format))?,
        Choice::Dequantize(choice) => many(choice, format, weight, &job, epilogue)?,
    };
    Ok(plan)
}

fn few(rows: Rows, format: Format, job: &Job<'_>) -> Result<Plan, PlanError> {
    let MatmulShape { m, k, .. } = job.shape;
    let launch = rows.launch(format, job)?;
    let extras = (0..job.ending.epilogue().inputs.len() as u32).map(Role::Extra);
    let product = |a: Role| {
        let buffers = [a, Role::B(0), Role::Out].into_iter().chain(extras).collect();
        Step { launch, buffers }
    };
    if rows.values == Values::Float {
        return Ok(Plan { steps: vec![product(Role::A)], scratch: Vec::new() });
    }
    let codes = quantize::bytes(m, k);
    bound(job, "A as int8", codes)?;
    let first = Step { launch: quantize::launch(m, k, job.caps)?, buffers: vec![Role::A, Role::Scratch(0)] };
    Ok(Plan { steps: vec![first, product(Role::Scratch(0))], scratch: vec![codes] })
}

/// Tiles of W for matrix units: halves of items, each decoded into 16 bits.
fn source(format: Format) -> Source {
    let functions = format!(
        "{}
fn row_base(row: u32) -> u32 {{ return row * row_length(); }}
fn fetch_b(base: u32, k: u32) -> Raw {{ return fetch(base, min(k, params.k - 32u) / 32u); }}
fn decode_b(raw: Raw, k: u32, part: u32) -> vec4<f16> {{
    let item = decode(raw, min(k, params.k - 32u) / 32u);
    let half = (k / 16u) & 1u;
    let codes = select(item.lo, item.hi, half == 1u)[part];
    return vec4<f16>(fma(vec4<f32>({}(codes)), vec4<f32>(item.s[half]), vec4<f32>(item.o[half])));
}}
",
        format.text(),
        format.unpack()
    );
    Source { array: ("w", "vec4<u32>"), functions, per_unit: 4, raw: "Raw" }
}

/// A becomes codes, tiles are multiplied, slices of sums are added up.
fn by_codes(tiles: CodeTiles, format: Format, job: &Job<'_>) -> Result<Plan, PlanError> {
    let MatmulShape { m, k, .. } = job.shape;
    let launch = tiles.launch(format, job)?;
    let codes = quantize::bytes(m, k);
    bound(job, "A as int8", codes)?;
    let first = Step { launch: quantize::launch(m, k, job.caps)?, buffers: vec![Role::A, Role::Scratch(0)] };
    let extras = (0..job.ending.epilogue().inputs.len() as u32).map(Role::Extra);
    let slices = tiles.used_slices(k);
    if slices == 1 {
        let buffers = [Role::Scratch(0), Role::B(0), Role::Out].into_iter().chain(extras).collect();
        return Ok(Plan { steps: vec![first, Step { launch, buffers }], scratch: vec![codes] });
    }
    let sums = u64::from(slices) * u64::from(m) * u64::from(job.n()) * 4;
    bound(job, "the scratch", sums)?;
    let product = Step { launch, buffers: vec![Role::Scratch(0), Role::B(0), Role::Scratch(1)] };
    let buffers = [Role::Scratch(1), Role::Out].into_iter().chain(extras).collect();
    let sum = Step { launch: reduce::launch(job, slices)?, buffers };
    Ok(Plan { steps: vec![first, product, sum], scratch: vec![codes, sums] })
}

fn many(
    choice: KernelChoice,
    format: Format,
    weight: QuantWeight,
    job: &Job<'_>,
    epilogue: &EpilogueSource,
) -> Result<Plan, PlanError> {
    let (start, end) = (job.columns.start, job.columns.end);
    let rows = part_rows(weight, job.caps).min(end - start);
    let values = u64::from(rows) * u64::from(weight.k) * 4;
    bound(job, "rows of W as f32", values)?;
    let mut plan = Plan { steps: Vec::new(), scratch: vec![values] };
    for first in (start..end).step_by(rows as usize) {
        let columns = first..end.min(first.saturating_add(rows));
        let launch = dequantize::launch(format, weight, first - start..columns.end - start, job.caps)?;
        plan.steps.push(Step { launch, buffers: vec![Role::B(0), Role::Scratch(0)] });
        let Plan { steps, scratch } = matmul::plan_with(choice, job.shape, columns, epilogue, job.caps)?;
        for mut step in steps {
            for role in &mut step.buffers {
                *role = match *role {
                    Role::B(_) => Role::Scratch(0),
                    Role::Scratch(i) => Role::Scratch(i + 1),
                    role => role,
                };
            }
            plan.steps.push(step);
        }
        // The parts use one scratch, one after the other.
        for (i, bytes) in scratch.into_iter().enumerate() {
            match plan.scratch.get_mut(i + 1) {
                Some(held) => *held = bytes.max(*held),
                None => plan.scratch.push(bytes),
            }
        }
    }
    Ok(plan)
}

/// The ranges of columns into which a product is cut so that each part of W can be bound, starting where a
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
    // Rows are multiples of 16 bytes: after so many of them an offset is aligned again. And four: whole
    // vectors.
    let step = u64::from(caps.binding_alignment / 16).max(4);
    let rows = caps.max_binding / row / step * step;
    if rows == 0 {
        let shape = MatmulShape::f32(1, weight.k, weight.n, Layout::Nk);
        return Err(PlanError::Binding { what: "W", shape, bytes, max: caps.max_binding }.into());
    }
    // Fewer than `n`, which is a u32.
    let rows = rows as u32;
    let starts = (0..weight.n).step_by(rows as usize);
    Ok(starts.map(|from| from..weight.n.min(from.saturating_add(rows))).collect())
}

fn check(format: Format, job: &Job<'_>) -> Result<(), PlanError> {
    let (shape, columns) = (job.shape, job.columns.clone());
    if shape.m == 0 {
        return Err(PlanError::Empty { shape });
    }
    if columns.is_empty() || columns.end > shape.n {
        return Err(PlanError::Columns { shape, columns });
    }
    let (m, k, n) = (u64::from(shape.m), u64::from(shape.k), u64::from(shape.n));
    let area = |a: u64, b: u64| a.saturating_mul(b).saturating_mul(4);
    bound(job, "A", area(m, k))?;
    bound(job, "W", u64::from(job.n()) * format.row_bytes(shape.k))?;
    bound(job, "the output", area(m, n))?;
    let inputs = job.ending.epilogue().inputs.len();
    let bindings = inputs + 3;
    if bindings > job.caps.max_storage_buffers as usize {
        return Err(PlanError::Inputs { inputs, bindings, max: job.caps.max_storage_buffers });
    }
    Ok(())
}

fn bound(job: &Job<'_>, what: &'static str, bytes: u64) -> Result<(), PlanError> {
    let max = job.caps.max_binding;
    if bytes > max {
        return Err(PlanError::Binding { what, shape: job.shape, bytes, max });
    }
    Ok(())
}
