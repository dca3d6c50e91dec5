// The layout of the structs and constants that src/kernels/delta_heads.rs shares with
// delta_heads.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(DeltaHeads, 16);
ASSERT_FIELD(DeltaHeads, n_k_heads, u32, 0, 4);
ASSERT_FIELD(DeltaHeads, n_v_heads, u32, 4, 4);
ASSERT_FIELD(DeltaHeads, head_dim, u32, 8, 4);
ASSERT_FIELD(DeltaHeads, key_head_modulo, u32, 12, 4);
