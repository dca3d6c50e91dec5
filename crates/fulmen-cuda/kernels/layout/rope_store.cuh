// The layout of the structs and constants that src/kernels/rope_store.rs shares with
// rope_store.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(WARPS, 8);

ASSERT_STRUCT(RopeStoreArgs, 184);
ASSERT_POINTER(RopeStoreArgs, q, 0, 8);
ASSERT_POINTER(RopeStoreArgs, k, 8, 8);
ASSERT_POINTER(RopeStoreArgs, v, 16, 8);
ASSERT_POINTER(RopeStoreArgs, out, 24, 8);
ASSERT_POINTER(RopeStoreArgs, q_gamma, 32, 8);
ASSERT_POINTER(RopeStoreArgs, k_gamma, 40, 8);
ASSERT_FIELD(RopeStoreArgs, cache, KvCacheArgs, 48, 56);
ASSERT_FIELD(RopeStoreArgs, slots, KvSlots, 104, 40);
ASSERT_FIELD(RopeStoreArgs, rope, RopeArgs, 144, 32);
ASSERT_FIELD(RopeStoreArgs, n_heads, u32, 176, 4);
ASSERT_FIELD(RopeStoreArgs, epsilon, float, 180, 4);
