//! The arguments of `gemm_mixed_input.cu`, and the constants that it shares with its launches.

use crate::kernels::even_split::EvenSplit;
use crate::kernels::gemm_weight::{GemmWeight, MAX_WEIGHTS};
use crate::layout::{DevicePtr, kernel_args};
use crate::tensor_map::TensorMap;

/// Rows of a weight matrix in the tile of a block; for gate and up, half of them are of each.
pub(super) const TILE_ROWS: u32 = 128;
/// Rows of a warp.
pub(super) const WARP_ROWS: u32 = 16;
pub(super) const CONSUMER_WARPS: u32 = 8;
/// Padded rows up to which the producer of x is one warp; above, it is a warpgroup.
pub(super) const PRODUCER_WARP_ROWS: u32 = 128;
/// Rows of x per block of the reduction.
pub(super) const REDUCE_ROWS: u32 = 8;
/// Dynamic shared memory of a block.
pub(super) const SHARED_BYTES: u32 = 224 << 10;

kernel_args! {
    file: "gemm_mixed_input.cuh";
    constants: [
        TILE_ROWS,
        WARP_ROWS,
        CONSUMER_WARPS,
        PRODUCER_WARP_ROWS,
        SHARED_BYTES,
        REDUCE_ROWS,
    ];

    #[derive(Debug)]
    pub(super) struct GemmMixedInputArgs {
        pub(super) tensor_maps: [TensorMap; MAX_WEIGHTS],
        pub(super) x: DevicePtr,
        pub(super) row_scales: DevicePtr,
        pub(super) partials: DevicePtr,
        pub(super) items: EvenSplit,
        pub(super) m: u32,
        pub(super) k_blocks: u32,
        pub(super) k_chunks: u32,
        pub(super) n_weights: u32,
        pub(super) gate_up: u32,
        pub(super) padded_rows: u32,
        pub(super) weights: [GemmWeight; MAX_WEIGHTS],
        pub(super) gelu: u32,
        pub(super) first_block: u32,
        pub(super) unused: [u32; 12],
    }

    #[derive(Debug)]
    pub(super) struct GemmMixedInputPairArgs {
        pub(super) gemms: [GemmMixedInputArgs; 2],
        pub(super) tiles: u32,
        pub(super) unused: [u32; 15],
    }
}

// The CUDA struct has the alignment of tensor maps.
const _: () = assert!(size_of::<GemmMixedInputArgs>().is_multiple_of(64));
const _: () = assert!(size_of::<GemmMixedInputPairArgs>().is_multiple_of(64));
