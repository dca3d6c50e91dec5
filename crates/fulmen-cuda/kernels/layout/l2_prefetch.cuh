// The layout of the structs and constants that src/l2_prefetch.rs shares with
// l2_prefetch.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(L2Prefetch, 72);
ASSERT_POINTER(L2Prefetch, caches, 0, 16);
ASSERT_POINTER(L2Prefetch, positions, 16, 8);
ASSERT_POINTER(L2Prefetch, sequences, 24, 8);
ASSERT_POINTER(L2Prefetch, pages, 32, 8);
ASSERT_FIELD(L2Prefetch, rows, u32, 40, 4);
ASSERT_FIELD(L2Prefetch, heads, u32, 44, 4);
ASSERT_FIELD(L2Prefetch, n_seqs, u32, 48, 4);
ASSERT_FIELD(L2Prefetch, capacity, u32, 52, 4);
ASSERT_FIELD(L2Prefetch, n_pages, u32, 56, 4);
ASSERT_FIELD(L2Prefetch, head_bytes, u32, 60, 4);
ASSERT_FIELD(L2Prefetch, max_positions, u32, 64, 4);
ASSERT_FIELD(L2Prefetch, unused, u32, 68, 4);
