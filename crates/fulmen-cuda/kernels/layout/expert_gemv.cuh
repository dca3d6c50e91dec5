// The layout of the structs and constants that src/kernels/expert_gemv.rs shares with
// expert_gemv.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(WARPS, 12);
ASSERT_CONSTANT(MAX_STAGES, 2);
ASSERT_CONSTANT(MAX_RESULTS, 1024);
ASSERT_CONSTANT(MAX_Q8_ROWS, 128);
ASSERT_CONSTANT(MAX_EXPERTS_PER_ROW, 32);

ASSERT_STRUCT(ExpertGemvArgs, 152);
ASSERT_POINTER(ExpertGemvArgs, x, 0, 8);
ASSERT_POINTER(ExpertGemvArgs, x_q8, 8, 8);
ASSERT_POINTER(ExpertGemvArgs, out_q8, 16, 8);
ASSERT_POINTER(ExpertGemvArgs, ids, 24, 8);
ASSERT_POINTER(ExpertGemvArgs, weights, 32, 8);
ASSERT_POINTER(ExpertGemvArgs, w, 40, 8);
ASSERT_POINTER(ExpertGemvArgs, up, 48, 8);
ASSERT_POINTER(ExpertGemvArgs, bias, 56, 8);
ASSERT_POINTER(ExpertGemvArgs, up_bias, 64, 8);
ASSERT_POINTER(ExpertGemvArgs, residual, 72, 8);
ASSERT_POINTER(ExpertGemvArgs, out, 80, 8);
ASSERT_POINTER(ExpertGemvArgs, fault, 88, 8);
ASSERT_FIELD(ExpertGemvArgs, expert_bytes, u64, 96, 8);
ASSERT_FIELD(ExpertGemvArgs, activation, GatedActivation, 104, 16);
ASSERT_FIELD(ExpertGemvArgs, n, u32, 120, 4);
ASSERT_FIELD(ExpertGemvArgs, k, u32, 124, 4);
ASSERT_FIELD(ExpertGemvArgs, top_k, u32, 128, 4);
ASSERT_FIELD(ExpertGemvArgs, n_experts, u32, 132, 4);
ASSERT_FIELD(ExpertGemvArgs, row_bytes, u32, 136, 4);
ASSERT_FIELD(ExpertGemvArgs, rows_per_block, u32, 140, 4);
ASSERT_FIELD(ExpertGemvArgs, stage_bytes, u32, 144, 4);
ASSERT_FIELD(ExpertGemvArgs, stages, u32, 148, 4);
