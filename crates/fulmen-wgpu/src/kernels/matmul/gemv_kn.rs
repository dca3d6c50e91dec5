//! GEMV and small-M GEMM for B as `[k, n]` (`gemv_kn.wgsl`): bound by reading B.

use super::MatmulError;
use super::gemv_nk::padded_rows;
use super::prelude::{Extent, Job, Store};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::preprocess::values;

/// A configuration of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemvKn {
    /// Threads along n, each with four columns where n is a multiple of four.
    pub lanes: u32,
    /// Threads along k.
    pub groups: u32,
    /// Loads before the first is used.
    pub unroll: u32,
    /// Split-K slices, each a workgroup of its own.
    pub slices: u32,
}

impl std::fmt::Display for GemvKn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lanes, groups, unroll, slices } = self;
        write!(f, "gemv_kn {lanes}x{groups} unroll={unroll} slices={slices}")
    }
}

impl GemvKn {
    /// Elements of k in a slice.
    fn span(&self, k: u32) -> u32 {
        k.div_ceil(self.slices.max(1))
    }

    /// Slices that are not empty.
    pub(super) fn used_slices(&self, k: u32) -> u32 {
        k.div_ceil(self.span(k))
    }

    /// The launch that multiplies; with split-K it stores slices.
    pub(super) fn launch(&self, job: &Job<'_>) -> Result<Launch, MatmulError> {
        let unfit = |why| MatmulError::Unfit { config: self.to_string(), why };
        let Self { lanes, groups, unroll, .. } = *self;
        let threads = lanes * groups;
        if threads == 0 || threads > job.caps.max_invocations || unroll == 0 {
            return Err(unfit("the device's workgroups are smaller"));
        }
        let m = padded_rows(job.shape.m);
        if m > 16 {
            return Err(unfit("too many sums for the registers"));
        }
        let width = job.n_width();
        if threads * width * 4 > job.caps.workgroup_memory {
            return Err(unfit("workgroup memory is too small"));
        }
        let slices = self.used_slices(job.shape.k);
        let count = (job.n() / width).div_ceil(lanes).checked_mul(slices).ok_or(MatmulError::Grid)?;
        let workgroups = fold_grid(count.into(), job.caps.max_workgroups).ok_or(MatmulError::Grid)?;
        let b = job.shape.elem.element(width, job.caps);
        let prelude = job.prelude(&[("a", "f32"), ("b", b)], width, Store::of(slices));
        let label = format!("matmul {self} m={m}");
        let extent = Extent { count, span: self.span(job.shape.k), slices };
        let values = values![m, lanes, groups, unroll];
        Ok(job.launch(label, "matmul/gemv_kn.wgsl", prelude, values, workgroups, extent))
    }
}
