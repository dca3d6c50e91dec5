// The layout of the structs and constants that src/kernels/gated_delta_chunks.rs shares with
// gated_delta_chunks.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(CHUNK, 64);
ASSERT_CONSTANT(COLUMNS, 32);
ASSERT_CONSTANT(MAX_HEAD, 128);
ASSERT_CONSTANT(THREADS, 256);
ASSERT_CONSTANT(HEAD_PITCH, 132);
ASSERT_CONSTANT(CHUNK_PITCH, 68);
ASSERT_CONSTANT(COLUMN_PITCH, 36);

ASSERT_STRUCT(DeltaChunksArgs, 144);
ASSERT_POINTER(DeltaChunksArgs, x, 0, 8);
ASSERT_POINTER(DeltaChunksArgs, alpha, 8, 8);
ASSERT_POINTER(DeltaChunksArgs, beta, 16, 8);
ASSERT_POINTER(DeltaChunksArgs, decay, 24, 8);
ASSERT_POINTER(DeltaChunksArgs, dt, 32, 8);
ASSERT_POINTER(DeltaChunksArgs, positions, 40, 8);
ASSERT_POINTER(DeltaChunksArgs, state, 48, 8);
ASSERT_POINTER(DeltaChunksArgs, y, 56, 8);
ASSERT_POINTER(DeltaChunksArgs, matrices, 64, 8);
ASSERT_POINTER(DeltaChunksArgs, factors, 72, 8);
ASSERT_FIELD(DeltaChunksArgs, chunks, SequenceChunks, 80, 40);
ASSERT_FIELD(DeltaChunksArgs, heads, DeltaHeads, 120, 16);
ASSERT_FIELD(DeltaChunksArgs, epsilon, float, 136, 4);
ASSERT_FIELD(DeltaChunksArgs, unused, u32, 140, 4);
