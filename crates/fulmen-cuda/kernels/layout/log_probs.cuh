// The layout of the structs and constants that src/kernels/log_probs.rs shares with
// log_probs.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(PART, 4096);
ASSERT_CONSTANT(PART_THREADS, 1024);
ASSERT_CONSTANT(ROW_THREADS, 256);

ASSERT_STRUCT(LogProbsArgs, 64);
ASSERT_POINTER(LogProbsArgs, logits, 0, 8);
ASSERT_POINTER(LogProbsArgs, tokens, 8, 8);
ASSERT_POINTER(LogProbsArgs, values, 16, 8);
ASSERT_POINTER(LogProbsArgs, indices, 24, 8);
ASSERT_POINTER(LogProbsArgs, part_keys, 32, 8);
ASSERT_POINTER(LogProbsArgs, part_sums, 40, 8);
ASSERT_FIELD(LogProbsArgs, width, u32, 48, 4);
ASSERT_FIELD(LogProbsArgs, parts, u32, 52, 4);
ASSERT_FIELD(LogProbsArgs, listed, u32, 56, 4);
ASSERT_FIELD(LogProbsArgs, top, u32, 60, 4);
