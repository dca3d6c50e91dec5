// The layout of the structs and constants that src/kernels/q8_rows.rs shares with
// q8_rows.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(Q8_ROWS_UNIT_BYTES, 96);
ASSERT_CONSTANT(Q8_ROWS_HALF, 128);
