// The layout of the structs and constants that src/kernels/expert_sort.rs shares with
// expert_sort.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(SORT_THREADS, 1024);
ASSERT_CONSTANT(MAX_EXPERTS, 1024);

ASSERT_STRUCT(ExpertTile, 16);
ASSERT_FIELD(ExpertTile, expert, u32, 0, 4);
ASSERT_FIELD(ExpertTile, first, u32, 4, 4);
ASSERT_FIELD(ExpertTile, pairs, u32, 8, 4);
ASSERT_FIELD(ExpertTile, unused, u32, 12, 4);

ASSERT_STRUCT(ExpertSortArgs, 56);
ASSERT_POINTER(ExpertSortArgs, ids, 0, 8);
ASSERT_POINTER(ExpertSortArgs, order, 8, 8);
ASSERT_POINTER(ExpertSortArgs, tiles, 16, 8);
ASSERT_POINTER(ExpertSortArgs, fault, 24, 8);
ASSERT_FIELD(ExpertSortArgs, pairs, u32, 32, 4);
ASSERT_FIELD(ExpertSortArgs, top_k, u32, 36, 4);
ASSERT_FIELD(ExpertSortArgs, n_experts, u32, 40, 4);
ASSERT_FIELD(ExpertSortArgs, max_tiles, u32, 44, 4);
ASSERT_FIELD(ExpertSortArgs, tile_pairs, u32, 48, 4);
ASSERT_FIELD(ExpertSortArgs, unused, u32, 52, 4);
