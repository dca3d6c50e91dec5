// The layout of the structs and constants that src/kernels/routing.rs shares with
// routing.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(SOFTMAX, 0);
ASSERT_CONSTANT(SIGMOID, 1);
ASSERT_CONSTANT(SELECTED_SOFTMAX, 2);

ASSERT_STRUCT(RouteRule, 48);
ASSERT_POINTER(RouteRule, bias, 0, 8);
ASSERT_FIELD(RouteRule, n_experts, u32, 8, 4);
ASSERT_FIELD(RouteRule, top_k, u32, 12, 4);
ASSERT_FIELD(RouteRule, scores, u32, 16, 4);
ASSERT_FIELD(RouteRule, renormalize, u32, 20, 4);
ASSERT_FIELD(RouteRule, scale, float, 24, 4);
ASSERT_FIELD(RouteRule, first, u32, 28, 4);
ASSERT_FIELD(RouteRule, held, u32, 32, 4);
ASSERT_FIELD(RouteRule, groups, u32, 36, 4);
ASSERT_FIELD(RouteRule, groups_used, u32, 40, 4);
ASSERT_FIELD(RouteRule, unused, u32, 44, 4);
