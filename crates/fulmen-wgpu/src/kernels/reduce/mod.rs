//! One value of a whole array: sum, maximum, minimum, dot product.
//!
//! A tree of two stages (more for huge arrays): each workgroup makes one value of a span, then one workgroup makes
//! one of those. No thread adds more than a few dozen values one after the other, so the rounding errors stay near
//! 1e-7 of the sum of magnitudes at any length, and the order is fixed, so the same array gives the same bits on one
//! device.
//!
//! The maximum and the minimum are NaN where an element is. Nothing at all has the sum and dot product 0, the maximum
//! -inf and the minimum inf.

use super::{
    Binding, Elem, KernelError, Plan, Role, Step,
    fill::fill,
    group::Group,
    plan::{alignment, kernel, padded, step, threads, window},
    storage::{Lanes, declare, enable},
    template::expand,
};
use crate::kernel::{Access, Caps, Kernel, StorageBinding};

/// What is made of an array.
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

    /// How many arrays it takes.
    pub const fn inputs(self) -> usize {
        if matches!(self, Self::Dot) { 2 } else { 1 }
    }

    /// What it is of no elements.
    pub const fn of_nothing(self) -> f32 {
        match self {
            Self::Sum | Self::Dot => 0.0,
            Self::Max => f32::NEG_INFINITY,
            Self::Min => f32::INFINITY,
        }
    }

    /// That which joins values that were reduced already.
    const fn of_results(self) -> Self {
        if matches!(self, Self::Dot) { Self::Sum } else { self }
    }
}

/// Whole vectors that a thread takes at most, one after the other.
const MOST_PER_THREAD: u64 = 64;
/// Workgroups of a first stage that are enough to fill a device.
const ENOUGH_GROUPS: u64 = 2048;
/// Vectors for each thread up to which one workgroup does the whole work.
const ALONE: u64 = 8;

/// Reduces `len` elements of input 0 (for [`Reduction::Dot`] also of input 1) to the one f32 element of output 0.
///
/// # Errors
/// [`KernelError::TooMany`] where the length cannot be.
pub fn reduce(op: Reduction, len: u64, elem: Elem, caps: &Caps) -> Result<Plan, KernelError> {
    if len > u64::MAX / 64 {
        return Err(KernelError::TooMany { op: op.name().to_owned(), what: "the number of elements" });
    }
    if len == 0 {
        return fill(1, op.of_nothing(), Elem::F32, caps);
    }
    let threads = threads(256, caps);
    let mut plan = Plan::default();
    let inputs: Vec<Role> = (0..op.inputs()).map(Role::Input).collect();
    let (mut op, mut inputs, mut len, mut elem) = (op, inputs, len, elem);
    loop {
        let per_group = vectors_per_group(len, threads);
        let ranges = ranges(len, per_group, elem, caps)?;
        let results: u64 = ranges.iter().map(|range| range.groups).sum();
        let role = match results {
            1 => Role::Output(0),
            _ => Role::Scratch(plan.scratch.len()),
        };
        let kernel = text(op, elem, threads, caps);
        let mut at = 0;
        for range in &ranges {
            plan.steps.push(range.step(&kernel, &inputs, elem, per_group, role, at, caps)?);
            at += range.groups;
        }
        if results == 1 {
            return Ok(plan);
        }
        plan.scratch.push(padded(results * 4));
        (op, inputs, len, elem) = (op.of_results(), vec![role], results, Elem::F32);
    }
}

fn vectors_per_group(len: u64, threads: u32) -> u64 {
    let (vectors, threads) = (len.div_ceil(4), u64::from(threads));
    if vectors <= threads * ALONE {
        return threads * ALONE;
    }
    threads * vectors.div_ceil(threads * ENOUGH_GROUPS).clamp(1, MOST_PER_THREAD)
}

/// A part of an array that fits a binding.
struct Range {
    start: u64,
    count: u64,
    groups: u64,
}

fn ranges(len: u64, per_group: u64, elem: Elem, caps: &Caps) -> Result<Vec<Range>, KernelError> {
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
        Range { start, count, groups: count.div_ceil(4).div_ceil(per_group) }
    };
    Ok((0..len.div_ceil(most)).map(|k| range(k * most)).collect())
}

impl Range {
    #[expect(clippy::too_many_arguments)]
    fn step(
        &self,
        kernel: &Kernel,
        inputs: &[Role],
        elem: Elem,
        per_group: u64,
        result: Role,
        at: u64,
        caps: &Caps,
    ) -> Result<Step, KernelError> {
        let mut bindings: Vec<Binding> =
            inputs.iter().map(|&role| window(role, self.start, self.count, elem.bytes(), caps).0).collect();
        let (binding, early) = window(result, at, self.groups, 4, caps);
        bindings.push(binding);
        // A binding has less than 2^32 elements.
        let params = [self.count / 4, self.count % 4, per_group, self.groups, early].map(|word| word as u32);
        step(kernel.clone(), params.to_vec(), self.groups, bindings, caps)
    }
}

fn text(op: Reduction, elem: Elem, threads: u32, caps: &Caps) -> Kernel {
    let form = elem.form(caps);
    let mut bindings = Vec::new();
    let mut buffers = declare(&mut bindings, "x", form, Lanes::Four, Access::Read);
    if op == Reduction::Dot {
        buffers += &declare(&mut bindings, "y", form, Lanes::Four, Access::Read);
    }
    bindings.push(StorageBinding::read_write("result", "f32"));
    buffers += "fn store_result(i: u32, v: f32) { result[i] = v; }\n";
    let (group, acc, functions, result) = match op {
        Reduction::Sum => ("group_sum", "EwF", "fn value(i: u32) -> EwF { return load_x(i); }\n", SUM),
        Reduction::Dot => {
            ("group_sum", "EwF", "fn value(i: u32) -> EwF { return load_x(i) * load_y(i); }\n", SUM)
        }
        Reduction::Max => {
            ("group_max_key", "EwU", "fn value(i: u32) -> EwU { return order_key(load_x(i)); }\n", MAX)
        }
        Reduction::Min => {
            ("group_max_key", "EwU", "fn value(i: u32) -> EwU { return order_key(-load_x(i)); }\n", MIN)
        }
    };
    let group = Group::new(&[group], threads, threads, caps);
    let join = match acc {
        "EwF" => "fn join(a: EwF, b: EwF) -> EwF { return a + b; }\n",
        _ => concat!(
            include_str!("../order_key.wgsl"),
            "fn join(a: EwU, b: EwU) -> EwU { return max(a, b); }\n"
        ),
    };
    let wgsl = expand(
        include_str!("reduce.wgsl"),
        &[
            ("enable", enable(&[form])),
            ("label", op.name()),
            ("aliases", Lanes::Four.aliases()),
            ("buffers", &buffers),
            ("functions", &[&group.functions, join, functions].concat()),
            ("arguments", group.arguments),
            ("begin", group.begin),
            ("acc", acc),
            ("result", result),
            ("threads", &threads.to_string()),
        ],
    );
    kernel(op.name(), wgsl, bindings, 5)
}

const SUM: &str = "group_sum(lanes_sum(join(join(a, b), join(c, d))))";
const MAX: &str = "of_order_key(group_max_key(lanes_max_key(join(join(a, b), join(c, d)))))";
const MIN: &str = "-of_order_key(group_max_key(lanes_max_key(join(join(a, b), join(c, d)))))";
