// The layout of the structs and constants that src/kernels/gemv.rs shares with
// gemv.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(WARPS, 12);
ASSERT_CONSTANT(MAX_STAGES, 2);
ASSERT_CONSTANT(MAX_WEIGHTS, 4);
ASSERT_CONSTANT(MAX_Q8_RESULTS, 256);
ASSERT_CONSTANT(SEGMENT_UNITS, 64);

ASSERT_STRUCT(GemvWeight, 48);
ASSERT_POINTER(GemvWeight, data, 0, 8);
ASSERT_POINTER(GemvWeight, out, 8, 8);
ASSERT_POINTER(GemvWeight, bias, 16, 8);
ASSERT_POINTER(GemvWeight, residual, 24, 8);
ASSERT_FIELD(GemvWeight, rows, u32, 32, 4);
ASSERT_FIELD(GemvWeight, row_bytes, u32, 36, 4);
ASSERT_FIELD(GemvWeight, rows_per_block, u32, 40, 4);
ASSERT_FIELD(GemvWeight, unused, u32, 44, 4);

ASSERT_STRUCT(GemvArgs, 272);
ASSERT_POINTER(GemvArgs, x, 0, 8);
ASSERT_POINTER(GemvArgs, x_q8, 8, 8);
ASSERT_POINTER(GemvArgs, out_q8, 16, 8);
ASSERT_POINTER(GemvArgs, gamma, 24, 8);
ASSERT_POINTER(GemvArgs, normed, 32, 8);
ASSERT_FIELD(GemvArgs, epsilon, float, 40, 4);
ASSERT_FIELD(GemvArgs, inverse_k, float, 44, 4);
ASSERT_FIELD(GemvArgs, k, u32, 48, 4);
ASSERT_FIELD(GemvArgs, n_weights, u32, 52, 4);
ASSERT_FIELD(GemvArgs, first_format_weights, u32, 56, 4);
ASSERT_FIELD(GemvArgs, first_format_warps, u32, 60, 4);
ASSERT_FIELD(GemvArgs, stage_bytes, u32, 64, 4);
ASSERT_FIELD(GemvArgs, segments, u32, 68, 4);
ASSERT_FIELD(GemvArgs, stages, u32, 72, 4);
ASSERT_FIELD(GemvArgs, gelu, u32, 76, 4);
ASSERT_FIELD(GemvArgs, weights, GemvWeight, 80, 192);
