// L2 prefetch of the KV cache for the attention that follows a small-M GEMM: see l2_prefetch.rs.
//
// The GEMMs of several rows leave memory bandwidth unused, and the attention after them is bound by it. The
// QKV projection prefetches the first positions of each sequence, up to half of L2.
#pragma once

#include "kv.cuh"
#include "ptx/tma.cuh"

struct L2Prefetch {
    const u8* caches[2];  // keys and values, or null: nothing to prefetch
    const u32* positions;
    const u32* sequences;  // or null: all 0
    const u32* pages;      // [n_seqs, capacity / KV_PAGE]
    u32 rows, heads, n_seqs, capacity, n_pages;
    u32 head_bytes;     // of one head at one position
    u32 max_positions;  // to prefetch per row
    u32 unused;

    // This block's part, by one warp: even lanes prefetch keys, odd ones values, each pair of lanes a page.
    DEVICE void prefetch(u32 lane) const {
        if (!caches[0]) return;
#pragma unroll 1
        for (u32 i = blockIdx.x; i < rows * heads; i += gridDim.x) {
            const u32 row = i / heads, head = i - row * heads;
            const u32 position = positions[row], sequence = sequences ? sequences[row] : 0;
            if (position >= capacity || sequence >= n_seqs) continue;
            const u32 end = min(position, max_positions);
#pragma unroll 1
            for (u32 first = lane / 2 * KV_PAGE; first < end; first += 16 * KV_PAGE) {
                const u32 page = pages[(u64)sequence * (capacity / KV_PAGE) + first / KV_PAGE];
                if (page >= n_pages) continue;
                const u64 offset = ((u64)page * heads + head) * KV_PAGE * head_bytes;
                cp_async_bulk_prefetch_l2_covering(caches[lane % 2] + offset,
                                                   min(end - first, KV_PAGE) * head_bytes);
            }
        }
    }
};
#include "layout/l2_prefetch.cuh"
