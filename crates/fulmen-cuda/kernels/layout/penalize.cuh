// The layout of the structs and constants that src/kernels/penalize.rs shares with
// penalize.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(PenalizeArgs, 72);
ASSERT_POINTER(PenalizeArgs, logits, 0, 8);
ASSERT_POINTER(PenalizeArgs, penalties, 8, 8);
ASSERT_POINTER(PenalizeArgs, history, 16, 8);
ASSERT_POINTER(PenalizeArgs, positions, 24, 8);
ASSERT_POINTER(PenalizeArgs, sequences, 32, 8);
ASSERT_POINTER(PenalizeArgs, counts, 40, 8);
ASSERT_POINTER(PenalizeArgs, fault, 48, 8);
ASSERT_FIELD(PenalizeArgs, width, u32, 56, 4);
ASSERT_FIELD(PenalizeArgs, n_seqs, u32, 60, 4);
ASSERT_FIELD(PenalizeArgs, capacity, u32, 64, 4);
ASSERT_FIELD(PenalizeArgs, unused, u32, 68, 4);
