// The layout of the structs and constants that src/kernels/expert_gemm.rs shares with
// expert_gemm.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(TILE_M, 64);
ASSERT_CONSTANT(TILE_N, 128);
ASSERT_CONSTANT(K_STEP, 64);
ASSERT_CONSTANT(THREADS, 256);

ASSERT_STRUCT(ExpertPackArgs, 32);
ASSERT_POINTER(ExpertPackArgs, x, 0, 8);
ASSERT_POINTER(ExpertPackArgs, out, 8, 8);
ASSERT_FIELD(ExpertPackArgs, rows, u32, 16, 4);
ASSERT_FIELD(ExpertPackArgs, k, u32, 20, 4);
ASSERT_FIELD(ExpertPackArgs, pitch, u32, 24, 4);
ASSERT_FIELD(ExpertPackArgs, aligned, u32, 28, 4);

ASSERT_STRUCT(ExpertGemmArgs, 104);
ASSERT_POINTER(ExpertGemmArgs, x, 0, 8);
ASSERT_POINTER(ExpertGemmArgs, w, 8, 8);
ASSERT_POINTER(ExpertGemmArgs, ids, 16, 8);
ASSERT_POINTER(ExpertGemmArgs, order, 24, 8);
ASSERT_POINTER(ExpertGemmArgs, tiles, 32, 8);
ASSERT_POINTER(ExpertGemmArgs, bias, 40, 8);
ASSERT_POINTER(ExpertGemmArgs, gate, 48, 8);
ASSERT_POINTER(ExpertGemmArgs, weights, 56, 8);
ASSERT_POINTER(ExpertGemmArgs, out, 64, 8);
ASSERT_FIELD(ExpertGemmArgs, activation, GatedActivation, 72, 16);
ASSERT_FIELD(ExpertGemmArgs, n, u32, 88, 4);
ASSERT_FIELD(ExpertGemmArgs, k, u32, 92, 4);
ASSERT_FIELD(ExpertGemmArgs, pairs_per_row_of_x, u32, 96, 4);
ASSERT_FIELD(ExpertGemmArgs, unused, u32, 100, 4);
