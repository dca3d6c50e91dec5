//! Norms of rows whose columns are divided among ranks.

use super::{KernelError, LaunchList, Role, product, threads, values};
use crate::{kernel::Caps, kernels::bind::KernelBindings};

/// The means of the squares of each of `m` rows of two inputs of these `widths`.
///
/// Inputs 0 and 1 are the rows; output 0 is `[m, 2]`.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn mean_squares(m: u32, widths: [u32; 2], caps: &Caps) -> Result<LaunchList, KernelError> {
    const OP: &str = "mean_squares";
    let mut list = LaunchList::default();
    if m == 0 {
        return Ok(list);
    }
    let mut bind = KernelBindings::new(OP, caps);
    for (at, (name, width)) in ["a", "b"].into_iter().zip(widths).enumerate() {
        bind.read(name, Role::Input(at), "f32", product(OP, "an input", &[m.into(), width.into(), 4])?)?;
    }
    bind.write("means", Role::Output(0), "f32", product(OP, "the means", &[m.into(), 2, 4])?)?;
    let (threads, params) = (threads(128, caps), vec![m, widths[0], widths[1]]);
    bind.launch(&mut list, "rows/mean_squares.wgsl", &values![threads], params, 2 * u64::from(m))?;
    Ok(list)
}

/// The shape of [`rms_scale`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsScale {
    /// Rows.
    pub m: u32,
    /// Elements of a row.
    pub width: u32,
    /// Columns of the means.
    pub columns: u32,
    /// The one that has the means of the rows.
    pub column: u32,
    /// What the means are divided by.
    pub ranks: u32,
    /// Added to the mean.
    pub epsilon: f32,
    /// The output is the input.
    pub in_place: bool,
}

/// RMS norm of rows whose mean squares are given.
///
/// Input 0 is the rows (not bound in place), 1 the means, 2 the gain; output 0 is as input 0.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding.
pub fn rms_scale(spec: &RmsScale, caps: &Caps) -> Result<LaunchList, KernelError> {
    const OP: &str = "rms_scale";
    let RmsScale { m, width, columns, column, ranks, epsilon, in_place } = *spec;
    let mut list = LaunchList::default();
    let bytes = product(OP, "the input", &[m.into(), width.into(), 4])?;
    if bytes == 0 {
        return Ok(list);
    }
    let mut bind = KernelBindings::new(OP, caps);
    if !in_place {
        bind.read("x", Role::Input(0), "f32", bytes)?;
    }
    bind.read("means", Role::Input(1), "f32", product(OP, "the means", &[m.into(), columns.into(), 4])?)?;
    bind.read("gamma", Role::Input(2), "f32", u64::from(width) * 4)?;
    bind.write("y", Role::Output(0), "f32", bytes)?;
    let (threads, elements) = (threads(64, caps), bytes / 4);
    // A binding has less than 2^32 bytes.
    let params = vec![elements as u32, width, columns, column, ranks, epsilon.to_bits()];
    let groups = elements.div_ceil(threads.into());
    bind.launch(&mut list, "rows/rms_scale.wgsl", &values![threads, in_place], params, groups)?;
    Ok(list)
}
