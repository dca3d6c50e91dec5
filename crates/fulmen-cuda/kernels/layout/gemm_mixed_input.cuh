// The layout of the structs and constants that src/kernels/gemm_mixed_input/args.rs shares with
// gemm_mixed_input.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(TILE_ROWS, 128);
ASSERT_CONSTANT(WARP_ROWS, 16);
ASSERT_CONSTANT(CONSUMER_WARPS, 8);
ASSERT_CONSTANT(PRODUCER_WARP_ROWS, 128);
ASSERT_CONSTANT(SHARED_BYTES, 229376);
ASSERT_CONSTANT(REDUCE_ROWS, 8);

ASSERT_STRUCT(GemmMixedInputArgs, 640);
ASSERT_FIELD(GemmMixedInputArgs, tensor_maps, TensorMap, 0, 384);
ASSERT_POINTER(GemmMixedInputArgs, x, 384, 8);
ASSERT_POINTER(GemmMixedInputArgs, row_scales, 392, 8);
ASSERT_POINTER(GemmMixedInputArgs, partials, 400, 8);
ASSERT_FIELD(GemmMixedInputArgs, items, EvenSplit, 408, 8);
ASSERT_FIELD(GemmMixedInputArgs, m, u32, 416, 4);
ASSERT_FIELD(GemmMixedInputArgs, k_blocks, u32, 420, 4);
ASSERT_FIELD(GemmMixedInputArgs, k_chunks, u32, 424, 4);
ASSERT_FIELD(GemmMixedInputArgs, n_weights, u32, 428, 4);
ASSERT_FIELD(GemmMixedInputArgs, gate_up, u32, 432, 4);
ASSERT_FIELD(GemmMixedInputArgs, padded_rows, u32, 436, 4);
ASSERT_FIELD(GemmMixedInputArgs, weights, GemmWeight, 440, 144);
ASSERT_FIELD(GemmMixedInputArgs, gelu, u32, 584, 4);
ASSERT_FIELD(GemmMixedInputArgs, first_block, u32, 588, 4);
ASSERT_FIELD(GemmMixedInputArgs, unused, u32, 592, 48);

ASSERT_STRUCT(GemmMixedInputPairArgs, 1344);
ASSERT_FIELD(GemmMixedInputPairArgs, gemms, GemmMixedInputArgs, 0, 1280);
ASSERT_FIELD(GemmMixedInputPairArgs, tiles, u32, 1280, 4);
ASSERT_FIELD(GemmMixedInputPairArgs, unused, u32, 1284, 60);
