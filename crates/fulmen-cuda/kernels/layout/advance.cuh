// The layout of the structs and constants that src/kernels/advance.rs shares with
// advance.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(AdvanceArgs, 64);
ASSERT_POINTER(AdvanceArgs, sampled, 0, 8);
ASSERT_POINTER(AdvanceArgs, tokens, 8, 8);
ASSERT_POINTER(AdvanceArgs, positions, 16, 8);
ASSERT_POINTER(AdvanceArgs, sequences, 24, 8);
ASSERT_POINTER(AdvanceArgs, history, 32, 8);
ASSERT_POINTER(AdvanceArgs, fault, 40, 8);
ASSERT_FIELD(AdvanceArgs, m, u32, 48, 4);
ASSERT_FIELD(AdvanceArgs, n_seqs, u32, 52, 4);
ASSERT_FIELD(AdvanceArgs, capacity, u32, 56, 4);
ASSERT_FIELD(AdvanceArgs, unused, u32, 60, 4);
