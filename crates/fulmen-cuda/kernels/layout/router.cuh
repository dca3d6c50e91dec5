// The layout of the structs and constants that src/kernels/router.rs shares with
// router.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(CLUSTER, 8);
ASSERT_CONSTANT(WARPS, 16);
ASSERT_CONSTANT(GROUP, 16);
ASSERT_CONSTANT(MAX_K, 8192);
ASSERT_CONSTANT(MAX_ROUTED, 512);

ASSERT_STRUCT(RouterArgs, 144);
ASSERT_POINTER(RouterArgs, x, 0, 8);
ASSERT_POINTER(RouterArgs, gamma, 8, 8);
ASSERT_POINTER(RouterArgs, normed, 16, 8);
ASSERT_POINTER(RouterArgs, normed_q8, 24, 8);
ASSERT_POINTER(RouterArgs, w, 32, 8);
ASSERT_POINTER(RouterArgs, bias, 40, 8);
ASSERT_POINTER(RouterArgs, logits, 48, 8);
ASSERT_POINTER(RouterArgs, weights, 56, 8);
ASSERT_POINTER(RouterArgs, ids, 64, 8);
ASSERT_FIELD(RouterArgs, rule, RouteRule, 72, 48);
ASSERT_FIELD(RouterArgs, epsilon, float, 120, 4);
ASSERT_FIELD(RouterArgs, inverse_k, float, 124, 4);
ASSERT_FIELD(RouterArgs, k, u32, 128, 4);
ASSERT_FIELD(RouterArgs, rows_per_block, u32, 132, 4);
ASSERT_FIELD(RouterArgs, held_rows, u32, 136, 4);
ASSERT_FIELD(RouterArgs, unused, u32, 140, 4);
