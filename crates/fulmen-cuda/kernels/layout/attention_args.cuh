// The layout of the structs and constants that src/kernels/attention.rs shares with
// attention_args.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(AttentionArgs, 192);
ASSERT_POINTER(AttentionArgs, q, 0, 8);
ASSERT_POINTER(AttentionArgs, out, 8, 8);
ASSERT_POINTER(AttentionArgs, partials, 16, 8);
ASSERT_POINTER(AttentionArgs, k, 24, 8);
ASSERT_POINTER(AttentionArgs, v, 32, 8);
ASSERT_POINTER(AttentionArgs, pages, 40, 8);
ASSERT_FIELD(AttentionArgs, slots, KvSlots, 48, 40);
ASSERT_FIELD(AttentionArgs, page_bytes, u64, 88, 8);
ASSERT_FIELD(AttentionArgs, head_bytes, u64, 96, 8);
ASSERT_FIELD(AttentionArgs, pos_bytes, u64, 104, 8);
ASSERT_FIELD(AttentionArgs, n_pages, u32, 112, 4);
ASSERT_FIELD(AttentionArgs, n_seqs, u32, 116, 4);
ASSERT_FIELD(AttentionArgs, capacity, u32, 120, 4);
ASSERT_FIELD(AttentionArgs, n_heads, u32, 124, 4);
ASSERT_FIELD(AttentionArgs, group, u32, 128, 4);
ASSERT_FIELD(AttentionArgs, head_dim, u32, 132, 4);
ASSERT_FIELD(AttentionArgs, splits, u32, 136, 4);
ASSERT_FIELD(AttentionArgs, scale, float, 140, 4);
ASSERT_POINTER(AttentionArgs, work, 144, 8);
ASSERT_FIELD(AttentionArgs, max_chunks, u32, 152, 4);
ASSERT_FIELD(AttentionArgs, unused, u32, 156, 4);
ASSERT_FIELD(AttentionArgs, scores, ScoreArgs, 160, 32);
