// The layout of the structs and constants that src/kernels/kv.rs shares with
// kv.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(KV_F32, 0);
ASSERT_CONSTANT(KV_F16, 1);
ASSERT_CONSTANT(KV_Q8_0, 2);
ASSERT_CONSTANT(KV_PAGE, 128);

ASSERT_STRUCT(KvCacheArgs, 56);
ASSERT_POINTER(KvCacheArgs, k, 0, 8);
ASSERT_POINTER(KvCacheArgs, v, 8, 8);
ASSERT_POINTER(KvCacheArgs, pages, 16, 8);
ASSERT_FIELD(KvCacheArgs, kv_type, u32, 24, 4);
ASSERT_FIELD(KvCacheArgs, n_pages, u32, 28, 4);
ASSERT_FIELD(KvCacheArgs, n_seqs, u32, 32, 4);
ASSERT_FIELD(KvCacheArgs, capacity, u32, 36, 4);
ASSERT_FIELD(KvCacheArgs, n_kv_heads, u32, 40, 4);
ASSERT_FIELD(KvCacheArgs, head_dim, u32, 44, 4);
ASSERT_FIELD(KvCacheArgs, head_bytes, u32, 48, 4);
ASSERT_FIELD(KvCacheArgs, unused, u32, 52, 4);

ASSERT_STRUCT(KvSlots, 40);
ASSERT_POINTER(KvSlots, positions, 0, 8);
ASSERT_POINTER(KvSlots, sequences, 8, 8);
ASSERT_POINTER(KvSlots, superseded, 16, 8);
ASSERT_POINTER(KvSlots, fault, 24, 8);
ASSERT_FIELD(KvSlots, m, u32, 32, 4);
ASSERT_FIELD(KvSlots, unused, u32, 36, 4);
