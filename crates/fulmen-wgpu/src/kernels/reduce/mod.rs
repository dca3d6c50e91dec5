//! Reductions of a whole array: sum, maximum, minimum, dot product.
//!
//! A tree of two stages (more for huge arrays): each workgroup reduces a span, then one workgroup
//! reduces the results. No thread adds more than a few dozen values sequentially, so rounding errors
//! stay near 1e-7 of the sum of magnitudes at any length. The order is fixed, so the same array gives
//! the same bits on one device.
//!
//! Maximum and minimum are NaN if an element is NaN. An empty array has sum and dot product 0, maximum
//! -inf and minimum inf.

use super::{
    Binding, Elem, KernelError, KernelLaunch, LaunchList, Role,
    fill::fill,
    launch_list::{alignment, kernel, kernel_launch, padded, threads, window},
    preprocess::{render, values},
    storage::{Form, Lanes, declare},
    workgroup::{WorkgroupOp, WorkgroupReduce},
};
use crate::kernel::{Access, Caps, Kernel, StorageBinding};

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The largest element.
    Max,
    /// The smallest element.
    Min,
    /// The sum of the products of two arrays' elements.
    Dot,
}

impl Reduction {
    /// Every one.
    pub const ALL: &'static [Self] = &[Self::Sum, Self::Max, Self::Min, Self::Dot];

    /// The name, that of the batch's method.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
            Self::Dot => "dot",
        }
    }

    /// The number of input arrays.
    pub const fn inputs(self) -> usize {
        if matches!(self, Self::Dot) { 2 } else { 1 }
    }

    /// The result for an empty array.
    pub const fn of_empty(self) -> f32 {
        match self {
            Self::Sum | Self::Dot => 0.0,
            Self::Max => f32::NEG_INFINITY,
            Self::Min => f32::INFINITY,
        }
    }

    /// The reduction that combines partial results.
    const fn of_partials(self) -> Self {
        if matches!(self, Self::Dot) { Self::Sum } else { self }
    }
}

/// The most vectors per thread.
const MOST_PER_THREAD: u64 = 64;
/// Workgroups that fill a device.
const ENOUGH_GROUPS: u64 = 2048;
/// Up to this many vectors per thread, one workgroup does all the work.
const SINGLE_GROUP: u64 = 8;

/// Reduces `len` elements of input 0 (for [`Reduction::Dot`] also of input 1) to the one f32 element of
/// output 0.
///
/// # Errors
/// [`KernelError::TooMany`] where the array is too long.
pub fn reduce(op: Reduction, len: u64, elem: Elem, caps: &Caps) -> Result<LaunchList, KernelError> {
    if len > u64::MAX / 64 {
        return Err(KernelError::TooMany { op: op.name().to_owned(), what: "the number of elements" });
    }
    if len == 0 {
        return fill(1, op.of_empty(), Elem::F32, caps);
    }
    let threads = threads(256, caps);
    let mut list = LaunchList::default();
    let inputs: Vec<Role> = (0..op.inputs()).map(Role::Input).collect();
    let (mut op, mut inputs, mut len, mut elem) = (op, inputs, len, elem);
    loop {
        let per_group = vectors_per_group(len, threads);
        let ranges = ranges(len, per_group, elem, caps)?;
        let results: u64 = ranges.iter().map(|range| range.groups).sum();
        let role = match results {
            1 => Role::Output(0),
            _ => Role::Scratch(list.scratch.len()),
        };
        let kernel = reduce_kernel(op, elem, threads, caps);
        let mut at = 0;
        for range in &ranges {
            list.launches.push(range.launch(&kernel, &inputs, elem, per_group, role, at, caps)?);
            at += range.groups;
        }
        if results == 1 {
            return Ok(list);
        }
        list.scratch.push(padded(results * 4));
        (op, inputs, len, elem) = (op.of_partials(), vec![role], results, Elem::F32);
    }
}

fn vectors_per_group(len: u64, threads: u32) -> u64 {
    let (vectors, threads) = (len.div_ceil(4), u64::from(threads));
    if vectors <= threads * SINGLE_GROUP {
        return threads * SINGLE_GROUP;
    }
    threads * vectors.div_ceil(threads * ENOUGH_GROUPS).clamp(1, MOST_PER_THREAD)
}

/// A part of an array that fits a binding.
struct BoundRange {
    start: u64,
    count: u64,
    groups: u64,
}

fn ranges(len: u64, per_group: u64, elem: Elem, caps: &Caps) -> Result<Vec<BoundRange>, KernelError> {
    let unit = alignment(caps) / 2;
    let most = if padded(len * elem.bytes()) <= caps.max_binding {
        len
    } else {
        caps.max_binding / elem.bytes() / unit * unit
    };
    if most == 0 {
        let (what, limit) = ("the smallest range", caps.max_binding);
        return Err(KernelError::TooLarge { op: "reduce".into(), what, bytes: unit * elem.bytes(), limit });
    }
    let range = |start| {
        let count = most.min(len - start);
        BoundRange { start, count, groups: count.div_ceil(4).div_ceil(per_group) }
    };
    Ok((0..len.div_ceil(most)).map(|k| range(k * most)).collect())
}

impl BoundRange {
    #[expect(clippy::too_many_arguments)]
    fn launch(
        &self,
        kernel: &Kernel,
        inputs: &[Role],
        elem: Elem,
        per_group: u64,
        result: Role,
        at: u64,
        caps: &Caps,
    ) -> Result<KernelLaunch, KernelError> {
        let mut bindings: Vec<Binding> =
            inputs.iter().map(|&role| window(role, self.start, self.count, elem.bytes(), caps).0).collect();
        let (binding, early) = window(result, at, self.groups, 4, caps);
        bindings.push(binding);
        // A binding has less than 2^32 elements.
        let params = [self.count / 4, self.count % 4, per_group, self.groups, early].map(|word| word as u32);
        kernel_launch(kernel.clone(), params.to_vec(), self.groups, bindings, caps)
    }
}

fn reduce_kernel(op: Reduction, elem: Elem, threads: u32, caps: &Caps) -> Kernel {
    let form = elem.form(caps);
    let mut bindings = Vec::new();
    let mut accessors = declare(&mut bindings, "x", form, Lanes::Four, Access::Read);
    if op == Reduction::Dot {
        accessors += &declare(&mut bindings, "y", form, Lanes::Four, Access::Read);
    }
    bindings.push(StorageBinding::read_write("result", "f32"));
    accessors += "fn store_result(i: u32, v: f32) { result[i] = v; }\n";
    let reduction = match op {
        Reduction::Sum | Reduction::Dot => WorkgroupOp::Sum,
        Reduction::Max | Reduction::Min => WorkgroupOp::MaxKey,
    };
    let mut values = WorkgroupReduce::new(&[reduction], threads, threads, caps).values().to_vec();
    values.extend(values![accessors, op: op.name(), f16: form == Form::F16, lanes: 4u32]);
    let wgsl = render("reduce/reduce.wgsl", &values);
    kernel(op.name(), wgsl, bindings, 5)
}
