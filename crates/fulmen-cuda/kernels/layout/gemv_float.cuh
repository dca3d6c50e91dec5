// The layout of the structs and constants that src/kernels/gemv_float.rs shares with
// gemv_float.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(WARPS, 14);
ASSERT_CONSTANT(RING_STAGES, 3);
ASSERT_CONSTANT(MAX_WEIGHTS, 3);
ASSERT_CONSTANT(GROUP_ROWS, 4);
ASSERT_CONSTANT(SEGMENT_BYTES, 1024);
ASSERT_CONSTANT(STAGE_BYTES, 4096);
ASSERT_CONSTANT(STEP_BYTES, 512);

ASSERT_STRUCT(GemvFloatWeight, 48);
ASSERT_POINTER(GemvFloatWeight, data, 0, 8);
ASSERT_POINTER(GemvFloatWeight, out, 8, 8);
ASSERT_POINTER(GemvFloatWeight, bias, 16, 8);
ASSERT_POINTER(GemvFloatWeight, residual, 24, 8);
ASSERT_FIELD(GemvFloatWeight, rows, u32, 32, 4);
ASSERT_FIELD(GemvFloatWeight, rows_per_block, u32, 36, 4);
ASSERT_FIELD(GemvFloatWeight, first_group, u32, 40, 4);
ASSERT_FIELD(GemvFloatWeight, unused, u32, 44, 4);

ASSERT_STRUCT(GemvFloatArgs, 224);
ASSERT_POINTER(GemvFloatArgs, x, 0, 8);
ASSERT_POINTER(GemvFloatArgs, gamma, 8, 8);
ASSERT_POINTER(GemvFloatArgs, normed, 16, 8);
ASSERT_FIELD(GemvFloatArgs, epsilon, float, 24, 4);
ASSERT_FIELD(GemvFloatArgs, inverse_k, float, 28, 4);
ASSERT_FIELD(GemvFloatArgs, k, u32, 32, 4);
ASSERT_FIELD(GemvFloatArgs, x_pitch, u32, 36, 4);
ASSERT_FIELD(GemvFloatArgs, row_bytes, u32, 40, 4);
ASSERT_FIELD(GemvFloatArgs, n_weights, u32, 44, 4);
ASSERT_FIELD(GemvFloatArgs, gate_up, u32, 48, 4);
ASSERT_FIELD(GemvFloatArgs, groups, u32, 52, 4);
ASSERT_FIELD(GemvFloatArgs, segments, u32, 56, 4);
ASSERT_FIELD(GemvFloatArgs, task_segments, u32, 60, 4);
ASSERT_FIELD(GemvFloatArgs, splits, u32, 64, 4);
ASSERT_FIELD(GemvFloatArgs, warps, u32, 68, 4);
ASSERT_FIELD(GemvFloatArgs, stages, u32, 72, 4);
ASSERT_FIELD(GemvFloatArgs, gelu, u32, 76, 4);
ASSERT_FIELD(GemvFloatArgs, weights, GemvFloatWeight, 80, 144);
