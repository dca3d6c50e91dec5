// The KV cache: the slot of each row of a batch, and how one head is stored there.
#pragma once
#include "common.cuh"

enum KvType : u32 { KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2 };

// Keys and values, each [n_seqs, n_kv_heads, capacity, head_dim]. Mirrored by `KvCacheArgs` in
// src/kernels/kv.rs.
struct KvCacheArgs {
    u8* k;
    u8* v;
    u32 kv_type;  // KvType
    u32 n_seqs;
    u32 capacity;
    u32 n_kv_heads;
    u32 head_dim;
    u32 head_bytes;  // of one head at one position
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

// Whether the row's slot is inside the cache. If not, the thread with `reports` set reports a fault.
DEVICE bool slot_is_valid(const KvSlots& slots, u32 n_seqs, u32 capacity, u32 row, bool reports) {
    u32 position = slots.positions[row], sequence = sequence_of(slots, row);
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

// Bytes from the start of the keys (or values) to a head at a position.
DEVICE u64 head_offset(const KvCacheArgs& cache, u32 sequence, u32 head, u32 position) {
    return (((u64)sequence * cache.n_kv_heads + head) * cache.capacity + position) * cache.head_bytes;
}

// Quantizes 32 values, one per lane, to a Q8_0 block. The scale is rounded up where the nearest f16 would
// clip the largest value.
DEVICE void store_q8_0(u8* block, float x) {
    u32 lane = threadIdx.x % 32;
    x = fminf(fmaxf(x, -1e9f), 1e9f);
    float largest = warp_max(fabsf(x));
    u16 scale_bits = f32_to_f16(fminf(largest / 127.0f, 65504.0f));
    if (largest > f16_to_f32(scale_bits) * 127.5f && scale_bits < 0x7bff) scale_bits += 1;
    float d = f16_to_f32(scale_bits);
    float quant = x * (d == 0.0f ? 0.0f : 1.0f / d);
    quant = rintf(fminf(fmaxf(quant, -127.0f), 127.0f));
    if (lane == 0) *(u16*)block = scale_bits;
    block[2 + lane] = (u8)(i8)(int)quant;
}

// Stores one head in the cache's type, by one warp.
DEVICE void store_head(const KvCacheArgs& cache, u8* to, const float* x) {
    u32 lane = threadIdx.x % 32;
    for (u32 d = lane; d < cache.head_dim; d += 32) {
        if (cache.kv_type == KV_F32) {
            ((float*)to)[d] = x[d];
        } else if (cache.kv_type == KV_F16) {
            ((u16*)to)[d] = f32_to_f16(x[d]);
        } else {
            store_q8_0(to + d / 32 * 34, x[d]);
        }
    }
}
