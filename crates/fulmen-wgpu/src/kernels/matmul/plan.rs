//! From a shape to launches.

use std::ops::Range;

use super::choose::{choose, choose_pair};
use super::coop::Source;
use super::head::{Ending, Job};
use super::{Coop, EpilogueSource, KernelChoice, Layout, MatmulShape, halve, reduce};
use crate::kernel::{Caps, Launch};

/// What a launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A.
    A,
    /// B; the second of a pair is number 1.
    B(u8),
    /// The output.
    Out,
    /// An input of the epilogue.
    Extra(u32),
    /// Scratch of the plan, as an index into [`Plan::scratch`].
    Scratch(u32),
}

/// A launch and the buffers that it binds, in the order of its bindings.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The launch.
    pub launch: Launch,
    /// What it binds.
    pub buffers: Vec<Role>,
}

/// The launches of a product, in order. Each needs the results of those before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The launches.
    pub steps: Vec<Step>,
    /// Bytes of each scratch buffer.
    pub scratch: Vec<u64>,
}

/// Why a product cannot be launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A side is zero.
    #[error("the matrix product {shape} has a side of length 0")]
    Empty {
        /// The shape.
        shape: MatmulShape,
    },
    /// The columns are not some of the product's, or B cannot be bound in part.
    #[error("columns {columns:?} of the matrix product {shape} cannot be computed alone")]
    Columns {
        /// The shape.
        shape: MatmulShape,
        /// The columns.
        columns: Range<u32>,
    },
    /// A matrix is larger than a binding may be.
    #[error("{what} of the matrix product {shape} has {bytes} bytes; the device binds {max}")]
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
    #[error(
        "a matrix product with {inputs} epilogue inputs binds {bindings} buffers; the device allows {max}"
    )]
    Inputs {
        /// Inputs of the epilogue.
        inputs: usize,
        /// Buffers in all.
        bindings: usize,
        /// Buffers that the device binds.
        max: u32,
    },
    /// The kernel does not fit the shape or the device.
    #[error("the kernel `{choice}` cannot be used: {why}")]
    Unfit {
        /// The kernel.
        choice: String,
        /// The reason.
        why: &'static str,
    },
    /// No kernel fits the device.
    #[error("the device's workgroups are too small for any matrix kernel")]
    NoKernel,
    /// The launch has too many workgroups.
    #[error("the matrix product needs more workgroups than a launch may have")]
    Grid,
}

/// The launches of a product, by the kernel that [`choose`] names.
///
/// # Errors
/// Where the shape is empty or the device too small for it.
pub fn plan(shape: MatmulShape, epilogue: &EpilogueSource, caps: &Caps) -> Result<Plan, PlanError> {
    plan_columns(shape, 0..shape.n, epilogue, caps)
}

/// As [`plan`], for a range of the output's columns: B is bound to its rows of that range, everything else whole.
///
/// # Errors
/// As [`plan`]; and where B is `[k, n]` and the range is not all columns.
pub fn plan_columns(
    shape: MatmulShape,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<Plan, PlanError> {
    let part = MatmulShape { n: columns.end.saturating_sub(columns.start), ..shape };
    filled(part)?;
    let choice = choose(part, caps).ok_or(PlanError::NoKernel)?;
    plan_with(choice, shape, columns, epilogue, caps)
}

fn filled(shape: MatmulShape) -> Result<(), PlanError> {
    if shape.m == 0 || shape.k == 0 || shape.n == 0 { Err(PlanError::Empty { shape }) } else { Ok(()) }
}

/// As [`plan_columns`], by the kernel that the caller names.
///
/// # Errors
/// As [`plan_columns`]; and where the kernel does not fit the shape or the device.
pub fn plan_with(
    choice: KernelChoice,
    shape: MatmulShape,
    columns: Range<u32>,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<Plan, PlanError> {
    build(choice, &Job { shape, columns, ending: Ending::Single(epilogue), caps })
}

/// The launches of two products with the same A and shape, and an epilogue over `v0` and `v1`, by the kernel that
/// [`choose_pair`] names.
///
/// # Errors
/// As [`plan`].
pub fn plan_pair(shape: MatmulShape, epilogue: &EpilogueSource, caps: &Caps) -> Result<Plan, PlanError> {
    filled(shape)?;
    let choice = choose_pair(shape, caps).ok_or(PlanError::NoKernel)?;
    plan_pair_with(choice, shape, epilogue, caps)
}

/// As [`plan_pair`], by the kernel that the caller names. [`KernelChoice::RowsNk`] and [`KernelChoice::TiledPair`]
/// compute both products in one launch; with the others the first product goes to scratch, and the second one's
/// epilogue reads it.
///
/// # Errors
/// As [`plan_with`].
pub fn plan_pair_with(
    choice: KernelChoice,
    shape: MatmulShape,
    epilogue: &EpilogueSource,
    caps: &Caps,
) -> Result<Plan, PlanError> {
    let columns = 0..shape.n;
    if let KernelChoice::RowsNk(_) | KernelChoice::TiledPair(_) = choice {
        return build(choice, &Job { shape, columns, ending: Ending::Pair(epilogue), caps });
    }
    let none = EpilogueSource::none();
    let first = Job { shape, columns: columns.clone(), ending: Ending::Single(&none), caps };
    let second = Job { shape, columns, ending: Ending::SecondOfPair(epilogue), caps };
    let Plan { mut steps, mut scratch } = build(choice, &first)?;
    let Plan { steps: second, scratch: its_scratch } = build(choice, &second)?;
    // The slices of one product are summed before the other's are written: they share scratch.
    let held = scratch.len().max(its_scratch.len()) as u32;
    scratch = if scratch.is_empty() { its_scratch } else { scratch };
    scratch.push(u64::from(shape.m) * u64::from(shape.n) * 4);
    for role in steps.iter_mut().flat_map(|step| &mut step.buffers) {
        *role = if *role == Role::Out { Role::Scratch(held) } else { *role };
    }
    let extras = epilogue.inputs.len() as u32;
    for mut step in second {
        for role in &mut step.buffers {
            *role = match *role {
                Role::B(_) => Role::B(1),
                Role::Extra(i) if i == extras => Role::Scratch(held),
                role => role,
            };
        }
        steps.push(step);
    }
    Ok(Plan { steps, scratch })
}

/// The ranges of columns into which a product is cut so that each part of B can be bound. For `[n, k]` a part is whole
/// rows, starting where a binding may start.
///
/// # Errors
/// Where B is `[k, n]` and too large, or one row of B is.
pub fn split_columns(shape: MatmulShape, caps: &Caps) -> Result<Vec<Range<u32>>, PlanError> {
    let row = u64::from(shape.k) * shape.elem.bytes();
    let bytes = row * u64::from(shape.n);
    let too_large = PlanError::Binding { what: "B", shape, bytes, max: caps.max_binding };
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

fn build(choice: KernelChoice, job: &Job<'_>) -> Result<Plan, PlanError> {
    check(job)?;
    let k = job.shape.k;
    if let KernelChoice::Coop(coop) = choice {
        return by_units(coop, job, &super::coop::plain(job)?);
    }
    let (launch, slices) = match (choice, job.shape.b) {
        (KernelChoice::RowsNk(c), Layout::Nk) => (c.launch(job)?, 1),
        (KernelChoice::RowsKn(c), Layout::Kn) => (c.launch(job)?, c.used_slices(k)),
        (KernelChoice::TiledPair(_), _) if job.products() == 1 => {
            return Err(PlanError::Unfit { choice: choice.to_string(), why: "it multiplies pairs" });
        }
        (KernelChoice::Tiled(c) | KernelChoice::TiledPair(c), _) => (c.launch(job)?, c.used_slices(k)),
        _ => return Err(PlanError::Unfit { choice: choice.to_string(), why: "B lies the other way" }),
    };
    let mut extras: Vec<_> = (0..job.ending.epilogue().inputs.len() as u32).map(Role::Extra).collect();
    if let Ending::SecondOfPair(_) = job.ending {
        extras.push(Role::Extra(extras.len() as u32));
    }
    let mut buffers = vec![Role::A, Role::B(0)];
    if let Ending::Pair(_) = job.ending {
        buffers.push(Role::B(1));
    }
    if slices == 1 {
        buffers.push(Role::Out);
        buffers.extend(extras);
        return Ok(Plan { steps: vec![Step { launch, buffers }], scratch: Vec::new() });
    }
    buffers.push(Role::Scratch(0));
    let scratch = u64::from(slices * job.products()) * u64::from(job.shape.m) * u64::from(job.n()) * 4;
    bound(job, "the scratch", scratch)?;
    let mut second = vec![Role::Scratch(0), Role::Out];
    second.extend(extras);
    let sum = Step { launch: reduce::launch(job, slices)?, buffers: second };
    Ok(Plan { steps: vec![Step { launch, buffers }, sum], scratch: vec![scratch] })
}

/// A becomes 16-bit floats, matrix units multiply, slices of sums are added up.
pub(in crate::kernels) fn by_units(coop: Coop, job: &Job<'_>, source: &Source) -> Result<Plan, PlanError> {
    let MatmulShape { m, k, .. } = job.shape;
    if !matches!(job.ending, Ending::Single(_)) {
        return Err(PlanError::Unfit { choice: coop.to_string(), why: "it multiplies no pairs" });
    }
    let launch = coop.launch(job, source)?;
    let halves = halve::bytes(m, k);
    halves.iter().try_for_each(|&bytes| bound(job, "A in 16 bits", bytes))?;
    let rows = [Role::Scratch(0), Role::Scratch(1)];
    let first = Step { launch: halve::launch(m, k, job.caps)?, buffers: vec![Role::A, rows[0], rows[1]] };
    let extras = (0..job.ending.epilogue().inputs.len() as u32).map(Role::Extra);
    let slices = coop.used_slices(k);
    let mut buffers = vec![rows[0], Role::B(0), rows[1]];
    if slices == 1 {
        buffers.push(Role::Out);
        buffers.extend(extras);
        return Ok(Plan { steps: vec![first, Step { launch, buffers }], scratch: halves.to_vec() });
    }
    let sums = u64::from(slices) * u64::from(m) * u64::from(job.n()) * 4;
    bound(job, "the scratch", sums)?;
    buffers.push(Role::Scratch(2));
    let second = [Role::Scratch(2), Role::Out].into_iter().chain(extras).collect();
    let sum = Step { launch: reduce::launch(job, slices)?, buffers: second };
    let scratch = vec![halves[0], halves[1], sums];
    Ok(Plan { steps: vec![first, Step { launch, buffers }, sum], scratch })
}

fn check(job: &Job<'_>) -> Result<(), PlanError> {
    let (shape, columns) = (job.shape, job.columns.clone());
    let MatmulShape { m, k, n, .. } = shape;
    filled(shape)?;
    let part = columns != (0..n);
    if columns.is_empty() || columns.end > n || (part && shape.b == Layout::Kn) {
        return Err(PlanError::Columns { shape, columns });
    }
    let (m, k, n, rows) = (u64::from(m), u64::from(k), u64::from(n), u64::from(job.n()));
    let area =
        |a: u64, b: u64, each: u64| a.checked_mul(b).and_then(|n| n.checked_mul(each)).unwrap_or(u64::MAX);
    bound(job, "A", area(m, k, 4))?;
    bound(job, "B", area(k, rows, shape.elem.bytes()))?;
    bound(job, "the output", area(m, n, 4))?;
    let inputs = job.ending.epilogue().inputs.len();
    let bindings = inputs + if let Ending::Single(_) = job.ending { 3 } else { 4 };
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
