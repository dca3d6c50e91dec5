//! Matmul: `out[m, n] = epilogue(a[m, k] · B)`, accumulated in f32.
//!
//! - **The kernels.** [`GemvNk`] and [`GemvKn`] are GEMV and small-M GEMM: they stream B once and are bound
//!   by memory bandwidth. [`GemmTile`] is a tiled GEMM: register blocking over tiles in workgroup memory,
//!   bound by arithmetic. Where a matmul has too few tiles to fill a device, the last two split k over
//!   workgroups (split-K) and a second launch adds the slices. [`CoopTile`] is a GEMM on cooperative
//!   matrices, for B in f16, with A rounded to f16.
//! - **Where the WGSL is.** A kernel is a `.wgsl` file of the same name with a header that says its
//!   algorithm, tiles and bindings; the Rust file beside it checks a configuration and gives the values of
//!   its constants.
//! - **Which one.** [`choose`] is the table; [`launches`] uses it, [`launches_with`] takes a
//!   [`MatmulConfig`].
//! - **The result** is a list of launches in order, each with the buffers that it binds ([`MatmulBuffer`]);
//!   the caller provides the buffers, and scratch of the sizes that the list names.
//! - **Epilogues.** [`EpilogueSource`] is WGSL over the accumulated value and further inputs, so that the
//!   element-wise operations after a matmul need no launch of their own.
//! - **Checks.** Indices are clamped in the text, so these kernels may be compiled without run-time checks.
//!   They do not rely on zeroed workgroup memory.

mod choose;
pub(super) mod convert_f16;
mod epilogue;
pub(super) mod gemm_coop;
mod gemm_tiled;
mod gemv_kn;
pub(super) mod gemv_nk;
pub(super) mod launches;
pub(super) mod prelude;
pub(super) mod split_k_sum;
mod weight_type;

pub(in crate::kernels) use super::Elem;
pub(in crate::kernels) use choose::COOP_ROWS;
pub use choose::{
    Candidate, MatmulConfig, TILES, candidates, choose, choose_batch_invariant, choose_pair, choose_rounded,
};
pub(super) use choose::{coop_candidates, coop_tile};
pub use epilogue::{EpilogueInput, EpilogueSource};
pub use gemm_coop::{COOP_TILES, CoopTile, FragmentOps};
pub use gemm_tiled::GemmTile;
pub use gemv_kn::GemvKn;
pub use gemv_nk::{GemvNk, RowThreads};
pub(super) use launches::coop_launches;
pub use launches::{
    MatmulBuffer, MatmulError, MatmulLaunch, MatmulLaunches, MatmulStage, column_launches, launches,
    launches_with, pair_launches, pair_launches_with, split_columns,
};
pub use weight_type::WeightType;

/// The layout of B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[k, n]`, row-major.
    Kn,
    /// `[n, k]`, row-major: a transposed B, as weights are stored.
    Nk,
}

/// The matmul `a[m, k] · B` with B as `b` and `elem` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// Rows of A and of the output.
    pub m: u32,
    /// Columns of A.
    pub k: u32,
    /// Columns of the output.
    pub n: u32,
    /// The layout of B.
    pub b: Layout,
    /// What B is stored as.
    pub elem: WeightType,
}

impl MatmulShape {
    /// A matmul in f32.
    pub const fn f32(m: u32, k: u32, n: u32, b: Layout) -> Self {
        Self { m, k, n, b, elem: WeightType::F32 }
    }
}

impl std::fmt::Display for MatmulShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { m, k, n, b, elem } = self;
        write!(f, "m={m} k={k} n={n} {b:?} {elem:?}")
    }
}
