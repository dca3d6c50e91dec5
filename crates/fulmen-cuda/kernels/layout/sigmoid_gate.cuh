// The layout of the structs and constants that src/kernels/sigmoid_gate.rs shares with
// sigmoid_gate.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(SigmoidGateArgs, 40);
ASSERT_POINTER(SigmoidGateArgs, x, 0, 8);
ASSERT_POINTER(SigmoidGateArgs, gate, 8, 8);
ASSERT_POINTER(SigmoidGateArgs, y, 16, 8);
ASSERT_FIELD(SigmoidGateArgs, n, u64, 24, 8);
ASSERT_FIELD(SigmoidGateArgs, span, u64, 32, 8);
