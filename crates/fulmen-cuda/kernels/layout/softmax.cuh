// The layout of the structs and constants that src/kernels/softmax.rs shares with
// softmax.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(SoftmaxArgs, 24);
ASSERT_POINTER(SoftmaxArgs, x, 0, 8);
ASSERT_POINTER(SoftmaxArgs, out, 8, 8);
ASSERT_FIELD(SoftmaxArgs, width, u32, 16, 4);
ASSERT_FIELD(SoftmaxArgs, scale, float, 20, 4);
