// The layout of the structs and constants that src/kernels/sample.rs shares with
// sample.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(BINS, 1024);
ASSERT_CONSTANT(SHORTLIST, 256);

ASSERT_STRUCT(SampleArgs, 104);
ASSERT_POINTER(SampleArgs, logits, 0, 8);
ASSERT_POINTER(SampleArgs, tokens, 8, 8);
ASSERT_POINTER(SampleArgs, states, 16, 8);
ASSERT_POINTER(SampleArgs, out, 24, 8);
ASSERT_POINTER(SampleArgs, part_keys, 32, 8);
ASSERT_POINTER(SampleArgs, masses, 40, 8);
ASSERT_POINTER(SampleArgs, counts, 48, 8);
ASSERT_POINTER(SampleArgs, lists, 56, 8);
ASSERT_POINTER(SampleArgs, list_sizes, 64, 8);
ASSERT_POINTER(SampleArgs, list_bins, 72, 8);
ASSERT_POINTER(SampleArgs, fault, 80, 8);
ASSERT_FIELD(SampleArgs, width, u32, 88, 4);
ASSERT_FIELD(SampleArgs, part_width, u32, 92, 4);
ASSERT_FIELD(SampleArgs, parts, u32, 96, 4);
ASSERT_FIELD(SampleArgs, unused, u32, 100, 4);
