//! The second launch of a product whose k was split.

use super::head::{Job, Numbers, Store};
use super::text::fill;
use super::{Elem, PlanError};
use crate::kernel::{Launch, fold_grid};

const TEMPLATE: &str = include_str!("reduce.wgsl");

/// Adds up `slices` slices and applies the epilogue. Binds scratch, output and the epilogue's inputs.
pub(super) fn launch(job: &Job<'_>, slices: u32) -> Result<Launch, PlanError> {
    let threads = job.caps.max_invocations.min(128);
    let width = job.n_width();
    let values = u64::from(job.shape.m) * u64::from(job.n() / width);
    let groups = values.div_ceil(threads.into());
    let workgroups = fold_grid(groups, job.caps.max_workgroups).ok_or(PlanError::Grid)?;
    let count = u32::try_from(groups).map_err(|_| PlanError::Grid)?;
    let head = job.head(&[("slices", Elem::F32.wgsl(width))], width, Store::Output);
    let main = fill(
        TEMPLATE,
        &[
            ("threads", &threads.to_string()),
            ("width", &width.to_string()),
            ("put", if width == 4 { "put4" } else { "put1" }),
        ],
    );
    let numbers = Numbers { count, span: 0, slices };
    Ok(job.launch(format!("matmul sum width={width}"), head, &main, workgroups, numbers, Store::Output))
}
