// The layout of the structs and constants that src/kernels/route.rs shares with
// route.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(WARPS, 4);

ASSERT_STRUCT(RouteArgs, 80);
ASSERT_POINTER(RouteArgs, logits, 0, 8);
ASSERT_POINTER(RouteArgs, weights, 8, 8);
ASSERT_POINTER(RouteArgs, ids, 16, 8);
ASSERT_FIELD(RouteArgs, rule, RouteRule, 24, 48);
ASSERT_FIELD(RouteArgs, m, u32, 72, 4);
ASSERT_FIELD(RouteArgs, unused, u32, 76, 4);
