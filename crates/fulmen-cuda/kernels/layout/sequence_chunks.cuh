// The layout of the structs and constants that src/kernels/sequence_chunks.rs shares with
// sequence_chunks.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(CHUNK_ROWS, 64);
ASSERT_CONSTANT(MIN_RANGE, 32);

ASSERT_STRUCT(SequenceChunks, 40);
ASSERT_POINTER(SequenceChunks, counts, 0, 8);
ASSERT_POINTER(SequenceChunks, ranges, 8, 8);
ASSERT_POINTER(SequenceChunks, chunks, 16, 8);
ASSERT_POINTER(SequenceChunks, walked, 24, 8);
ASSERT_FIELD(SequenceChunks, m, u32, 32, 4);
ASSERT_FIELD(SequenceChunks, unused, u32, 36, 4);
