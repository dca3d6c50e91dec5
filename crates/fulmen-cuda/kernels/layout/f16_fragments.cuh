// The layout of the structs and constants that src/kernels/f16_fragments.rs shares with
// f16_fragments.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(K_CHUNK, 256);
ASSERT_CONSTANT(K_SLICE, 16);
ASSERT_CONSTANT(K_INTERLEAVED, 0);
ASSERT_CONSTANT(K_CONTIGUOUS, 1);
ASSERT_CONSTANT(K_ORDERS, 2);
