// The layout of the structs and constants that src/kernels/pack_row.rs shares with
// pack_row.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(PackRowArgs, 56);
ASSERT_POINTER(PackRowArgs, gamma, 0, 8);
ASSERT_POINTER(PackRowArgs, normed, 8, 8);
ASSERT_POINTER(PackRowArgs, packed, 16, 16);
ASSERT_POINTER(PackRowArgs, row_scales, 32, 8);
ASSERT_FIELD(PackRowArgs, epsilon, float, 40, 4);
ASSERT_FIELD(PackRowArgs, panel_rows, u32, 44, 4);
ASSERT_FIELD(PackRowArgs, panel_orders, u32, 48, 8);
