// The layout of the structs and constants that src/kernels/kv_store.rs shares with
// kv_store.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(KvStoreArgs, 112);
ASSERT_POINTER(KvStoreArgs, k, 0, 8);
ASSERT_POINTER(KvStoreArgs, v, 8, 8);
ASSERT_FIELD(KvStoreArgs, cache, KvCacheArgs, 16, 56);
ASSERT_FIELD(KvStoreArgs, slots, KvSlots, 72, 40);

ASSERT_STRUCT(SupersededArgs, 48);
ASSERT_FIELD(SupersededArgs, slots, KvSlots, 0, 40);
ASSERT_POINTER(SupersededArgs, out, 40, 8);
