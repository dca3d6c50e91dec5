//! One value of each row.

use super::{RowKernel, Rows};
use crate::{
    kernel::Caps,
    kernels::{Elem, KernelError, Plan, fill::fill, reduce::Reduction, template::expand},
};

/// The sum, maximum or minimum of each row of input 0, as f32 in output 0. NaN and empty rows as in
/// [`reduce`](mod@crate::kernels::reduce).
///
/// # Errors
/// [`KernelError::Invalid`] for [`Reduction::Dot`] or an output that is not f32 of its own, and where a row is larger
/// than a binding or the sizes overflow.
pub fn row_reduce(op: Reduction, matrix: &Rows, caps: &Caps) -> Result<Plan, KernelError> {
    let invalid = |reason: &str| KernelError::Invalid { op: "row_reduce".into(), reason: reason.to_owned() };
    if matrix.output != Elem::F32 {
        return Err(invalid("the results are f32"));
    }
    if matrix.width == 0 {
        return fill(matrix.rows, op.of_nothing(), Elem::F32, caps);
    }
    let max = include_str!("row_max.wgsl");
    let (label, body, group) = match op {
        Reduction::Sum => ("row_sum", include_str!("row_sum.wgsl").to_owned(), "group_sum"),
        Reduction::Max => ("row_max", max.replace("{{sign}}", ""), "group_max_key"),
        Reduction::Min => ("row_min", max.replace("{{sign}}", "-"), "group_max_key"),
        Reduction::Dot => return Err(invalid("there is no dot product of a row with itself")),
    };
    let functions =
        if op == Reduction::Sum { String::new() } else { expand(include_str!("../order_key.wgsl"), &[]) };
    let kernel = RowKernel {
        label,
        body: &body,
        functions: &functions,
        group: &[group],
        shared: &[],
        params: &[],
        one_result: true,
    };
    kernel.plan(matrix, caps)
}
