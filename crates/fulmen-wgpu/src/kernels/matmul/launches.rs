//! From a shape to the launches of a matmul.

use std::ops::Range;

use super::choose::{choose, choose_pair};
use super::gemm_coop::{CoopSource, f16_source};
use super::prelude::{EpilogueMode, Job};
use super::{CoopTile, EpilogueSource, Layout, MatmulConfig, MatmulShape, convert_f16, split_k_sum};
use crate::kernel::{Caps, Launch};

/// A buffer that a launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatmulBuffer {
    /// A.
    A,
    /// B; the second of a pair is number 1.
    B(u8),
    /// The output.
    Out,
    /// An input of the epilogue.
    Extra(u32),
    /// Scratch, as an index into [`MatmulLaunches::scratch`].
    Scratch(u32),
}

/// What a launch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulStage {
    /// Quantizes A to q8 activations, into scratch 0. They serve every matmul of the same A.
    QuantizeActivations,
    /// Converts A to f16 with a scale per row, into scratch.
    ConvertToF16,
    /// Dequantizes rows of the weight into scratch.
    Dequantize,
    /// Multiplies.
    Multiply,
    /// Adds the slices of a split-K matmul.
    SplitKSum,
}

/// A launch and the buffers that it binds, in the order of its bindings.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulLaunch {
    /// What it does.
    pub stage: MatmulStage,
    /// The launch.
    pub launch: Launch,
    /// What it binds.
    pub buffers: Vec<MatmulBuffer>,
}

/// The launches of a matmul, in order. Each needs the results of those before it.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulLaunches {
    /// The launches.
    pub launches: Vec<MatmulLaunch>,
    /// Bytes of each scratch buffer.
    pub scratch: Vec<u64>,
}

/// Why a matmul cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatmulError {
    /// A side is zero.
    #[error("the matmul {shape} has a side of length 0")]
    Empty {
        /// The shape.
        shape: MatmulShape,
    },
    /// The columns are not some of the matmul's, or B cannot be bound in part.
    #[error("columns {columns:?} of the matmul {shape} cannot be computed alone")]
    Columns {
        /// The shape.
        shape: MatmulShape,
        /// The columns.
        columns: Range<u32>,
    },
    /// A matrix is larger than a binding may be.
    #[error("{what} of the matmul {shape} has {bytes} bytes; the device binds at most {max}")]
    Binding {
        /// The matrix.
        what: &'static str,
        /// The shape.
        shape: MatmulShape,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the largest binding.
        max: u64,
    },
    /// The epilogue has more inputs than can be bound.
    #[error("a matmul with {inputs} epilogue inputs binds {bindings} buffers; the device allows {max}")]
    Inputs {
        /// Inputs of the epilogue.
        inputs: usize,
        /// Buffers in all.
        bindings: usize,
        /// Buffers that the device binds.
        max: u32,
    },
    /// The kernel does not fit the shape or the device.
    #[error("the kernel `{config}` cannot be used: {why}")]
    Unfit {
        /// The kernel.
        config: String,
        /// The reason.
        why: &'static str,
    },
    /// No kernel fits the device.
    #[error("the device's workgroups are too small for any matmul kernel")]
    NoKernel,
    /// The launch has too many workgroups.
    #[error("the matmul needs more workgroups than a launch may have")]
    Grid,
}

/// The launches of a matmul, by the kernel that [`choose`] names.
///
/// # Errors
/// Where the shape is empty or the device too small for it.
pub fn launches(
    shape: MatmulShape,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, MatmulError> {
    column_launches(shape, 0..shape.n, epilogue, caps)
}

/// As [`launches`], for a range of the output's columns: B is bound to its rows of that range, everything
/// else whole.
///
/// # Errors
/// As [`launches`]; and where B is `[k, n]` and the range is not all columns.
pub fn column_launches(
    shape: MatmulShape,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, MatmulError> {
    let part = MatmulShape { n: columns.end.saturating_sub(columns.start), ..shape };
    filled(part)?;
    let config = choose(part, caps).ok_or(MatmulError::NoKernel)?;
    launches_with(config, shape, columns, epilogue, caps)
}

fn filled(shape: MatmulShape) -> Result<(), MatmulError> {
    if shape.m == 0 || shape.k == 0 || shape.n == 0 { Err(MatmulError::Empty { shape }) } else { Ok(()) }
}

/// As [`column_launches`], by the kernel that the caller names.
///
/// # Errors
/// As [`column_launches`]; and where the kernel does not fit the shape or the device.
pub fn launches_with(
    config: MatmulConfig,
    shape: MatmulShape,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, MatmulError> {
    build(config, &Job { shape, columns, epilogue: EpilogueMode::Single(epilogue), caps })
}

/// The launches of two matmuls with the same A and shape, and an epilogue over `v0` and `v1`, by the kernel
/// that [`choose_pair`] names.
///
/// # Errors
/// As [`launches`].
pub fn pair_launches(
    shape: MatmulShape,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, MatmulError> {
    filled(shape)?;
    let config = choose_pair(shape, caps).ok_or(MatmulError::NoKernel)?;
    pair_launches_with(config, shape, epilogue, caps)
}

/// As [`pair_launches`], by the kernel that the caller names. [`MatmulConfig::GemvNk`] and
/// [`MatmulConfig::TiledPair`] compute both in one launch; with the others the first result goes to scratch,
/// and the epilogue of the second matmul reads it.
///
/// # Errors
/// As [`launches_with`].
pub fn pair_launches_with(
    config: MatmulConfig,
    shape: MatmulShape,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<MatmulLaunches, MatmulError> {
    let columns = 0..shape.n;
    if let MatmulConfig::GemvNk(_) | MatmulConfig::TiledPair(_) = config {
        return build(config, &Job { shape, columns, epilogue: EpilogueMode::Pair(epilogue), caps });
    }
    let none = EpilogueSource::none();
    let first = Job { shape, columns: columns.clone(), epilogue: EpilogueMode::Single(&none), caps };
    let second = Job { shape, columns, epilogue: EpilogueMode::SecondOfPair(epilogue), caps };
    let MatmulLaunches { launches: mut all, mut scratch } = build(config, &first)?;
    let MatmulLaunches { launches: second, scratch: second_scratch } = build(config, &second)?;
    // The slices of one matmul are added before the other's are written: they share scratch.
    let held = scratch.len().max(second_scratch.len()) as u32;
    scratch = if scratch.is_empty() { second_scratch } else { scratch };
    scratch.push(u64::from(shape.m) * u64::from(shape.n) * 4);
    for buffer in all.iter_mut().flat_map(|launch| &mut launch.buffers) {
        *buffer = if *buffer == MatmulBuffer::Out { MatmulBuffer::Scratch(held) } else { *buffer };
    }
    let extras = epilogue.inputs.len() as u32;
    for mut launch in second {
        for buffer in &mut launch.buffers {
            *buffer = match *buffer {
                MatmulBuffer::B(_) => MatmulBuffer::B(1),
                MatmulBuffer::Extra(i) if i == extras => MatmulBuffer::Scratch(held),
                buffer => buffer,
            };
        }
        all.push(launch);
    }
    Ok(MatmulLaunches { launches: all, scratch })
}

/// The ranges of columns into which a matmul is split so that each part of B can be bound. For `[n, k]` a
/// part is whole rows, starting where a binding may start.
///
/// # Errors
/// Where B is `[k, n]` and too large, or one row of B is.
pub fn split_columns(shape: MatmulShape, caps: &Caps) -> Result<Vec<Range<u32>>, MatmulError> {
    let row = u64::from(shape.k) * shape.elem.bytes();
    let bytes = row * u64::from(shape.n);
    let too_large = MatmulError::Binding { what: "B", shape, bytes, max: caps.max_binding };
    if bytes <= caps.max_binding {
        return Ok(std::iter::once(0..shape.n).collect());
    }
    // Rows after which an offset is aligned again; and four, so that stores stay vectors.
    let alignment = u64::from(caps.binding_alignment.max(1));
    let step = (alignment / gcd(alignment, row)).next_multiple_of(4);
    let rows = caps.max_binding / row / step * step;
    if shape.b == Layout::Kn || rows == 0 {
        return Err(too_large);
    }
    // Fewer than `n`, which is a u32.
    let rows = rows as u32;
    Ok((0..shape.n).step_by(rows as usize).map(|from| from..shape.n.min(from.saturating_add(rows))).collect())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn build(config: MatmulConfig, job: &Job<'_>) -> Result<MatmulLaunches, MatmulError> {
    check(job)?;
    let k = job.shape.k;
    if let MatmulConfig::Coop(coop) = config {
        return coop_launches(coop, job, &f16_source(job)?);
    }
    let (launch, slices) = match (config, job.shape.b) {
        (MatmulConfig::GemvNk(c), Layout::Nk) => (c.launch(job)?, 1),
        (MatmulConfig::GemvKn(c), Layout::Kn) => (c.launch(job)?, c.used_slices(k)),
        (MatmulConfig::TiledPair(_), _) if job.matmuls() == 1 => {
            return Err(MatmulError::Unfit { config: config.to_string(), why: "it computes pairs" });
        }
        (MatmulConfig::Tiled(c) | MatmulConfig::TiledPair(c), _) => (c.launch(job)?, c.used_slices(k)),
        _ => return Err(MatmulError::Unfit { config: config.to_string(), why: "B has the other layout" }),
    };
    let mut extras: Vec<_> =
        (0..job.epilogue.source().inputs.len() as u32).map(MatmulBuffer::Extra).collect();
    if let EpilogueMode::SecondOfPair(_) = job.epilogue {
        extras.push(MatmulBuffer::Extra(extras.len() as u32));
    }
    let mut buffers = vec![MatmulBuffer::A, MatmulBuffer::B(0)];
    if let EpilogueMode::Pair(_) = job.epilogue {
        buffers.push(MatmulBuffer::B(1));
    }
    if slices == 1 {
        buffers.push(MatmulBuffer::Out);
        buffers.extend(extras);
        return Ok(MatmulLaunches {
            launches: vec![MatmulLaunch { stage: MatmulStage::Multiply, launch, buffers }],
            scratch: Vec::new(),
        });
    }
    buffers.push(MatmulBuffer::Scratch(0));
    let scratch = u64::from(slices * job.matmuls()) * u64::from(job.shape.m) * u64::from(job.n()) * 4;
    bound(job, "the scratch", scratch)?;
    let mut second = vec![MatmulBuffer::Scratch(0), MatmulBuffer::Out];
    second.extend(extras);
    let sum = MatmulLaunch {
        stage: MatmulStage::SplitKSum,
        launch: split_k_sum::launch(job, slices)?,
        buffers: second,
    };
    Ok(MatmulLaunches {
        launches: vec![MatmulLaunch { stage: MatmulStage::Multiply, launch, buffers }, sum],
        scratch: vec![scratch],
    })
}

/// A is converted to f16, cooperative matrices multiply, split-K slices are added.
pub(in crate::kernels) fn coop_launches(
    coop: CoopTile,
    job: &Job<'_>,
    source: &CoopSource,
) -> Result<MatmulLaunches, MatmulError> {
    let MatmulShape { m, k, .. } = job.shape;
    if !matches!(job.epilogue, EpilogueMode::Single(_)) {
        return Err(MatmulError::Unfit { config: coop.to_string(), why: "it computes no pairs" });
    }
    let launch = coop.launch(job, source)?;
    let f16_bytes = convert_f16::bytes(m, k);
    f16_bytes.iter().try_for_each(|&bytes| bound(job, "A as f16", bytes))?;
    let rows = [MatmulBuffer::Scratch(0), MatmulBuffer::Scratch(1)];
    let first = MatmulLaunch {
        stage: MatmulStage::ConvertToF16,
        launch: convert_f16::launch(m, k, job.caps)?,
        buffers: vec![MatmulBuffer::A, rows[0], rows[1]],
    };
    let extras = (0..job.epilogue.source().inputs.len() as u32).map(MatmulBuffer::Extra);
    let slices = coop.used_slices(k);
    let mut buffers = vec![rows[0], MatmulBuffer::B(0), rows[1]];
    if slices == 1 {
        buffers.push(MatmulBuffer::Out);
        buffers.extend(extras);
        return Ok(MatmulLaunches {
            launches: vec![first, MatmulLaunch { stage: MatmulStage::Multiply, launch, buffers }],
            scratch: f16_bytes.to_vec(),
        });
    }
    let sums = u64::from(slices) * u64::from(m) * u64::from(job.n()) * 4;
    bound(job, "the scratch", sums)?;
    buffers.push(MatmulBuffer::Scratch(2));
    let second = [MatmulBuffer::Scratch(2), MatmulBuffer::Out].into_iter().chain(extras).collect();
    let sum = MatmulLaunch {
        stage: MatmulStage::SplitKSum,
        launch: split_k_sum::launch(job, slices)?,
        buffers: second,
    };
    let scratch = vec![f16_bytes[0], f16_bytes[1], sums];
    Ok(MatmulLaunches {
        launches: vec![first, MatmulLaunch { stage: MatmulStage::Multiply, launch, buffers }, sum],
        scratch,
    })
}

fn check(job: &Job<'_>) -> Result<(), MatmulError> {
    let (shape, columns) = (job.shape, job.columns.clone());
    let MatmulShape { m, k, n, .. } = shape;
    filled(shape)?;
    let part = columns != (0..n);
    if columns.is_empty() || columns.end > n || (part && shape.b == Layout::Kn) {
        return Err(MatmulError::Columns { shape, columns });
    }
    let (m, k, n, rows) = (u64::from(m), u64::from(k), u64::from(n), u64::from(job.n()));
    let area =
        |a: u64, b: u64, each: u64| a.checked_mul(b).and_then(|n| n.checked_mul(each)).unwrap_or(u64::MAX);
    bound(job, "A", area(m, k, 4))?;
    bound(job, "B", area(k, rows, shape.elem.bytes()))?;
    bound(job, "the output", area(m, n, 4))?;
    check_bindings(job)
}

/// Refuses an epilogue with more inputs than the device binds beside A, the weights and the output.
pub(in crate::kernels) fn check_bindings(job: &Job<'_>) -> Result<(), MatmulError> {
    let inputs = job.epilogue.source().inputs.len();
    let bindings = inputs + if let EpilogueMode::Single(_) = job.epilogue { 3 } else { 4 };
    if bindings > job.caps.max_storage_buffers as usize {
        return Err(MatmulError::Inputs { inputs, bindings, max: job.caps.max_storage_buffers });
    }
    Ok(())
}

/// Refuses what is larger than a binding.
pub(in crate::kernels) fn bound(job: &Job<'_>, what: &'static str, bytes: u64) -> Result<(), MatmulError> {
    let max = job.caps.max_binding;
    if bytes > max {
        return Err(MatmulError::Binding { what, shape: job.shape, bytes, max });
    }
    Ok(())
}
