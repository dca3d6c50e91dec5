//! GemmTile GEMM in f32 (`gemm_tiled.wgsl`): register blocking over tiles in workgroup memory, bound by
//! arithmetic.

use super::prelude::{Extent, Job, Store};
use super::{Elem, Layout, MatmulError};
use crate::kernel::{Launch, fold_grid};
use crate::kernels::preprocess::values;

/// A configuration of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmTile {
    /// Rows of a tile: a multiple of `4 * tm`.
    pub bm: u32,
    /// Columns of a tile: a multiple of `8 * tn`.
    pub bn: u32,
    /// Depth of a k-tile: a multiple of 4.
    pub bk: u32,
    /// Rows of a thread: a multiple of 4.
    pub tm: u32,
    /// Columns of a thread: a multiple of 4.
    pub tn: u32,
    /// k-tiles in workgroup memory: 1, or 2 for one barrier a k-tile instead of two.
    pub stages: u32,
    /// Values of k that are unrolled: a divisor of `bk`.
    pub unroll: u32,
    /// Split-K slices, each a workgroup of its own.
    pub slices: u32,
    /// Rows of tiles that are walked together, column by column, so that workgroups that run at the same time
    /// share what they read.
    pub band: u32,
    /// Whether k-tiles are swizzled, which keeps the stores of a transposed tile free of bank conflicts.
    /// Otherwise they are padded, which avoids part of them.
    pub swizzle: bool,
}

impl std::fmt::Display for GemmTile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bm, bn, bk, tm, tn, stages, unroll, slices, band, swizzle } = self;
        write!(
            f,
            "tiled {bm}x{bn}x{bk} by {tm}x{tn} stages={stages} unroll={unroll} slices={slices} band={band}"
        )?;
        if *swizzle { Ok(()) } else { f.write_str(" padded") }
    }
}

impl GemmTile {
    /// Threads of a workgroup.
    pub const fn threads(&self) -> u32 {
        (self.bm / self.tm) * (self.bn / self.tn)
    }

    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(&self) -> u32 {
        self.stages * self.bk * (self.bm + self.bn + 2 * self.pad()) * 4
    }

    /// Values of padding in a row of a k-tile.
    const fn pad(&self) -> u32 {
        if self.swizzle { 0 } else { 4 }
    }

    /// k-tiles of the matmul.
    pub(super) fn k_tiles(&self, k: u32) -> u32 {
        k.div_ceil(self.bk)
    }

    /// k-tiles in a slice.
    fn span(&self, k: u32) -> u32 {
        self.k_tiles(k).div_ceil(self.slices.max(1))
    }

    /// Slices that are not empty.
    pub(super) fn used_slices(&self, k: u32) -> u32 {
        self.k_tiles(k).div_ceil(self.span(k))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), MatmulError> {
        let unfit = |why| Err(MatmulError::Unfit { config: self.to_string(), why });
        let Self { bm, bn, bk, tm, tn, stages, unroll, .. } = *self;
        let multiples = tm >= 4 && tn >= 4 && bk >= 4 && [tm, tn, bk].iter().all(|n| n.is_multiple_of(4));
        if !multiples || bm == 0 || bn == 0 || !bm.is_multiple_of(4 * tm) || !bn.is_multiple_of(8 * tn) {
            return unfit("the tile is not a whole number of threads");
        }
        if job.matmuls() == 2 && !tn.is_multiple_of(8) {
            return unfit("a thread has columns of one matmul only");
        }
        if !(1..=2).contains(&stages) || unroll == 0 || !bk.is_multiple_of(unroll) || self.band == 0 {
            return unfit("stages, unroll or band is out of range");
        }
        if self.threads() > job.caps.max_invocations {
            return unfit("the device's workgroups are smaller");
        }
        if self.workgroup_bytes() > job.caps.workgroup_memory {
            return unfit("workgroup memory is too small");
        }
        Ok(())
    }

    /// The launch that multiplies; with split-K it stores slices.
    pub(super) fn launch(&self, job: &Job<'_>) -> Result<Launch, MatmulError> {
        self.check(job)?;
        let Self { bm, bn, bk, tm, tn, stages, .. } = *self;
        let shape = job.shape;
        let slices = self.used_slices(shape.k);
        let matmuls = job.matmuls();
        let cols = bn / matmuls;
        let tiles = u64::from(shape.m.div_ceil(bm)) * u64::from(job.n().div_ceil(cols)) * u64::from(slices);
        let count = u32::try_from(tiles).map_err(|_| MatmulError::Grid)?;
        let workgroups = fold_grid(tiles, job.caps.max_workgroups).ok_or(MatmulError::Grid)?;
        let b_width = if shape.b == Layout::Nk { job.k_width() } else { job.n_width() };
        let b = shape.elem.element(b_width, job.caps);
        let inputs = [("a", Elem::F32.wgsl(job.k_width())), ("b0", b), ("b1", b)];
        let prelude = job.prelude(&inputs[..1 + matmuls as usize], job.n_width(), Store::of(slices));
        let Self { unroll, band, .. } = *self;
        let loads_b = (bn * bk / 4).div_ceil(self.threads());
        let values = values![
            bm,
            bn,
            bk,
            tm,
            tn,
            stages,
            unroll,
            band,
            threads: self.threads(),
            pad: self.pad(),
            b_nk: shape.b == Layout::Nk,
            even_k: shape.k.is_multiple_of(bk),
            mask_a: self.swizzle_mask(bm),
            mask_b: self.swizzle_mask(bn),
            swizzle_step: (32 / bk).max(1),
            product_of_load: (0..loads_b).map(|l| self.product_of_load(job, l)).collect::<Vec<_>>(),
        ];
        let label = format!("matmul {self} {:?}{}", shape.b, if matmuls == 2 { " pair" } else { "" });
        let extent = Extent { count, span: self.span(shape.k), slices };
        Ok(job.launch(label, "matmul/gemm_tiled.wgsl", prelude, values, workgroups, extent))
    }

    /// In a row of a k-tile of `b` values, group `g` of four lies at `g ^ (quad * swizzle_step & mask)`,
    /// where `quad` is k / 4. Threads that transpose store to the same group for all quads at once, or to as
    /// many groups as there are eights in their number; the steps of `quad` put all of them into different
    /// banks. 0: no swizzle.
    fn swizzle_mask(&self, b: u32) -> u32 {
        let mask = (1 << (b / 4).trailing_zeros().min(3)) - 1;
        if self.swizzle && self.bk > 4 { mask } else { 0 }
    }

    /// The matmul of a pair (0 or 1) from which a thread's load `l` of B comes; 2 where threads differ.
    fn product_of_load(&self, job: &Job<'_>, l: u32) -> u32 {
        let half = match (job.matmuls(), job.shape.b) {
            (1, _) => return 0,
            (_, Layout::Kn) => return 2,
            (_, Layout::Nk) => self.bn / 2,
        };
        let quads = self.bk / 4;
        let (first, last) = (l * self.threads() / quads, ((l + 1) * self.threads() - 1) / quads);
        if first / half == last.min(self.bn - 1) / half { first / half } else { 2 }
    }
}
