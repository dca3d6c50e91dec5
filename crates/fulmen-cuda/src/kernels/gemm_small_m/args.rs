//! The arguments of `gemm_small_m.cu`, and the constants that it shares with the
//! [configuration](super::config).

use crate::kernels::even_split::EvenSplit;
use crate::kernels::f16_fragments::K_ORDERS;
use crate::kernels::gemm_weight::{GemmWeight, MAX_WEIGHTS};
use crate::l2_prefetch::L2Prefetch;
use crate::layout::{DevicePtr, kernel_args};
use crate::tensor_map::TensorMap;

/// Consumer warps of a block, at most.
pub(super) const MAX_WARPS: u32 = 12;
/// The same for gate and up with 32 rows of x, which need more registers.
pub(super) const WIDE_GATE_UP_WARPS: u32 = 11;
/// K chunks of a block, at most.
pub(super) const MAX_CHUNKS: u32 = 52;
pub(super) const MAX_STAGES: u32 = 4;
/// Rows of a weight matrix in a tile.
pub(super) const TILE: u32 = 16;
/// Flags in the low bits of `cluster_partials`.
pub(super) const HEAD_PARTIALS_PER_TILE: u32 = 1;
pub(super) const PARTIALS_OVERLAY_X: u32 = 2;

kernel_args! {
    file: "gemm_small_m_schedule.cuh";
    constants: [
        MAX_WARPS,
        WIDE_GATE_UP_WARPS,
        MAX_CHUNKS,
        MAX_STAGES,
        TILE,
        HEAD_PARTIALS_PER_TILE,
        PARTIALS_OVERLAY_X,
    ];

    /// What a GEMM has stored beside the fragments that it forwarded to this one.
    #[derive(Debug, Default, PartialEq)]
    pub(super) struct ForwardedInput {
        pub(super) flags: DevicePtr,
        pub(super) squares: DevicePtr,
        pub(super) x: DevicePtr,
        pub(super) gamma: DevicePtr,
        pub(super) normed: DevicePtr,
    }

    /// Where the result is forwarded to.
    #[derive(Debug, Default, PartialEq)]
    pub(super) struct ForwardedOutput {
        pub(super) fragments: [DevicePtr; K_ORDERS],
        pub(super) flags: DevicePtr,
        pub(super) squares: DevicePtr,
        pub(super) gamma: DevicePtr,
    }

    #[derive(Debug, PartialEq)]
    pub(super) struct GemmSmallMArgs {
        pub(super) tensor_maps: [TensorMap; MAX_WEIGHTS],
        pub(super) x: [DevicePtr; 2],
        pub(super) row_scales: DevicePtr,
        pub(super) forwarded_in: ForwardedInput,
        pub(super) forwarded_out: ForwardedOutput,
        pub(super) m: u32,
        pub(super) k_blocks: u32,
        pub(super) k_chunks: u32,
        pub(super) n_weights: u32,
        pub(super) first_format_weights: u32,
        pub(super) first_format_clusters: u32,
        pub(super) tile_split: [EvenSplit; 2],
        pub(super) chunk_split: EvenSplit,
        pub(super) cluster_size: u32,
        pub(super) consumer_warps: u32,
        pub(super) stages: u32,
        pub(super) stage_bytes: u32,
        pub(super) x_bytes: u32,
        pub(super) cluster_partials: u32,
        pub(super) epsilon: f32,
        pub(super) n_tensor_maps: u32,
        pub(super) weights: [GemmWeight; MAX_WEIGHTS],
        pub(super) prefetch: L2Prefetch,
        pub(super) gelu: u32,
        pub(super) unused: [u32; 11],
    }
}

// The CUDA struct has the alignment of tensor maps.
const _: () = assert!(size_of::<GemmSmallMArgs>().is_multiple_of(64));
