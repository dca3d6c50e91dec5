//! The kernel for few rows of A and B as `[k, n]`: bound by the reading of B.

use super::head::{Job, Numbers, Store};
use super::rows_nk::text_rows;
use super::text::lines;
use super::{Elem, PlanError};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::template::expand;

/// A choice of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowsKn {
    /// Threads along n, each with four columns where n is a multiple of four.
    pub lanes: u32,
    /// Threads along k.
    pub groups: u32,
    /// Loads before the first is used.
    pub unroll: u32,
    /// Slices of k, each a workgroup of its own.
    pub slices: u32,
}

impl std::fmt::Display for RowsKn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lanes, groups, unroll, slices } = self;
        write!(f, "rows_kn {lanes}x{groups} unroll={unroll} slices={slices}")
    }
}

const TEMPLATE: &str = include_str!("rows_kn.wgsl");

impl RowsKn {
    /// Elements of k in a slice.
    fn span(&self, k: u32) -> u32 {
        k.div_ceil(self.slices.max(1))
    }

    /// Slices that hold something.
    pub(super) fn used_slices(&self, k: u32) -> u32 {
        k.div_ceil(self.span(k))
    }

    /// The launch that multiplies; with more than one slice it stores slices.
    pub(super) fn launch(&self, job: &Job<'_>) -> Result<Launch, PlanError> {
        let unfit = |why| PlanError::Unfit { choice: self.to_string(), why };
        let Self { lanes, groups, unroll, .. } = *self;
        let threads = lanes * groups;
        if threads == 0 || threads > job.caps.max_invocations || unroll == 0 {
            return Err(unfit("the device's workgroups are smaller"));
        }
        let m = text_rows(job.shape.m);
        if m > 16 {
            return Err(unfit("too many sums for the registers"));
        }
        let width = job.n_width();
        if threads * width * 4 > job.caps.workgroup_memory {
            return Err(unfit("workgroup memory is too small"));
        }
        let slices = self.used_slices(job.shape.k);
        let store = if slices > 1 { Store::Slice } else { Store::Output };
        let count = (job.n() / width).div_ceil(lanes).checked_mul(slices).ok_or(PlanError::Grid)?;
        let workgroups = fold_grid(count.into(), job.caps.max_workgroups).ok_or(PlanError::Grid)?;
        let mut head =
            job.head(&[("a", "f32"), ("b", job.shape.elem.element(width, job.caps))], width, store);
        head.text += &job.shape.elem.getter("b", width, job.caps);
        let ty = Elem::F32.wgsl(width);
        let put = if width == 4 { "put4" } else { "put1" };
        let reduce = lines(m, |i| {
            format!(
                "    shared_sums[local] = s{i};\n    workgroupBarrier();\n    if (first == 0u && place < nv && {i}u < \
                 params.m) {{\n        var v = shared_sums[lane];\n        for (var g = 1u; g < GROUPS; g++) {{ v += \
                 shared_sums[g * LANES + lane]; }}\n        {put}(v, slice, {i}u, place * {width}u);\n    }}\n    \
                 workgroupBarrier();"
            )
        });
        let main = expand(
            TEMPLATE,
            &[
                ("lanes", &lanes.to_string()),
                ("groups", &groups.to_string()),
                ("threads", &threads.to_string()),
                ("type", ty),
                ("width", &width.to_string()),
                ("bases", &lines(m, |i| format!("    let q{i} = min({i}u, params.m - 1u) * params.k;"))),
                ("sums", &lines(m, |i| format!("    var s{i} = {ty}();"))),
                ("last", &((unroll - 1) * groups).to_string()),
                ("stride", &(unroll * groups).to_string()),
                ("all", &self.step(unroll, m, ty)),
                ("one", &self.step(1, m, ty)),
                ("reduce", &reduce),
            ],
        );
        let label = format!("matmul {self} m={m}");
        let numbers = Numbers { count, span: self.span(job.shape.k), slices };
        Ok(job.launch(label, head, &main, workgroups, numbers, store))
    }

    /// `count` loads, then their use.
    fn step(&self, count: u32, m: u32, ty: &str) -> String {
        let at = |u: u32| format!("k + {}u", u * self.groups);
        let loads = lines(count, |u| format!("        let w{u} = get_b(({}) * nv + column);", at(u)));
        loads
            + &lines(count, |u| {
                lines(m, |i| format!("        s{i} = fma({ty}(a[q{i} + {}]), w{u}, s{i});", at(u)))
            })
    }
}
