// The layout of the structs and constants that src/kernels/gemm/dequantize.rs shares with
// dequantize.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(DequantizeArgs, 40);
ASSERT_POINTER(DequantizeArgs, w, 0, 8);
ASSERT_POINTER(DequantizeArgs, out, 8, 8);
ASSERT_FIELD(DequantizeArgs, n, u32, 16, 4);
ASSERT_FIELD(DequantizeArgs, k, u32, 20, 4);
ASSERT_FIELD(DequantizeArgs, k_panels, u32, 24, 4);
ASSERT_FIELD(DequantizeArgs, rows, u32, 28, 4);
ASSERT_FIELD(DequantizeArgs, first, u32, 32, 4);
ASSERT_FIELD(DequantizeArgs, step, u32, 36, 4);
