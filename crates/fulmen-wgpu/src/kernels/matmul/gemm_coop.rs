//! Cooperative-matrix GEMM (`gemm_coop.wgsl`): f16 operands, f32 accumulators, on tensor cores.
//!
//! A is converted to f16 by a launch before (`convert_f16.rs`), each row scaled by a power of two. B is f16
//! as it is, or blocks that are dequantized to f16 on the way into workgroup memory.

use super::prelude::{Extent, Job, Store};
use super::{Layout, MatmulError, WeightType};
use crate::kernel::{Caps, Launch, fold_grid};
use crate::kernels::preprocess::{Value, values};

/// What multiplies 16 × 16 fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FragmentOps {
    /// Cooperative matrices: `coopMultiplyAdd`.
    CooperativeMatrix,
    /// The threads, by ordinary arithmetic, with everything else the same: slow, for tests on devices without
    /// cooperative matrices.
    Emulated,
}

/// A configuration of this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopTile {
    /// Rows of a tile: a multiple of `wm`.
    pub bm: u32,
    /// Columns of a tile: a multiple of `wn`.
    pub bn: u32,
    /// Depth of a k-tile: 32 or 64.
    pub bk: u32,
    /// Rows of a subgroup: a multiple of 16.
    pub wm: u32,
    /// Columns of a subgroup: a multiple of 16.
    pub wn: u32,
    /// Split-K slices, each a workgroup of its own.
    pub slices: u32,
    /// What multiplies fragments.
    pub fragment_ops: FragmentOps,
}

impl std::fmt::Display for CoopTile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bm, bn, bk, wm, wn, slices, fragment_ops } = self;
        write!(f, "coop {bm}x{bn}x{bk} by {wm}x{wn} slices={slices}")?;
        if *fragment_ops == FragmentOps::CooperativeMatrix { Ok(()) } else { f.write_str(" emulated") }
    }
}

/// The tiles that are worth trying, largest first.
pub const COOP_TILES: [CoopTile; 7] = [
    tile([128, 256, 32], [64, 64]),
    tile([128, 128, 32], [64, 64]),
    tile([128, 128, 32], [64, 32]),
    tile([64, 128, 32], [32, 32]),
    tile([64, 64, 64], [32, 32]),
    tile([32, 64, 64], [16, 32]),
    tile([16, 128, 64], [16, 32]),
];

const fn tile(b: [u32; 3], w: [u32; 2]) -> CoopTile {
    CoopTile {
        bm: b[0],
        bn: b[1],
        bk: b[2],
        wm: w[0],
        wn: w[1],
        slices: 1,
        fragment_ops: FragmentOps::CooperativeMatrix,
    }
}

/// Where the tiles of B come from.
pub(in crate::kernels) struct CoopSource {
    /// The name and the element type of B's array in WGSL.
    pub(in crate::kernels) array: (&'static str, &'static str),
    /// The file with `row_base`, `fetch_b` and `decode_b`.
    pub(in crate::kernels) file: &'static str,
    /// The values of that file.
    pub(in crate::kernels) values: Vec<(&'static str, Value)>,
    /// Vectors of four elements in a fetch.
    pub(in crate::kernels) vectors_per_fetch: u32,
    /// The type of what is fetched.
    pub(in crate::kernels) raw_type: &'static str,
}

/// Subgroup width that the kernel needs.
const WIDTH: u32 = 32;

/// Rows of tiles that are walked together, column by column, so that concurrent workgroups share what they
/// read.
const BAND: u32 = 8;

impl CoopTile {
    /// Threads of a workgroup.
    pub const fn threads(&self) -> u32 {
        (self.bm / self.wm) * (self.bn / self.wn) * WIDTH
    }

    /// Vectors between rows of a k-tile.
    const fn ld(&self) -> u32 {
        self.bk / 4 + 2
    }

    /// Bytes of workgroup memory.
    pub const fn workgroup_bytes(&self) -> u32 {
        (self.bm + self.bn) * self.ld() * 8 + self.threads() / WIDTH * 1024
    }

    /// Whether a device can run it.
    pub fn fits(&self, caps: &Caps) -> bool {
        let cooperative = caps.cooperative_matrix && caps.subgroups == Some((WIDTH, WIDTH));
        caps.f16
            && (cooperative || self.fragment_ops == FragmentOps::Emulated)
            && self.threads() <= caps.max_invocations
            && self.workgroup_bytes() <= caps.workgroup_memory
    }

    fn k_tiles(&self, k: u32) -> u32 {
        k.div_ceil(self.bk)
    }

    fn span(&self, k: u32) -> u32 {
        self.k_tiles(k).div_ceil(self.slices.max(1))
    }

    /// Slices that are not empty.
    pub(in crate::kernels) fn used_slices(&self, k: u32) -> u32 {
        self.k_tiles(k).div_ceil(self.span(k))
    }

    fn check(&self, job: &Job<'_>) -> Result<(), MatmulError> {
        let unfit = |why| Err(MatmulError::Unfit { config: self.to_string(), why });
        let Self { bm, bn, bk, wm, wn, .. } = *self;
        let fragments = wm >= 16 && wn >= 16 && wm.is_multiple_of(16) && wn.is_multiple_of(16);
        if !fragments || bm == 0 || bn == 0 || !bm.is_multiple_of(wm) || !bn.is_multiple_of(wn) {
            return unfit("the tile is not a whole number of fragments");
        }
        if ![32, 64].contains(&bk) {
            return unfit("k-tiles have a depth of 32 or 64");
        }
        if wm * wn > 64 * 64 {
            return unfit("too many sums for the registers");
        }
        if job.shape.b != Layout::Nk {
            return unfit("B is [k, n]");
        }
        if !job.caps.f16 {
            return unfit("the device has no f16");
        }
        if !self.fits(job.caps) {
            return unfit("the device has no such cooperative matrices, or its workgroups are smaller");
        }
        Ok(())
    }

    /// The launch that multiplies; with split-K it stores slices. Binds A as f16, B, the scales of A's
    /// rows, and the output or the slices.
    pub(in crate::kernels) fn launch(
        &self,
        job: &Job<'_>,
        source: &CoopSource,
    ) -> Result<Launch, MatmulError> {
        self.check(job)?;
        let Self { bm, bn, bk, wm, wn, .. } = *self;
        let shape = job.shape;
        let slices = self.used_slices(shape.k);
        let tiles = u64::from(shape.m.div_ceil(bm)) * u64::from(job.n().div_ceil(bn)) * u64::from(slices);
        let count = u32::try_from(tiles).map_err(|_| MatmulError::Grid)?;
        let workgroups = fold_grid(tiles, job.caps.max_workgroups).ok_or(MatmulError::Grid)?;
        let inputs = [("a", "vec4<f16>"), source.array, ("scales", "f32")];
        let prelude = job.prelude(&inputs, job.n_width(), Store::of(slices));
        debug_assert_eq!(job.matmuls(), 1);
        let own = values![
            bm,
            bn,
            bk,
            wm,
            wn,
            coop: self.fragment_ops == FragmentOps::CooperativeMatrix,
            threads: self.threads(),
            ld: self.ld(),
            band: BAND,
            b_source: source.file,
            vectors_per_fetch: source.vectors_per_fetch,
            raw_type: source.raw_type,
        ];
        let values = own.into_iter().chain(source.values.iter().cloned());
        let label = format!("matmul {self}");
        let extent = Extent { count, span: self.span(shape.k), slices };
        Ok(job.launch(label, "matmul/gemm_coop.wgsl", prelude, values, workgroups, extent))
    }
}

/// B as f16.
pub(super) fn f16_source(job: &Job<'_>) -> Result<CoopSource, MatmulError> {
    if job.shape.elem != WeightType::F16 {
        let why = "B is not f16";
        return Err(MatmulError::Unfit { config: "coop".to_owned(), why });
    }
    Ok(CoopSource {
        array: ("b", WeightType::F16.element(job.k_width(), job.caps)),
        file: "matmul/coop_b_f16.wgsl",
        values: Vec::new(),
        vectors_per_fetch: 1,
        raw_type: "vec4<f16>",
    })
}
