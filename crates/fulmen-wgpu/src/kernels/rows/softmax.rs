//! Softmax along rows.

use super::{RowKernel, Rows};
use crate::{
    kernel::Caps,
    kernels::{KernelError, LaunchList, workgroup::WorkgroupOp},
};

/// `e^x / Σ e^x` along each row, with the row's maximum taken off first.
///
/// A row that is all -inf gives zeros. A row that holds a NaN or inf gives NaN.
///
/// # Errors
/// [`KernelError`] where a row is larger than a binding or the sizes overflow.
pub fn softmax(matrix: &Rows, caps: &Caps) -> Result<LaunchList, KernelError> {
    let kernel = RowKernel {
        label: "softmax",
        body: "softmax",
        reductions: &[WorkgroupOp::Sum, WorkgroupOp::Max],
        shared: &[],
        eps: None,
        sign: "",
        one_result: false,
    };
    kernel.launch_list(matrix, caps)
}
