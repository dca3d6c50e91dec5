// The layout of the structs and constants that src/kernels/expert_generic.rs shares with
// expert_generic.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(ExpertGenericArgs, 104);
ASSERT_POINTER(ExpertGenericArgs, x, 0, 8);
ASSERT_POINTER(ExpertGenericArgs, w, 8, 8);
ASSERT_POINTER(ExpertGenericArgs, ids, 16, 8);
ASSERT_POINTER(ExpertGenericArgs, bias, 24, 8);
ASSERT_POINTER(ExpertGenericArgs, gate, 32, 8);
ASSERT_POINTER(ExpertGenericArgs, weights, 40, 8);
ASSERT_POINTER(ExpertGenericArgs, out, 48, 8);
ASSERT_POINTER(ExpertGenericArgs, fault, 56, 8);
ASSERT_FIELD(ExpertGenericArgs, activation, GatedActivation, 64, 16);
ASSERT_FIELD(ExpertGenericArgs, n, u32, 80, 4);
ASSERT_FIELD(ExpertGenericArgs, k, u32, 84, 4);
ASSERT_FIELD(ExpertGenericArgs, n_experts, u32, 88, 4);
ASSERT_FIELD(ExpertGenericArgs, top_k, u32, 92, 4);
ASSERT_FIELD(ExpertGenericArgs, pairs_per_row_of_x, u32, 96, 4);
ASSERT_FIELD(ExpertGenericArgs, aligned, u32, 100, 4);

ASSERT_STRUCT(ExpertSumArgs, 40);
ASSERT_POINTER(ExpertSumArgs, pairs, 0, 8);
ASSERT_POINTER(ExpertSumArgs, ids, 8, 8);
ASSERT_POINTER(ExpertSumArgs, residual, 16, 8);
ASSERT_POINTER(ExpertSumArgs, out, 24, 8);
ASSERT_FIELD(ExpertSumArgs, n, u32, 32, 4);
ASSERT_FIELD(ExpertSumArgs, top_k, u32, 36, 4);
