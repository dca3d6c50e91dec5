// The layout of the structs and constants that src/kernels/gather_tokens.rs shares with
// gather_tokens.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(GatherTokensArgs, 56);
ASSERT_POINTER(GatherTokensArgs, history, 0, 8);
ASSERT_POINTER(GatherTokensArgs, positions, 8, 8);
ASSERT_POINTER(GatherTokensArgs, sequences, 16, 8);
ASSERT_POINTER(GatherTokensArgs, tokens, 24, 8);
ASSERT_POINTER(GatherTokensArgs, fault, 32, 8);
ASSERT_FIELD(GatherTokensArgs, m, u32, 40, 4);
ASSERT_FIELD(GatherTokensArgs, n_seqs, u32, 44, 4);
ASSERT_FIELD(GatherTokensArgs, capacity, u32, 48, 4);
ASSERT_FIELD(GatherTokensArgs, unused, u32, 52, 4);
