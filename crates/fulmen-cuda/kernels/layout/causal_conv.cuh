// The layout of the structs and constants that src/kernels/causal_conv.rs shares with
// causal_conv.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(CausalConvArgs, 120);
ASSERT_POINTER(CausalConvArgs, x, 0, 8);
ASSERT_POINTER(CausalConvArgs, weight, 8, 8);
ASSERT_POINTER(CausalConvArgs, state, 16, 8);
ASSERT_POINTER(CausalConvArgs, y, 24, 8);
ASSERT_FIELD(CausalConvArgs, rows, StateRows, 32, 32);
ASSERT_FIELD(CausalConvArgs, starts, WalkStarts, 64, 8);
ASSERT_FIELD(CausalConvArgs, chunks, SequenceChunks, 72, 40);
ASSERT_FIELD(CausalConvArgs, channels, u32, 112, 4);
ASSERT_FIELD(CausalConvArgs, unused, u32, 116, 4);
