// The layout of the structs and constants that src/kernels/attention_scores.rs shares with
// attention_scores.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(ScoreArgs, 32);
ASSERT_POINTER(ScoreArgs, sinks, 0, 8);
ASSERT_FIELD(ScoreArgs, window, u32, 8, 4);
ASSERT_FIELD(ScoreArgs, softcap, float, 12, 4);
ASSERT_FIELD(ScoreArgs, temperature_length, u32, 16, 4);
ASSERT_FIELD(ScoreArgs, temperature_beta, float, 20, 4);
ASSERT_FIELD(ScoreArgs, chunk, u32, 24, 4);
ASSERT_FIELD(ScoreArgs, unused, u32, 28, 4);
