//! Tiled int8 GEMM from q8 activations (`gemm_int8.wgsl`): tiles in workgroup memory, bound by integer
//! arithmetic.

use super::format::Format;
use crate::kernel::{Launch, fold_grid};
use crate::kernels::matmul::MatmulError;
use crate::kernels::matmul::prelude::{Extent, Job, Store};
use crate::kernels::preprocess::values;

/// A configuration of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Int8Tile {
    /// Rows of a tile: a multiple of `tm`.
    pub bm: u32,
    /// Columns of a tile: a multiple of `tn`.
    pub bn: u32,
    /// Rows of a thread.
    pub tm: u32,
    /// Columns of a thread.
    pub tn: u32,
    /// Blocks of 32 elements in a k-tile.
    pub depth: u32,
    /// Split-K slices, each a workgroup of its own.
    pub slices: u32,
}

impl std::fmt::Display for Int8Tile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bm, bn, tm, tn, depth, slices } = self;
        write!(f, "gemm_int8 {bm}x{bn} by {tm}x{tn} depth={depth} slices={slices}")
    }
}

impl Int8Tile {
    /// Threads of a workgroup.
    pub const fn threads(&self) -> u32 {
        (self.bm / self.tm) * (self.bn / self.tn)
    }

    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(&self) -> u32 {
        // 32 bytes of quants a block, padded by one row or column; two f32 a block.
        self.depth * (32 * (self.bm + 1 + self.bn + 1) + 8 * (self.bm + self.bn))
    }

    /// Blocks in a slice: whole k-tiles.
    fn span(&self, k: u32) -> u32 {
        (k / 32).div_ceil(self.slices.max(1)).next_multiple_of(self.depth.max(1))
    }

    /// Slices that are not empty.
    pub(super) fn used_slices(&self, k: u32) -> u32 {
        (k / 32).div_ceil(self.span(k))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), MatmulError> {
        let unfit = |why| Err(MatmulError::Unfit { config: self.to_string(), why });
        let Self { bm, bn, tm, tn, depth, .. } = *self;
        if tm == 0 || tn == 0 || depth == 0 || bm == 0 || bn == 0 {
            return unfit("a size is 0");
        }
        if !bm.is_multiple_of(tm) || !bn.is_multiple_of(tn) {
            return unfit("the tile is not a whole number of threads");
        }
        if tm * tn > 64 {
            return unfit("too many sums for the registers");
        }
        if self.threads() > job.caps.max_invocations {
            return unfit("the device's workgroups are smaller");
        }
        if self.workgroup_bytes() > job.caps.workgroup_memory {
            return unfit("workgroup memory is too small");
        }
        Ok(())
    }

    /// The launch that multiplies; with split-K it stores slices. Binds q8 activations, W, and the output or
    /// the slices.
    pub(super) fn launch(&self, format: Format, job: &Job<'_>) -> Result<Launch, MatmulError> {
        self.check(job)?;
        let Self { bm, bn, tm, tn, depth, .. } = *self;
        let shape = job.shape;
        let slices = self.used_slices(shape.k);
        let tiles = u64::from(shape.m.div_ceil(bm)) * u64::from(job.n().div_ceil(bn)) * u64::from(slices);
        let count = u32::try_from(tiles).map_err(|_| MatmulError::Grid)?;
        let workgroups = fold_grid(tiles, job.caps.max_workgroups).ok_or(MatmulError::Grid)?;
        let prelude = job.prelude(&[("a", "vec4<u32>"), ("w", "vec4<u32>")], 1, Store::of(slices));
        let (format_name, half_scales) = (format.name(), format.half_scales());
        let values = values![bm, bn, tm, tn, depth, format: format_name, half_scales];
        let label = format!("qmatmul {self} {format:?}");
        let extent = Extent { count, span: self.span(shape.k), slices };
        Ok(job.launch(label, "qmatmul/gemm_int8.wgsl", prelude, values, workgroups, extent))
    }
}
