//! Layer norm along rows.

use super::{RowKernel, Rows};
use crate::{
    kernel::Caps,
    kernels::{Elem, KernelError, Plan},
};

/// `(x - mean(x)) / √(var(x) + eps) · gamma + beta` along each row, where the variance is the mean of the squared
/// differences to the mean. `gamma` and `beta` are inputs 1 and 2, of a row's length and of the type `weights`.
///
/// # Errors
/// [`KernelError`] where a row is larger than a binding or the sizes overflow.
pub fn layer_norm(matrix: &Rows, eps: f32, weights: Elem, caps: &Caps) -> Result<Plan, KernelError> {
    let kernel = RowKernel {
        label: "layer_norm",
        body: include_str!("layer_norm.wgsl"),
        functions: "",
        group: &["group_sum"],
        shared: &[("gamma", weights), ("beta", weights)],
        params: &[("eps", eps.to_bits())],
        one_result: false,
    };
    kernel.plan(matrix, caps)
}
