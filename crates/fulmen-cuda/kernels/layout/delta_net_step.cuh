// The layout of the structs and constants that src/kernels/delta_net_step.rs shares with
// delta_net_step.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(MAX_HEAD, 128);
ASSERT_CONSTANT(TAPS, 4);
ASSERT_CONSTANT(THREADS, 512);

ASSERT_STRUCT(DeltaNetStepArgs, 176);
ASSERT_POINTER(DeltaNetStepArgs, x, 0, 8);
ASSERT_POINTER(DeltaNetStepArgs, conv_weight, 8, 8);
ASSERT_POINTER(DeltaNetStepArgs, conv_state, 16, 8);
ASSERT_POINTER(DeltaNetStepArgs, conv_out, 24, 8);
ASSERT_POINTER(DeltaNetStepArgs, alpha, 32, 8);
ASSERT_POINTER(DeltaNetStepArgs, beta, 40, 8);
ASSERT_POINTER(DeltaNetStepArgs, decay, 48, 8);
ASSERT_POINTER(DeltaNetStepArgs, dt, 56, 8);
ASSERT_POINTER(DeltaNetStepArgs, state, 64, 8);
ASSERT_POINTER(DeltaNetStepArgs, delta_out, 72, 8);
ASSERT_POINTER(DeltaNetStepArgs, gamma, 80, 8);
ASSERT_POINTER(DeltaNetStepArgs, normed, 88, 8);
ASSERT_POINTER(DeltaNetStepArgs, z, 96, 8);
ASSERT_POINTER(DeltaNetStepArgs, out, 104, 8);
ASSERT_POINTER(DeltaNetStepArgs, out_q8, 112, 8);
ASSERT_FIELD(DeltaNetStepArgs, rows, StateRows, 120, 32);
ASSERT_FIELD(DeltaNetStepArgs, heads, DeltaHeads, 152, 16);
ASSERT_FIELD(DeltaNetStepArgs, epsilon, float, 168, 4);
ASSERT_FIELD(DeltaNetStepArgs, norm_epsilon, float, 172, 4);
