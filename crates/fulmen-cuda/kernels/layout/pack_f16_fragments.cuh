// The layout of the structs and constants that src/kernels/pack_f16_fragments.rs shares with
// pack_f16_fragments.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(PackF16FragmentsArgs, 72);
ASSERT_POINTER(PackF16FragmentsArgs, x, 0, 8);
ASSERT_POINTER(PackF16FragmentsArgs, gamma, 8, 8);
ASSERT_POINTER(PackF16FragmentsArgs, normed, 16, 8);
ASSERT_POINTER(PackF16FragmentsArgs, packed, 24, 16);
ASSERT_POINTER(PackF16FragmentsArgs, row_scales, 40, 8);
ASSERT_FIELD(PackF16FragmentsArgs, epsilon, float, 48, 4);
ASSERT_FIELD(PackF16FragmentsArgs, k, u32, 52, 4);
ASSERT_FIELD(PackF16FragmentsArgs, m, u32, 56, 4);
ASSERT_FIELD(PackF16FragmentsArgs, panel_rows, u32, 60, 4);
ASSERT_FIELD(PackF16FragmentsArgs, panel_orders, u32, 64, 8);
