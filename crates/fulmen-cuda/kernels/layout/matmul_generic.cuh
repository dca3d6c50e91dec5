// The layout of the structs and constants that src/kernels/matmul_generic.rs shares with
// matmul_generic.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(TILE, 64);

ASSERT_STRUCT(MatmulGenericArgs, 56);
ASSERT_POINTER(MatmulGenericArgs, x, 0, 8);
ASSERT_POINTER(MatmulGenericArgs, w, 8, 8);
ASSERT_POINTER(MatmulGenericArgs, bias, 16, 8);
ASSERT_POINTER(MatmulGenericArgs, residual, 24, 8);
ASSERT_POINTER(MatmulGenericArgs, out, 32, 8);
ASSERT_FIELD(MatmulGenericArgs, m, u32, 40, 4);
ASSERT_FIELD(MatmulGenericArgs, n, u32, 44, 4);
ASSERT_FIELD(MatmulGenericArgs, k, u32, 48, 4);
ASSERT_FIELD(MatmulGenericArgs, aligned, u32, 52, 4);
