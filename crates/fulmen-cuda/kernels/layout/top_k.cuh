// The layout of the structs and constants that src/kernels/top_k.rs shares with
// top_k.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(PART, 4096);
ASSERT_CONSTANT(PART_THREADS, 1024);
ASSERT_CONSTANT(MAX_PARTS, 1024);

ASSERT_STRUCT(TopKArgs, 48);
ASSERT_POINTER(TopKArgs, x, 0, 8);
ASSERT_POINTER(TopKArgs, values, 8, 8);
ASSERT_POINTER(TopKArgs, indices, 16, 8);
ASSERT_POINTER(TopKArgs, part_keys, 24, 8);
ASSERT_FIELD(TopKArgs, width, u32, 32, 4);
ASSERT_FIELD(TopKArgs, parts, u32, 36, 4);
ASSERT_FIELD(TopKArgs, k, u32, 40, 4);
ASSERT_FIELD(TopKArgs, first, u32, 44, 4);
