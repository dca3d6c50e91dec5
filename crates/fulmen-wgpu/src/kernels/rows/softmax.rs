//! Softmax along rows.

use super::{RowKernel, Rows};
use crate::{
    kernel::Caps,
    kernels::{KernelError, Plan, elementwise::Helper},
};

/// `e^x / Σ e^x` along each row, with the row's maximum taken off first.
///
/// A row that is all -inf gives zeros. A row that holds a NaN or inf gives NaN.
///
/// # Errors
/// [`KernelError`] where a row is larger than a binding or the sizes overflow.
pub fn softmax(matrix: &Rows, caps: &Caps) -> Result<Plan, KernelError> {
    let kernel = RowKernel {
        label: "softmax",
        body: include_str!("softmax.wgsl"),
        functions: Helper::Exp.text(),
        group: &["group_sum", "group_max"],
        shared: &[],
        params: &[],
        one_result: false,
    };
    kernel.plan(matrix, caps)
}
