// The layout of the structs and constants that src/kernels/attention_decode.rs shares with
// attention_decode_block.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(CLUSTER_WARPS, 8);
ASSERT_CONSTANT(AMPERE_WARPS, 4);
ASSERT_CONSTANT(TILE, 16);
ASSERT_CONSTANT(MAX_GROUP, 8);

ASSERT_STRUCT(AttentionDecodeArgs, 272);
ASSERT_POINTER(AttentionDecodeArgs, q, 0, 8);
ASSERT_POINTER(AttentionDecodeArgs, k, 8, 8);
ASSERT_POINTER(AttentionDecodeArgs, v, 16, 8);
ASSERT_POINTER(AttentionDecodeArgs, q_gamma, 24, 8);
ASSERT_POINTER(AttentionDecodeArgs, k_gamma, 32, 8);
ASSERT_POINTER(AttentionDecodeArgs, positions, 40, 8);
ASSERT_POINTER(AttentionDecodeArgs, sequences, 48, 8);
ASSERT_POINTER(AttentionDecodeArgs, pages, 56, 8);
ASSERT_POINTER(AttentionDecodeArgs, k_cache, 64, 8);
ASSERT_POINTER(AttentionDecodeArgs, v_cache, 72, 8);
ASSERT_POINTER(AttentionDecodeArgs, q_out, 80, 8);
ASSERT_POINTER(AttentionDecodeArgs, out, 88, 8);
ASSERT_POINTER(AttentionDecodeArgs, out_q8, 96, 8);
ASSERT_POINTER(AttentionDecodeArgs, out_f16, 104, 16);
ASSERT_POINTER(AttentionDecodeArgs, out_f16_scales, 120, 8);
ASSERT_POINTER(AttentionDecodeArgs, fault, 128, 8);
ASSERT_FIELD(AttentionDecodeArgs, rope, RopeArgs, 136, 32);
ASSERT_FIELD(AttentionDecodeArgs, epsilon, float, 168, 4);
ASSERT_FIELD(AttentionDecodeArgs, scale, float, 172, 4);
ASSERT_FIELD(AttentionDecodeArgs, n_heads, u32, 176, 4);
ASSERT_FIELD(AttentionDecodeArgs, n_kv_heads, u32, 180, 4);
ASSERT_FIELD(AttentionDecodeArgs, capacity, u32, 184, 4);
ASSERT_FIELD(AttentionDecodeArgs, n_seqs, u32, 188, 4);
ASSERT_FIELD(AttentionDecodeArgs, fused_store, u32, 192, 4);
ASSERT_FIELD(AttentionDecodeArgs, splits, u32, 196, 4);
ASSERT_FIELD(AttentionDecodeArgs, n_pages, u32, 200, 4);
ASSERT_FIELD(AttentionDecodeArgs, rows, u32, 204, 4);
ASSERT_POINTER(AttentionDecodeArgs, partials, 208, 8);
ASSERT_POINTER(AttentionDecodeArgs, rotated, 216, 8);
ASSERT_POINTER(AttentionDecodeArgs, work, 224, 8);
ASSERT_FIELD(AttentionDecodeArgs, panel_rows, u32, 232, 4);
ASSERT_FIELD(AttentionDecodeArgs, panel_order, u32, 236, 4);
ASSERT_FIELD(AttentionDecodeArgs, scores, ScoreArgs, 240, 32);
