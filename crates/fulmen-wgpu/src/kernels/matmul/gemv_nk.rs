//! GEMV and small-M GEMM for B as `[n, k]` (`gemv_nk.wgsl`): bound by reading B.

use super::prelude::{Extent, Job, Store};
use super::{Elem, MatmulError};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::preprocess::values;

/// Which threads share a row of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowThreads {
    /// A subgroup. The width must be fixed: [`Caps::subgroups`](crate::kernel::Caps::subgroups) with both
    /// ends equal.
    Subgroup,
    /// The workgroup, by subgroup sums of any width and workgroup memory.
    Workgroup,
    /// That many threads (a power of two), by workgroup memory alone.
    Lanes(u32),
}

/// A configuration of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemvNk {
    /// Threads of a workgroup.
    pub threads: u32,
    /// Rows of B that these threads take at once.
    pub rows: u32,
    /// Loads from each of these rows before the first is used.
    pub unroll: u32,
    /// Which threads share a row.
    pub row_threads: RowThreads,
    /// Whether k is a constant of the text: one pipeline for each k, with loops that unroll.
    pub fixed_k: bool,
}

impl std::fmt::Display for GemvNk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { threads, rows, unroll, row_threads, fixed_k } = self;
        let fixed = if *fixed_k { " fixed" } else { "" };
        write!(f, "gemv_nk threads={threads} rows={rows} unroll={unroll} {row_threads:?}{fixed}")
    }
}

/// Rows of A that a kernel is generated for: few different kernels to compile, few idle rows.
pub(in crate::kernels) fn padded_rows(m: u32) -> u32 {
    [1, 2, 3, 4, 6, 8, 12, 16].into_iter().find(|&r| r >= m).unwrap_or(m)
}

impl GemvNk {
    /// The one launch of this kernel.
    pub(super) fn launch(&self, job: &Job<'_>) -> Result<Launch, MatmulError> {
        let Tile { m, lanes, shared_words, vector_sums } = self.check(job)?;
        let Self { threads, rows, unroll, fixed_k, .. } = *self;
        let count = job.n().div_ceil(threads / lanes * rows);
        let workgroups = fold_grid(count.into(), job.caps.max_workgroups).ok_or(MatmulError::Grid)?;
        let b = job.shape.elem.element(job.k_width(), job.caps);
        let a = Elem::F32.wgsl(job.k_width());
        let inputs = [("a", a), ("b0", b), ("b1", b)];
        let prelude = job.prelude(&inputs[..1 + job.matmuls() as usize], 1, Store::Output);
        let reduce = match self.row_threads {
            RowThreads::Subgroup => "subgroup",
            RowThreads::Workgroup => "workgroup",
            RowThreads::Lanes(_) => "lanes",
        };
        let values = values![
            k: job.shape.k,
            m,
            rows,
            lanes,
            log2_lanes: lanes.ilog2(),
            threads,
            unroll,
            fixed_k,
            vector_sums,
            reduce,
            shared_words,
            subgroup_slots: shared_words / (m * rows * job.matmuls()),
        ];
        let label = format!("matmul {self} m={m}");
        let extent = Extent { count, span: 0, slices: 1 };
        Ok(job.launch(label, "matmul/gemv_nk.wgsl", prelude, values, workgroups, extent))
    }

    fn check(&self, job: &Job<'_>) -> Result<Tile, MatmulError> {
        let unfit = |why| MatmulError::Unfit { config: self.to_string(), why };
        let lanes = match (self.row_threads, job.caps.subgroups) {
            (RowThreads::Subgroup, Some((min, max))) if min == max => min,
            (RowThreads::Subgroup, _) => return Err(unfit("the device's subgroups have no fixed width")),
            (RowThreads::Workgroup, None) => return Err(unfit("the device has no subgroups")),
            (RowThreads::Workgroup, Some(_)) => self.threads,
            (RowThreads::Lanes(width), _) => width,
        };
        if lanes == 0 || !self.threads.is_multiple_of(lanes) || !lanes.is_power_of_two() {
            return Err(unfit("the workgroup is not a whole number of groups of lanes"));
        }
        if self.threads > job.caps.max_invocations {
            return Err(unfit("the device's workgroups are smaller"));
        }
        let m = padded_rows(job.shape.m);
        let sums = m * self.rows * job.matmuls();
        if m > 16 || sums > 128 || sums == 0 || self.unroll == 0 {
            return Err(unfit("too many sums for the registers"));
        }
        let shared_words = match (self.row_threads, job.caps.subgroups) {
            (RowThreads::Subgroup, _) => 0,
            (RowThreads::Workgroup, Some((min, _))) => sums * self.threads.div_ceil(min),
            _ => self.threads,
        };
        if shared_words * 4 > job.caps.workgroup_memory {
            return Err(unfit("workgroup memory is too small"));
        }
        Ok(Tile { m, lanes, shared_words, vector_sums: job.k_width() == 4 && sums <= 8 })
    }
}

/// The sizes that follow from a configuration, a shape and a device.
struct Tile {
    /// Rows of A.
    m: u32,
    /// Threads that share a row of B.
    lanes: u32,
    /// f32 values in workgroup memory.
    shared_words: u32,
    /// Each sum is a vector, added up at the end.
    vector_sums: bool,
}
