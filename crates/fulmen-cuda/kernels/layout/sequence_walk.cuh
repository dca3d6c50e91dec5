// The layout of the structs and constants that src/kernels/recurrent.rs shares with
// sequence_walk.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(StateRows, 32);
ASSERT_POINTER(StateRows, positions, 0, 8);
ASSERT_POINTER(StateRows, sequences, 8, 8);
ASSERT_POINTER(StateRows, fault, 16, 8);
ASSERT_FIELD(StateRows, m, u32, 24, 4);
ASSERT_FIELD(StateRows, n_seqs, u32, 28, 4);

ASSERT_STRUCT(WalkStarts, 8);
ASSERT_POINTER(WalkStarts, list, 0, 8);
