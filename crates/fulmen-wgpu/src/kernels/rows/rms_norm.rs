//! Root-mean-square norm along rows.

use super::{RowKernel, Rows};
use crate::{
    kernel::Caps,
    kernels::{Elem, KernelError, LaunchList, workgroup::WorkgroupOp},
};

/// `x / √(mean(x²) + eps) · gamma` along each row. `gamma` is input 1, of a row's length and of the
/// type `weights`.
///
/// # Errors
/// [`KernelError`] where a row is larger than a binding or the sizes overflow.
pub fn rms_norm(matrix: &Rows, eps: f32, weights: Elem, caps: &Caps) -> Result<LaunchList, KernelError> {
    let kernel = RowKernel {
        label: "rms_norm",
        body: "rms_norm",
        reductions: &[WorkgroupOp::Sum],
        shared: &[("gamma", weights)],
        eps: Some(eps),
        sign: "",
        one_result: false,
    };
    kernel.launch_list(matrix, caps)
}
