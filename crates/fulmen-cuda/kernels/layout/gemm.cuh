// The layout of the structs and constants that src/kernels/gemm/mod.rs shares with
// gemm.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(PANEL, 64);
ASSERT_CONSTANT(PANEL_ROW_BYTES, 128);
ASSERT_CONSTANT(MAX_OUTPUTS, 4);

ASSERT_STRUCT(GemmOutput, 32);
ASSERT_POINTER(GemmOutput, out, 0, 8);
ASSERT_POINTER(GemmOutput, bias, 8, 8);
ASSERT_POINTER(GemmOutput, residual, 16, 8);
ASSERT_FIELD(GemmOutput, n, u32, 24, 4);
ASSERT_FIELD(GemmOutput, w_row, u32, 28, 4);

ASSERT_STRUCT(GemmArgs, 184);
ASSERT_POINTER(GemmArgs, x, 0, 8);
ASSERT_POINTER(GemmArgs, w, 8, 8);
ASSERT_POINTER(GemmArgs, row_scales, 16, 8);
ASSERT_FIELD(GemmArgs, outputs, GemmOutput, 24, 128);
ASSERT_FIELD(GemmArgs, m, u32, 152, 4);
ASSERT_FIELD(GemmArgs, x_rows, u32, 156, 4);
ASSERT_FIELD(GemmArgs, w_rows, u32, 160, 4);
ASSERT_FIELD(GemmArgs, k_panels, u32, 164, 4);
ASSERT_FIELD(GemmArgs, passes, u32, 168, 4);
ASSERT_FIELD(GemmArgs, n_outputs, u32, 172, 4);
ASSERT_FIELD(GemmArgs, vectorized, u32, 176, 4);
ASSERT_FIELD(GemmArgs, gelu, u32, 180, 4);
