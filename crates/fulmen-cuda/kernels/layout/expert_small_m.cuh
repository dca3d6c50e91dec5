// The layout of the structs and constants that src/kernels/expert_small_m.rs shares with
// expert_small_m.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(WARPS, 8);
ASSERT_CONSTANT(THREADS, 256);
ASSERT_CONSTANT(WARP_ROWS, 16);
ASSERT_CONSTANT(ROW_CHUNK_BYTES, 512);
ASSERT_CONSTANT(ROW_PADDING, 32);

ASSERT_STRUCT(ExpertPrepareArgs, 128);
ASSERT_FIELD(ExpertPrepareArgs, sort, ExpertSortArgs, 0, 56);
ASSERT_POINTER(ExpertPrepareArgs, x, 56, 8);
ASSERT_FIELD(ExpertPrepareArgs, row, PackRowArgs, 64, 56);
ASSERT_FIELD(ExpertPrepareArgs, k, u32, 120, 4);
ASSERT_FIELD(ExpertPrepareArgs, unused, u32, 124, 4);

ASSERT_STRUCT(ExpertSmallMArgs, 120);
ASSERT_POINTER(ExpertSmallMArgs, x, 0, 8);
ASSERT_POINTER(ExpertSmallMArgs, row_scales, 8, 8);
ASSERT_POINTER(ExpertSmallMArgs, w, 16, 16);
ASSERT_POINTER(ExpertSmallMArgs, bias, 32, 16);
ASSERT_POINTER(ExpertSmallMArgs, order, 48, 8);
ASSERT_POINTER(ExpertSmallMArgs, tiles, 56, 8);
ASSERT_POINTER(ExpertSmallMArgs, weights, 64, 8);
ASSERT_POINTER(ExpertSmallMArgs, out, 72, 8);
ASSERT_FIELD(ExpertSmallMArgs, activation, GatedActivation, 80, 16);
ASSERT_FIELD(ExpertSmallMArgs, n, u32, 96, 4);
ASSERT_FIELD(ExpertSmallMArgs, k, u32, 100, 4);
ASSERT_FIELD(ExpertSmallMArgs, row_bytes, u32, 104, 4);
ASSERT_FIELD(ExpertSmallMArgs, k_chunks, u32, 108, 4);
ASSERT_FIELD(ExpertSmallMArgs, x_rows, u32, 112, 4);
ASSERT_FIELD(ExpertSmallMArgs, pairs_per_row_of_x, u32, 116, 4);
