// The layout of the structs and constants that src/kernels/gemm_weight.rs shares with
// gemm_weight.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(MAX_WEIGHTS, 3);

ASSERT_STRUCT(GemmWeight, 48);
ASSERT_POINTER(GemmWeight, data, 0, 8);
ASSERT_POINTER(GemmWeight, out, 8, 8);
ASSERT_POINTER(GemmWeight, bias, 16, 8);
ASSERT_POINTER(GemmWeight, residual, 24, 8);
ASSERT_FIELD(GemmWeight, rows, u32, 32, 4);
ASSERT_FIELD(GemmWeight, row_bytes, u32, 36, 4);
ASSERT_FIELD(GemmWeight, first_tile, u32, 40, 4);
ASSERT_FIELD(GemmWeight, vectorized, u32, 44, 4);
