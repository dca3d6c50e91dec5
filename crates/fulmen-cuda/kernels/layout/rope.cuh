// The layout of the structs and constants that src/kernels/rope.rs shares with
// rope.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(RopeArgs, 32);
ASSERT_FIELD(RopeArgs, log2_base, double, 0, 8);
ASSERT_POINTER(RopeArgs, freq_factors, 8, 8);
ASSERT_FIELD(RopeArgs, freq_scale, float, 16, 4);
ASSERT_FIELD(RopeArgs, magnitude, float, 20, 4);
ASSERT_FIELD(RopeArgs, n_rot, u32, 24, 4);
ASSERT_FIELD(RopeArgs, neox, u32, 28, 4);

ASSERT_STRUCT(RopeKernelArgs, 80);
ASSERT_POINTER(RopeKernelArgs, x, 0, 8);
ASSERT_POINTER(RopeKernelArgs, positions, 8, 8);
ASSERT_POINTER(RopeKernelArgs, out, 16, 8);
ASSERT_FIELD(RopeKernelArgs, rope, RopeArgs, 24, 32);
ASSERT_FIELD(RopeKernelArgs, n_heads, u32, 56, 4);
ASSERT_FIELD(RopeKernelArgs, head_dim, u32, 60, 4);
ASSERT_FIELD(RopeKernelArgs, heads_per_block, u32, 64, 4);
ASSERT_FIELD(RopeKernelArgs, head_groups, u32, 68, 4);
ASSERT_FIELD(RopeKernelArgs, chunks, u32, 72, 4);
ASSERT_FIELD(RopeKernelArgs, unused, u32, 76, 4);
