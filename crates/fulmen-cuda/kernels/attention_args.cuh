// Arguments of the attention kernels of any shape and of prefill (attention_generic.cu,
// attention_prefill*.cu), and what they share of the softmax.
#pragma once
#include "kv.cuh"

// Mirrored by `AttentionArgs` in src/kernels/attention.rs. K and V are [n_seqs, n_kv_heads, capacity,
// head_dim] in a cache, or the rows themselves, [m, n_kv_heads, head_dim] f32: strides are in bytes.
struct AttentionArgs {
    const float* q;   // [m, n_heads, head_dim]
    float* out;       // [m, n_heads, head_dim]
    float* partials;  // [m, n_heads, splits, head_dim + 2]: max, sum, O
    const u8* k;
    const u8* v;
    KvSlots slots;   // positions are null where row r is position r
    u64 seq_bytes;   // from one sequence to the next
    u64 head_bytes;  // from one KV head to the next
    u64 pos_bytes;   // from one position to the next
    u32 n_seqs;
    u32 capacity;
    u32 n_heads;
    u32 group;  // query heads per KV head
    u32 head_dim;
    u32 splits;  // of the positions (split-KV)
    float scale;
    u32 unused;
};
#include "layout/attention_args.cuh"

// What scores are taken relative to before exp: their max, or any finite number where all are -inf.
DEVICE float softmax_base(float max) { return max == -INFINITE ? 0.0f : max; }

// 1 / sum, or 0 where a row attends to nothing.
DEVICE float softmax_inverse(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }
