//! What a launch of `gemm_small_m.cu` is given: as `gemm_small_m_schedule.cuh` and `forwarding.cuh` have it.

use bytemuck::{Pod, Zeroable};

use crate::kernels::f16_fragments::ORDERS;
use crate::kernels::small_m::MAX_PARTS;
use crate::l2_prefetch::L2Prefetch;
use crate::tensor_map::TensorMap;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(super) struct Part {
    pub(super) weight: u64,
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
    pub(super) rows: u32,
    pub(super) row_bytes: u32,
    pub(super) tile: u32,
    pub(super) wide: u32,
}

impl Part {
    /// Whether four neighbours of everything that is read or written of it are 16 bytes at a boundary of 16.
    pub(super) fn is_wide(&self) -> bool {
        self.rows.is_multiple_of(4) && (self.out | self.bias | self.residual).is_multiple_of(16)
    }
}

/// Things dealt to so many: the first `extra` have one more than `each`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(super) struct Shares {
    pub(super) each: u32,
    pub(super) extra: u32,
}

impl Shares {
    pub(super) fn new(things: u32, to: u32) -> Shares {
        Shares { each: things / to.max(1), extra: things % to.max(1) }
    }
}

/// What x is, where a product has handed it on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(super) struct Incoming {
    pub(super) words: u64,
    pub(super) squares: u64,
    pub(super) floats: u64,
    pub(super) gain: u64,
    pub(super) normed: u64,
}

/// Where the result is handed on to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub(super) struct Outgoing {
    pub(super) image: [u64; ORDERS],
    pub(super) words: u64,
    pub(super) squares: u64,
    pub(super) gain: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct Args {
    pub(super) map: [TensorMap; MAX_PARTS],
    pub(super) x: [u64; 2],
    pub(super) factors: u64,
    pub(super) from: Incoming,
    pub(super) to: Outgoing,
    pub(super) columns: u32,
    pub(super) blocks: u32,
    pub(super) chunks: u32,
    pub(super) parts: u32,
    pub(super) first_parts: u32,
    pub(super) first_clusters: u32,
    pub(super) tiles: [Shares; 2],
    pub(super) ranked: Shares,
    pub(super) ranks: u32,
    pub(super) warps: u32,
    pub(super) depth: u32,
    pub(super) stage_bytes: u32,
    pub(super) x_bytes: u32,
    pub(super) sums: u32,
    pub(super) epsilon: f32,
    pub(super) maps: u32,
    pub(super) part: [Part; MAX_PARTS],
    pub(super) ahead: L2Prefetch,
}

// The kernel's has the alignment of maps.
const _: () = assert!(size_of::<Args>().is_multiple_of(64));
