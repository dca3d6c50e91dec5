//! Layer norm along rows.

use super::{RowKernel, Rows};
use crate::{
    kernel::Caps,
    kernels::{Elem, KernelError, LaunchList, workgroup::WorkgroupOp},
};

/// `(x - mean(x)) / √(var(x) + eps) · gamma + beta` along each row, where the variance is the mean of
/// the squared differences to the mean. `gamma` and `beta` are inputs 1 and 2, of a row's length and of
/// the type `weights`.
///
/// # Errors
/// [`KernelError`] where a row is larger than a binding or the sizes overflow.
pub fn layer_norm(matrix: &Rows, eps: f32, weights: Elem, caps: &Caps) -> Result<LaunchList, KernelError> {
    let kernel = RowKernel {
        label: "layer_norm",
        body: "layer_norm",
        reductions: &[WorkgroupOp::Sum],
        shared: &[("gamma", weights), ("beta", weights)],
        eps: Some(eps),
        sign: "",
        one_result: false,
    };
    kernel.launch_list(matrix, caps)
}
