// Arguments of the attention kernels of any shape and of prefill (attention_generic.cu,
// attention_prefill*.cu), and what they share of the softmax.
#pragma once
#include "attention_scores.cuh"
#include "kv.cuh"

// Mirrored by `AttentionArgs` in src/kernels/attention.rs. K and V are pages of a cache (kv.cuh), or the rows
// themselves, [m, n_kv_heads, head_dim] f32: strides are in bytes.
struct AttentionArgs {
    const float* q;   // [m, n_heads, head_dim]
    float* out;       // [m, n_heads, head_dim]
    float* partials;  // [m, n_heads, splits, head_dim + 2]: max, sum, O
    const u8* k;
    const u8* v;
    const u32* pages;  // [n_seqs, capacity / KV_PAGE]; null where K and V are rows
    KvSlots slots;     // positions are null where row r is position r
    u64 page_bytes;    // from one page to the next
    u64 head_bytes;    // from one KV head to the next
    u64 pos_bytes;     // from one position to the next, without the scales of Q8_0
    u32 n_pages;
    u32 n_seqs;
    u32 capacity;
    u32 n_heads;
    u32 group;  // query heads per KV head
    u32 head_dim;
    u32 splits;  // of the positions (split-KV)
    float scale;
    // Mixed steps: decode rows, chunks, 0, 0; then first row, rows, sequence and first position of each
    // chunk. Null: all rows. Only the host writes it, between launches.
    const uint4* work;
    u32 max_chunks;
    u32 unused;
    ScoreArgs scores;  // not read by kernels for plain scores
};
#include "layout/attention_args.cuh"

DEVICE u32 page_entry(const AttentionArgs& args, u32 sequence, u32 index) {
    const u32 seq_pages = args.capacity / KV_PAGE;
    return args.pages[(u64)sequence * seq_pages + min(index, seq_pages - 1)];
}

// Bytes from the start of K (or V) to a KV head of page `index` of a sequence. A page that is not in the pool
// is taken for the first one; `report_invalid_pages` reports it.
DEVICE u64 page_offset(const AttentionArgs& args, u32 entry, u32 kv_head) {
    const u32 page = entry < args.n_pages ? entry : 0;
    return page * args.page_bytes + kv_head * args.head_bytes;
}

// Reports pages of positions [begin, end) of a sequence that are not in the pool, by `threads` threads.
DEVICE void report_invalid_pages(const AttentionArgs& args, u32 row, u32 sequence, u32 begin, u32 end,
                                 u32 thread, u32 threads) {
#pragma unroll 1
    for (u32 index = begin / KV_PAGE + thread; index * KV_PAGE < end; index += threads) {
        const u32 entry = page_entry(args, sequence, index);
        if (entry >= args.n_pages) report(args.slots.fault, FAULT_PAGE, row, entry, args.n_pages);
    }
}

// What scores are taken relative to before exp: their max, or any finite number where all are -inf.
DEVICE float softmax_base(float max) { return max == -INFINITE ? 0.0f : max; }

// 1 / sum, or 0 where a row attends to nothing.
DEVICE float softmax_inverse(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }
