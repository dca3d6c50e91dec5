// L2 prefetch of the KV cache for the attention that follows a small-M GEMM: see l2_prefetch.rs.
//
// The GEMMs of several rows leave memory bandwidth unused, and the attention after them is bound by it. The
// QKV projection prefetches the first positions of each sequence, up to half of L2.
#pragma once

#include "common.cuh"
#include "ptx/tma.cuh"

struct L2Prefetch {
    const u8* caches[2];  // keys and values, or null: nothing to prefetch
    const u32* positions;
    const u32* sequences;  // or null: all 0
    u32 rows, heads, n_seqs, capacity;
    u32 head_bytes;     // of one head at one position
    u32 max_positions;  // to prefetch per row

    // This block's part, by one warp: lane 0 prefetches keys, lane 1 values.
    DEVICE void prefetch(u32 lane) const {
        if (!caches[0] || lane > 1) return;
#pragma unroll 1
        for (u32 i = blockIdx.x; i < rows * heads; i += gridDim.x) {
            const u32 row = i / heads, head = i - row * heads;
            const u32 position = positions[row], sequence = sequences ? sequences[row] : 0;
            const u32 bytes = min(position, max_positions) * head_bytes;
            if (position < capacity && sequence < n_seqs && bytes > 0) {
                const u64 offset = ((u64)sequence * heads + head) * capacity * head_bytes;
                cp_async_bulk_prefetch_l2_covering(caches[lane] + offset, bytes);
            }
        }
    }
};
#include "layout/l2_prefetch.cuh"
