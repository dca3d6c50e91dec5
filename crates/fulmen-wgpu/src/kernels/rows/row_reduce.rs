//! Row reductions: one result per row.

use super::{RowKernel, Rows};
use crate::{
    kernel::Caps,
    kernels::{Elem, KernelError, LaunchList, fill::fill, reduce::Reduction, workgroup::WorkgroupOp},
};

/// The sum, maximum or minimum of each row of input 0, as f32 in output 0. NaN and empty rows as in
/// [`reduce`](mod@crate::kernels::reduce).
///
/// # Errors
/// [`KernelError::Invalid`] for [`Reduction::Dot`] or an output that is not f32 of its own, and where a
/// row is larger than a binding or the sizes overflow.
pub fn row_reduce(op: Reduction, matrix: &Rows, caps: &Caps) -> Result<LaunchList, KernelError> {
    let invalid = |reason: &str| KernelError::Invalid { op: "row_reduce".into(), reason: reason.to_owned() };
    if matrix.output != Elem::F32 {
        return Err(invalid("the results are f32"));
    }
    if matrix.width == 0 {
        return fill(matrix.rows, op.of_empty(), Elem::F32, caps);
    }
    let (label, body, reduction, sign) = match op {
        Reduction::Sum => ("row_sum", "row_sum", WorkgroupOp::Sum, ""),
        Reduction::Max => ("row_max", "row_max", WorkgroupOp::MaxKey, ""),
        Reduction::Min => ("row_min", "row_max", WorkgroupOp::MaxKey, "-"),
        Reduction::Dot => return Err(invalid("there is no dot product of a row with itself")),
    };
    let kernel =
        RowKernel { label, body, reductions: &[reduction], shared: &[], eps: None, sign, one_result: true };
    kernel.launch_list(matrix, caps)
}
