// The layout of the structs and constants that src/kernels/gemm_q8.rs shares with
// gemm_q8.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(MAX_WARPS, 16);
ASSERT_CONSTANT(MAX_TEAMS, 4);
ASSERT_CONSTANT(MAX_STAGES, 4);
ASSERT_CONSTANT(MAX_WEIGHTS, 3);
ASSERT_CONSTANT(MAX_ROWS, 8);
ASSERT_CONSTANT(TASK_ROWS, 32);
ASSERT_CONSTANT(MAX_Q8_RESULTS, 256);

ASSERT_STRUCT(GemmQ8Weight, 48);
ASSERT_POINTER(GemmQ8Weight, data, 0, 8);
ASSERT_POINTER(GemmQ8Weight, out, 8, 8);
ASSERT_POINTER(GemmQ8Weight, bias, 16, 8);
ASSERT_POINTER(GemmQ8Weight, residual, 24, 8);
ASSERT_FIELD(GemmQ8Weight, rows, u32, 32, 4);
ASSERT_FIELD(GemmQ8Weight, row_bytes, u32, 36, 4);
ASSERT_FIELD(GemmQ8Weight, first_task, u32, 40, 4);
ASSERT_FIELD(GemmQ8Weight, unused, u32, 44, 4);

ASSERT_STRUCT(GemmQ8Args, 320);
ASSERT_POINTER(GemmQ8Args, x, 0, 8);
ASSERT_POINTER(GemmQ8Args, x_q8, 8, 8);
ASSERT_POINTER(GemmQ8Args, out_q8, 16, 8);
ASSERT_POINTER(GemmQ8Args, gamma, 24, 8);
ASSERT_POINTER(GemmQ8Args, normed, 32, 8);
ASSERT_FIELD(GemmQ8Args, epsilon, float, 40, 4);
ASSERT_FIELD(GemmQ8Args, inverse_k, float, 44, 4);
ASSERT_FIELD(GemmQ8Args, k, u32, 48, 4);
ASSERT_FIELD(GemmQ8Args, m, u32, 52, 4);
ASSERT_FIELD(GemmQ8Args, x_rows, u32, 56, 4);
ASSERT_FIELD(GemmQ8Args, first_format_weights, u32, 60, 4);
ASSERT_FIELD(GemmQ8Args, n_weights, u32, 64, 4);
ASSERT_FIELD(GemmQ8Args, tasks, u32, 68, 4);
ASSERT_FIELD(GemmQ8Args, tasks_per_block, u32, 72, 4);
ASSERT_FIELD(GemmQ8Args, team_shift, u32, 76, 4);
ASSERT_FIELD(GemmQ8Args, segment_halves, u32, 80, 4);
ASSERT_FIELD(GemmQ8Args, segments, u32, 84, 4);
ASSERT_FIELD(GemmQ8Args, stages, u32, 88, 4);
ASSERT_FIELD(GemmQ8Args, stage_bytes, u32, 92, 4);
ASSERT_FIELD(GemmQ8Args, pitch, u32, 96, 4);
ASSERT_FIELD(GemmQ8Args, teams, u32, 100, 4);
ASSERT_FIELD(GemmQ8Args, weights, GemmQ8Weight, 104, 144);
ASSERT_FIELD(GemmQ8Args, prefetch, L2Prefetch, 248, 72);
