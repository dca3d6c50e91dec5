// The layout of the structs and constants that src/kernels/pack_f16_fragments.rs shares with
// pack_f16_fragments.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(PackF16FragmentsArgs, 72);
ASSERT_POINTER(PackF16FragmentsArgs, x, 0, 8);
ASSERT_FIELD(PackF16FragmentsArgs, row, PackRowArgs, 8, 56);
ASSERT_FIELD(PackF16FragmentsArgs, k, u32, 64, 4);
ASSERT_FIELD(PackF16FragmentsArgs, m, u32, 68, 4);
