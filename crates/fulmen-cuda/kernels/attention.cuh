// What the kernels of attention take.
#pragma once
#include "kv.cuh"

struct AttentionParams {
    const float* q;  // [m, n_heads, head_dim]
    float* out;
    float* partials;  // [m, n_heads, parts, head_dim + 2]
    const u8* k;
    const u8* v;
    Slots slots;  // positions are null where row r is position r
    u64 seq_bytes;
    u64 head_bytes;
    u64 pos_bytes;
    u32 n_seqs;
    u32 capacity;
    u32 n_heads;
    u32 group;  // query heads that share a key head
    u32 head_dim;
    u32 parts;
    float scale;
    u32 unused;
};
