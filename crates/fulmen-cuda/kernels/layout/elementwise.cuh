// The layout of the structs and constants that src/kernels/elementwise.rs shares with
// elementwise.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(ElementwiseArgs, 40);
ASSERT_POINTER(ElementwiseArgs, a, 0, 8);
ASSERT_POINTER(ElementwiseArgs, b, 8, 8);
ASSERT_POINTER(ElementwiseArgs, out, 16, 8);
ASSERT_FIELD(ElementwiseArgs, n, u64, 24, 8);
ASSERT_FIELD(ElementwiseArgs, scalar, float, 32, 4);
ASSERT_FIELD(ElementwiseArgs, vectorized, u32, 36, 4);
