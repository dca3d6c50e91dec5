// The layout of the structs and constants that src/kernels/argmax.rs shares with
// argmax.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(ArgmaxArgs, 40);
ASSERT_POINTER(ArgmaxArgs, x, 0, 8);
ASSERT_POINTER(ArgmaxArgs, part_keys, 8, 8);
ASSERT_POINTER(ArgmaxArgs, out, 16, 8);
ASSERT_FIELD(ArgmaxArgs, width, u32, 24, 4);
ASSERT_FIELD(ArgmaxArgs, part_width, u32, 28, 4);
ASSERT_FIELD(ArgmaxArgs, parts, u32, 32, 4);
ASSERT_FIELD(ArgmaxArgs, unused, u32, 36, 4);
