//! The second launch of a split-K matmul (`split_k_sum.wgsl`).

use super::prelude::{Extent, Job, Store};
use super::{Elem, MatmulError};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::preprocess::values;

/// Adds `slices` slices and applies the epilogue. Binds scratch, output and the epilogue's inputs.
pub(in crate::kernels) fn launch(job: &Job<'_>, slices: u32) -> Result<Launch, MatmulError> {
    let threads = job.caps.max_invocations.min(128);
    let width = job.n_width();
    let values = u64::from(job.shape.m) * u64::from(job.n() / width);
    let groups = values.div_ceil(threads.into());
    let workgroups = fold_grid(groups, job.caps.max_workgroups).ok_or(MatmulError::Grid)?;
    let count = u32::try_from(groups).map_err(|_| MatmulError::Grid)?;
    let prelude = job.prelude(&[("slices", Elem::F32.wgsl(width))], width, Store::Output);
    let (label, file) = (format!("matmul split_k_sum width={width}"), "matmul/split_k_sum.wgsl");
    let extent = Extent { count, span: 0, slices };
    Ok(job.launch(label, file, prelude, values![threads], workgroups, extent))
}
