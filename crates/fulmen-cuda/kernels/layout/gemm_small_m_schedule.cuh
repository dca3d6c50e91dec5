// The layout of the structs and constants that src/kernels/gemm_small_m/args.rs shares with
// gemm_small_m_schedule.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(MAX_WARPS, 12);
ASSERT_CONSTANT(WIDE_GATE_UP_WARPS, 11);
ASSERT_CONSTANT(MAX_CHUNKS, 52);
ASSERT_CONSTANT(MAX_STAGES, 4);
ASSERT_CONSTANT(TILE, 16);
ASSERT_CONSTANT(HEAD_PARTIALS_PER_TILE, 1);
ASSERT_CONSTANT(PARTIALS_OVERLAY_X, 2);

ASSERT_STRUCT(ForwardedInput, 40);
ASSERT_POINTER(ForwardedInput, flags, 0, 8);
ASSERT_POINTER(ForwardedInput, squares, 8, 8);
ASSERT_POINTER(ForwardedInput, x, 16, 8);
ASSERT_POINTER(ForwardedInput, gamma, 24, 8);
ASSERT_POINTER(ForwardedInput, normed, 32, 8);

ASSERT_STRUCT(ForwardedOutput, 40);
ASSERT_POINTER(ForwardedOutput, fragments, 0, 16);
ASSERT_POINTER(ForwardedOutput, flags, 16, 8);
ASSERT_POINTER(ForwardedOutput, squares, 24, 8);
ASSERT_POINTER(ForwardedOutput, gamma, 32, 8);

ASSERT_STRUCT(GemmSmallMArgs, 832);
ASSERT_FIELD(GemmSmallMArgs, tensor_maps, TensorMap, 0, 384);
ASSERT_POINTER(GemmSmallMArgs, x, 384, 16);
ASSERT_POINTER(GemmSmallMArgs, row_scales, 400, 8);
ASSERT_FIELD(GemmSmallMArgs, forwarded_in, ForwardedInput, 408, 40);
ASSERT_FIELD(GemmSmallMArgs, forwarded_out, ForwardedOutput, 448, 40);
ASSERT_FIELD(GemmSmallMArgs, m, u32, 488, 4);
ASSERT_FIELD(GemmSmallMArgs, k_blocks, u32, 492, 4);
ASSERT_FIELD(GemmSmallMArgs, k_chunks, u32, 496, 4);
ASSERT_FIELD(GemmSmallMArgs, n_weights, u32, 500, 4);
ASSERT_FIELD(GemmSmallMArgs, first_format_weights, u32, 504, 4);
ASSERT_FIELD(GemmSmallMArgs, first_format_clusters, u32, 508, 4);
ASSERT_FIELD(GemmSmallMArgs, tile_split, EvenSplit, 512, 16);
ASSERT_FIELD(GemmSmallMArgs, chunk_split, EvenSplit, 528, 8);
ASSERT_FIELD(GemmSmallMArgs, cluster_size, u32, 536, 4);
ASSERT_FIELD(GemmSmallMArgs, consumer_warps, u32, 540, 4);
ASSERT_FIELD(GemmSmallMArgs, stages, u32, 544, 4);
ASSERT_FIELD(GemmSmallMArgs, stage_bytes, u32, 548, 4);
ASSERT_FIELD(GemmSmallMArgs, x_bytes, u32, 552, 4);
ASSERT_FIELD(GemmSmallMArgs, cluster_partials, u32, 556, 4);
ASSERT_FIELD(GemmSmallMArgs, epsilon, float, 560, 4);
ASSERT_FIELD(GemmSmallMArgs, n_tensor_maps, u32, 564, 4);
ASSERT_FIELD(GemmSmallMArgs, weights, GemmWeight, 568, 144);
ASSERT_FIELD(GemmSmallMArgs, prefetch, L2Prefetch, 712, 72);
ASSERT_FIELD(GemmSmallMArgs, gelu, u32, 784, 4);
ASSERT_FIELD(GemmSmallMArgs, unused, u32, 788, 44);
