// The layout of the structs and constants that src/kernels/gemm/activations.rs shares with
// gemm_activations.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(GemmActivationsArgs, 40);
ASSERT_POINTER(GemmActivationsArgs, x, 0, 8);
ASSERT_POINTER(GemmActivationsArgs, out, 8, 8);
ASSERT_POINTER(GemmActivationsArgs, row_scales, 16, 8);
ASSERT_FIELD(GemmActivationsArgs, k, u32, 24, 4);
ASSERT_FIELD(GemmActivationsArgs, k_panels, u32, 28, 4);
ASSERT_FIELD(GemmActivationsArgs, rows, u32, 32, 4);
ASSERT_FIELD(GemmActivationsArgs, aligned, u32, 36, 4);
