// The layout of the structs and constants that src/kernels/gated_delta_rule.rs shares with
// gated_delta_rule.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(COLUMNS, 32);
ASSERT_CONSTANT(THREADS, 128);

ASSERT_STRUCT(GatedDeltaRuleArgs, 120);
ASSERT_POINTER(GatedDeltaRuleArgs, x, 0, 8);
ASSERT_POINTER(GatedDeltaRuleArgs, alpha, 8, 8);
ASSERT_POINTER(GatedDeltaRuleArgs, beta, 16, 8);
ASSERT_POINTER(GatedDeltaRuleArgs, decay, 24, 8);
ASSERT_POINTER(GatedDeltaRuleArgs, dt, 32, 8);
ASSERT_POINTER(GatedDeltaRuleArgs, state, 40, 8);
ASSERT_POINTER(GatedDeltaRuleArgs, y, 48, 8);
ASSERT_FIELD(GatedDeltaRuleArgs, rows, StateRows, 56, 32);
ASSERT_FIELD(GatedDeltaRuleArgs, starts, WalkStarts, 88, 8);
ASSERT_FIELD(GatedDeltaRuleArgs, heads, DeltaHeads, 96, 16);
ASSERT_FIELD(GatedDeltaRuleArgs, epsilon, float, 112, 4);
ASSERT_FIELD(GatedDeltaRuleArgs, unused, u32, 116, 4);
