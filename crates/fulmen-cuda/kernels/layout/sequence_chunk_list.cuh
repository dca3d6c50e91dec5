// The layout of the structs and constants that src/kernels/sequence_chunks.rs shares with
// sequence_chunk_list.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(MAX_ROWS, 32768);
ASSERT_CONSTANT(THREADS, 1024);

ASSERT_STRUCT(ChunkListArgs, 72);
ASSERT_FIELD(ChunkListArgs, rows, StateRows, 0, 32);
ASSERT_FIELD(ChunkListArgs, to, SequenceChunks, 32, 40);
