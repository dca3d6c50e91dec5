// The KV cache: pages, the slot of each row of a batch, and how one head is stored there.
//
// K and V of a layer are pools of pages, each [n_pages, n_kv_heads, KV_PAGE, head_dim] in f32 or f16. In Q8_0
// a head of a page is [KV_PAGE, head_dim] int8, then [KV_PAGE, head_dim / 32] f16 scales. Position p of
// sequence s is row p % KV_PAGE of page pages[s][p / KV_PAGE]. Only the host writes the page table, between
// launches, so kernels may read it before `pdl_wait`.
#pragma once
#include "common.cuh"

enum KvType : u32 { KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2 };

constexpr u32 KV_PAGE = 128;      // positions of a page
constexpr u32 NO_PAGE = ~0u;      // in a page table: the sequence has no such page
constexpr u32 NO_SEQUENCE = ~0u;  // the sequence number of an inactive row, which is skipped

// The FaultCode (common.cuh) of a page that is not in the pool.
constexpr u32 FAULT_PAGE = 10;

// Mirrored by `KvCacheArgs` in src/kernels/kv.rs.
struct KvCacheArgs {
    u8* k;
    u8* v;
    const u32* pages;  // [n_seqs, capacity / KV_PAGE]
    u32 kv_type;       // KvType
    u32 n_pages;
    u32 n_seqs;
    u32 capacity;  // positions of a sequence
    u32 n_kv_heads;
    u32 head_dim;
    u32 head_bytes;  // of one head of a page
    u32 unused;
};

// The slot (sequence, position) of each row. Mirrored by `KvSlots` in src/kernels/kv.rs.
struct KvSlots {
    const u32* positions;
    const u32* sequences;   // or null: all 0
    const u32* superseded;  // [m]: whether a later row has the same slot; or null: kernels search
    Fault* fault;
    u32 m;  // rows
    u32 unused;
};
#include "layout/kv.cuh"

DEVICE u32 sequence_of(const KvSlots& slots, u32 row) { return slots.sequences ? slots.sequences[row] : 0; }

// Whether the row's slot is inside the cache. If not, the thread with `reports` set reports a fault, unless
// the row is inactive.
DEVICE bool slot_is_valid(const KvSlots& slots, u32 n_seqs, u32 capacity, u32 row, bool reports) {
    u32 position = slots.positions[row], sequence = sequence_of(slots, row);
    if (sequence == NO_SEQUENCE) return false;
    if (position >= capacity) {
        if (reports) report(slots.fault, FAULT_POSITION, row, position, capacity);
        return false;
    }
    if (sequence >= n_seqs) {
        if (reports) report(slots.fault, FAULT_SEQUENCE, row, sequence, n_seqs);
        return false;
    }
    return true;
}

// Whether a later row has the same slot: of rows with one slot the last is stored. Called by whole warps.
DEVICE bool is_superseded(const KvSlots& slots, u32 row) {
    if (slots.superseded) return slots.superseded[row] != 0;
    u32 position = slots.positions[row], sequence = sequence_of(slots, row);
    bool same = false;
    for (u32 later = row + 1 + threadIdx.x % 32; later < slots.m; later += 32) {
        same |= slots.positions[later] == position && sequence_of(slots, later) == sequence;
    }
    return __any_sync(FULL_WARP, same);
}

// The page of the row's slot, or NO_PAGE if the slot is not inside the cache. The thread with `reports` set
// reports why.
DEVICE u32 slot_page(const KvSlots& slots, const KvCacheArgs& cache, u32 row, bool reports) {
    if (!slot_is_valid(slots, cache.n_seqs, cache.capacity, row, reports)) return NO_PAGE;
    const u32 seq_pages = cache.capacity / KV_PAGE, index = slots.positions[row] / KV_PAGE;
    const u32 page = cache.pages[(u64)sequence_of(slots, row) * seq_pages + index];
    if (page < cache.n_pages) return page;
    if (reports) report(slots.fault, FAULT_PAGE, row, page, cache.n_pages);
    return NO_PAGE;
}

// Quantization to Q8_0 in steps, so that all kernels store the same bits. Values are clamped first, then
// scaled by the inverse of the block's scale, which is rounded up where the nearest f16 would clip the
// largest value.
DEVICE float q8_0_clamp(float x) { return fminf(fmaxf(x, -1e9f), 1e9f); }
DEVICE u16 q8_0_scale(float largest) {
    const u16 bits = f32_to_f16(fminf(largest / 127.0f, 65504.0f));
    return largest > f16_to_f32(bits) * 127.5f && bits < 0x7bff ? bits + 1 : bits;
}
DEVICE float q8_0_inverse(u16 scale) {
    const float d = f16_to_f32(scale);
    return d == 0.0f ? 0.0f : 1.0f / d;
}
DEVICE u8 q8_0_quant(float x, float inverse) {
    return (u8)(i8)(int)rintf(fminf(fmaxf(x * inverse, -127.0f), 127.0f));
}

// Quantizes 32 values, one per lane, to a Q8_0 block.
DEVICE void store_q8_0(u8* values, u16* scale, float x) {
    u32 lane = threadIdx.x % 32;
    x = q8_0_clamp(x);
    const u16 bits = q8_0_scale(warp_max(fabsf(x)));
    if (lane == 0) *scale = bits;
    values[lane] = q8_0_quant(x, q8_0_inverse(bits));
}

// Stores one head at a position of a page of `pool` (keys or values) in the cache's type, by one warp.
DEVICE void store_head(const KvCacheArgs& cache, u8* pool, u32 page, u32 head, u32 position, const float* x) {
    u32 lane = threadIdx.x % 32, row = position % KV_PAGE;
    u8* to = pool + ((u64)page * cache.n_kv_heads + head) * cache.head_bytes;
    u16* scales = (u16*)(to + KV_PAGE * cache.head_dim) + row * (cache.head_dim / 32);
    for (u32 d = lane; d < cache.head_dim; d += 32) {
        if (cache.kv_type == KV_F32) {
            ((float*)to)[row * cache.head_dim + d] = x[d];
        } else if (cache.kv_type == KV_F16) {
            ((u16*)to)[row * cache.head_dim + d] = f32_to_f16(x[d]);
        } else {
            store_q8_0(to + row * cache.head_dim + d - lane, scales + d / 32, x[d]);
        }
    }
}
