// The layout of the structs and constants that src/kernels/experts.rs shares with
// experts.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(SWIGLU, 0);
ASSERT_CONSTANT(GEGLU, 1);
ASSERT_CONSTANT(CLAMPED_SWIGLU, 2);

ASSERT_STRUCT(GatedActivation, 16);
ASSERT_FIELD(GatedActivation, kind, u32, 0, 4);
ASSERT_FIELD(GatedActivation, alpha, float, 4, 4);
ASSERT_FIELD(GatedActivation, limit, float, 8, 4);
ASSERT_FIELD(GatedActivation, unused, u32, 12, 4);
