// The layout of the structs and constants that src/kernels/divided_norm.rs shares with
// divided_norm.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(MeanSquaresArgs, 32);
ASSERT_POINTER(MeanSquaresArgs, a, 0, 8);
ASSERT_POINTER(MeanSquaresArgs, b, 8, 8);
ASSERT_POINTER(MeanSquaresArgs, means, 16, 8);
ASSERT_FIELD(MeanSquaresArgs, width_a, u32, 24, 4);
ASSERT_FIELD(MeanSquaresArgs, width_b, u32, 28, 4);

ASSERT_STRUCT(RmsScaleArgs, 64);
ASSERT_POINTER(RmsScaleArgs, x, 0, 8);
ASSERT_POINTER(RmsScaleArgs, means, 8, 8);
ASSERT_POINTER(RmsScaleArgs, gamma, 16, 8);
ASSERT_POINTER(RmsScaleArgs, out, 24, 8);
ASSERT_FIELD(RmsScaleArgs, n, u64, 32, 8);
ASSERT_FIELD(RmsScaleArgs, width, u32, 40, 4);
ASSERT_FIELD(RmsScaleArgs, columns, u32, 44, 4);
ASSERT_FIELD(RmsScaleArgs, column, u32, 48, 4);
ASSERT_FIELD(RmsScaleArgs, ranks, u32, 52, 4);
ASSERT_FIELD(RmsScaleArgs, epsilon, float, 56, 4);
ASSERT_FIELD(RmsScaleArgs, unused, u32, 60, 4);
