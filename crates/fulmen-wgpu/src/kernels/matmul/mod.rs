//! Matrix products: `out[m, n] = epilogue(a[m, k] · B)`, accumulated in f32.
//!
//! - **The kernels.** [`RowsNk`] and [`RowsKn`] for few rows of A: they stream B once and are bound by memory.
//!   [`Tiled`] for many rows: register blocking over tiles in workgroup memory, bound by arithmetic. Where a product
//!   has too few tiles to fill a device, the last two split k over workgroups and a second launch sums the slices.
//!   [`Coop`] for many rows and B in 16 bits, on matrix units, with A rounded to 16 bits.
//! - **Which one.** [`choose`] is the table; [`plan`] uses it, [`plan_with`] takes the choice from the caller.
//! - **What a plan is.** Launches in order, and for each the roles of the buffers that it binds ([`Role`]); the caller
//!   brings the buffers, and scratch of the sizes that the plan names.
//! - **Epilogues.** [`EpilogueSource`] is WGSL over the accumulated value and further inputs, so that the element-wise
//!   operations after a product need no launch of their own.
//! - **Checks.** Indices are clamped in the text, so these kernels may be compiled without run-time checks. They do
//!   not rely on zeroed workgroup memory.

mod choose;
pub(super) mod coop;
mod epilogue;
pub(super) mod halve;
pub(super) mod head;
mod plan;
pub(super) mod reduce;
mod rows_kn;
pub(super) mod rows_nk;
mod slab;
pub(super) mod text;
mod tiled;
mod weight_type;

pub(in crate::kernels) use super::Elem;
pub(in crate::kernels) use choose::UNITS_ROWS;
pub use choose::{Candidate, KernelChoice, TILES, candidates, choose, choose_half, choose_pair};
pub(super) use choose::{coop_candidates, units_tile};
pub use coop::{COOP_TILES, Coop, Squares};
pub use epilogue::{EpilogueInput, EpilogueSource};
pub(super) use plan::by_units;
pub use plan::{
    Plan, PlanError, Role, Step, plan, plan_columns, plan_pair, plan_pair_with, plan_with, split_columns,
};
pub use rows_kn::RowsKn;
pub use rows_nk::{RowsNk, Team};
pub use tiled::Tiled;
pub use weight_type::WeightType;

/// How B lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[k, n]`, row-major.
    Kn,
    /// `[n, k]`, row-major: a transposed B, as weights are stored.
    Nk,
}

/// The product `a[m, k] · B` with B as `b` and `elem` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulShape {
    /// Rows of A and of the output.
    pub m: u32,
    /// Columns of A.
    pub k: u32,
    /// Columns of the output.
    pub n: u32,
    /// How B lies.
    pub b: Layout,
    /// What B is stored as.
    pub elem: WeightType,
}

impl MatmulShape {
    /// A product in f32.
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
