// The layout of the structs and constants that src/kernels/rms_norm.rs shares with
// rms_norm.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(RmsNormArgs, 56);
ASSERT_POINTER(RmsNormArgs, a, 0, 8);
ASSERT_POINTER(RmsNormArgs, b, 8, 8);
ASSERT_POINTER(RmsNormArgs, gamma, 16, 8);
ASSERT_POINTER(RmsNormArgs, sum, 24, 8);
ASSERT_POINTER(RmsNormArgs, out, 32, 8);
ASSERT_FIELD(RmsNormArgs, width, u32, 40, 4);
ASSERT_FIELD(RmsNormArgs, epsilon, float, 44, 4);
ASSERT_FIELD(RmsNormArgs, vectorized, u32, 48, 4);
ASSERT_FIELD(RmsNormArgs, unused, u32, 52, 4);
