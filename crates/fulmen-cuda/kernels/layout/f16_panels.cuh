// The layout of the structs and constants that src/kernels/f16_panels.rs shares with
// f16_panels.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(PANEL_Q4_K, 0);
ASSERT_CONSTANT(PANEL_Q4_0, 1);
ASSERT_CONSTANT(PANEL_Q6_K, 2);
ASSERT_CONSTANT(PANEL_Q8_0, 3);
