//! GEMV and small-M GEMM with block-quantized weights (`gemv.wgsl`): bound by reading W.

use super::format::Format;
use super::quantize_q8;
use crate::kernel::{Launch, fold_grid};
use crate::kernels::matmul::MatmulError;
use crate::kernels::matmul::gemv_nk::padded_rows;
use crate::kernels::matmul::prelude::{Extent, Job, Store};
use crate::kernels::preprocess::values;

/// What A is multiplied as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activations {
    /// q8: int8 quants with a scale for every 32, made by a launch before the matmul.
    Q8,
    /// f32, as it is.
    F32,
}

/// How lanes that share a row add their partial sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneSum {
    /// By shuffles. No subgroup may have fewer threads than there are lanes.
    Shuffle,
    /// In workgroup memory.
    Memory,
}

/// A configuration of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantGemv {
    /// What A is multiplied as.
    pub activations: Activations,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Threads that share rows of W: 8, 16, 32 or a larger power of two.
    pub lanes: u32,
    /// Rows of W that these lanes take at once.
    pub rows: u32,
    /// Blocks of each of these rows that are loaded before the first is used.
    pub unroll: u32,
    /// How the lanes add their partial sums.
    pub lane_sum: LaneSum,
}

impl std::fmt::Display for QuantGemv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { activations, threads, lanes, rows, unroll, lane_sum } = self;
        write!(
            f,
            "gemv {activations:?} threads={threads} lanes={lanes} rows={rows} unroll={unroll} {lane_sum:?}"
        )
    }
}

impl QuantGemv {
    /// The launch of the matmul; binds A (f32 or q8), W, the output and the epilogue's inputs.
    pub(super) fn launch(&self, format: Format, job: &Job<'_>) -> Result<Launch, MatmulError> {
        self.check(job)?;
        let m = padded_rows(job.shape.m);
        let Self { threads, lanes, rows, unroll, .. } = *self;
        let count = job.n().div_ceil(threads / lanes * rows);
        let workgroups = fold_grid(count.into(), job.caps.max_workgroups).ok_or(MatmulError::Grid)?;
        let (a, a_row) = match self.activations {
            Activations::Q8 => ("vec4<u32>", quantize_q8::stride(job.shape.k)),
            Activations::F32 => ("vec4<f32>", job.shape.k / 4),
        };
        let prelude = job.prelude(&[("a", a), ("w", "vec4<u32>")], 1, Store::Output);
        let values = values![
            q8: self.activations == Activations::Q8,
            format: format.name(),
            dot: format.dot(),
            unpack: format.unpack(),
            m,
            threads,
            lanes,
            log2_lanes: lanes.ilog2(),
            rows,
            unroll,
            shuffle: self.lane_sum == LaneSum::Shuffle,
        ];
        let label = format!("qmatmul {format:?} {self} m={m}");
        let extent = Extent { count, span: a_row, slices: 1 };
        Ok(job.launch(label, "qmatmul/gemv.wgsl", prelude, values, workgroups, extent))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), MatmulError> {
        let unfit = |why| Err(MatmulError::Unfit { config: self.to_string(), why });
        let Self { threads, lanes, rows, unroll, lane_sum, .. } = *self;
        if lanes < 8 || !lanes.is_power_of_two() || threads == 0 || !threads.is_multiple_of(lanes) {
            return unfit("the workgroup is not a whole number of groups of lanes");
        }
        if threads > job.caps.max_invocations {
            return unfit("the device's workgroups are smaller");
        }
        if lane_sum == LaneSum::Memory && threads * 4 > job.caps.workgroup_memory {
            return unfit("workgroup memory is too small");
        }
        match (lane_sum, job.caps.subgroups) {
            (LaneSum::Shuffle, None) => return unfit("the device has no subgroups"),
            (LaneSum::Shuffle, Some((min, max))) if min < lanes || !threads.is_multiple_of(max) => {
                return unfit("the device's subgroups have other widths");
            }
            _ => {}
        }
        if rows == 0 || unroll == 0 || job.shape.m > 8 || padded_rows(job.shape.m) * rows > 32 {
            return unfit("too many sums for the registers");
        }
        Ok(())
    }
}
