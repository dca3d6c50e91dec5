// Where the rows of a batch lie in a KV cache, and how a head is written there.
#pragma once
#include "common.cuh"

enum KvType : u32 { KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2 };

// Keys and values, each `[n_seqs][n_kv_heads][capacity][head_dim]`.
struct KvCache {
    u8* k;
    u8* v;
    u32 type;
    u32 n_seqs;
    u32 capacity;
    u32 n_kv_heads;
    u32 head_dim;
    u32 head_bytes;  // of one head at one position
};

// The place of each row.
struct Slots {
    const u32* positions;
    const u32* sequences;   // or null: all 0
    const u32* superseded;  // for each row whether a later one has the same place, or null: to be found out
    Fault* fault;
    u32 m;
    u32 unused;
};

DEVICE u32 sequence_of(const Slots& slots, u32 row) {
    return slots.sequences ? slots.sequences[row] : 0;
}

// Whether the row has a place in the cache. The thread that `tells` reports it if not.
DEVICE bool has_place(const Slots& slots, u32 n_seqs, u32 capacity, u32 row, bool tells) {
    u32 position = slots.positions[row], sequence = sequence_of(slots, row);
    if (position >= capacity) {
        if (tells) report(slots.fault, FAULT_POSITION, row, position, capacity);
        return false;
    }
    if (sequence >= n_seqs) {
        if (tells) report(slots.fault, FAULT_SEQUENCE, row, sequence, n_seqs);
        return false;
    }
    return true;
}

// Whether a later row has the same place: of rows that name one place the last stays. For a whole warp.
DEVICE bool is_superseded(const Slots& slots, u32 row) {
    if (slots.superseded) return slots.superseded[row] != 0;
    u32 position = slots.positions[row], sequence = sequence_of(slots, row);
    bool same = false;
    for (u32 later = row + 1 + threadIdx.x % 32; later < slots.m; later += 32) {
        same |= slots.positions[later] == position && sequence_of(slots, later) == sequence;
    }
    return __any_sync(FULL_WARP, same);
}

// Bytes from the start of keys or values to a head at a position.
DEVICE u64 head_offset(const KvCache& cache, u32 sequence, u32 head, u32 position) {
    return (((u64)sequence * cache.n_kv_heads + head) * cache.capacity + position) * cache.head_bytes;
}

// One block of Q8_0 from 32 values, one a lane: the scale spans them, and is the next one up where the nearest f16
// would not reach the largest.
DEVICE void store_q8_0(u8* block, float x) {
    u32 lane = threadIdx.x % 32;
    x = fminf(fmaxf(x, -1e9f), 1e9f);
    float largest = warp_max(fabsf(x));
    u16 bits = f32_to_f16(fminf(largest / 127.0f, 65504.0f));
    if (largest > f16_to_f32(bits) * 127.5f && bits < 0x7bff) bits += 1;
    float d = f16_to_f32(bits);
    float code = x * (d == 0.0f ? 0.0f : 1.0f / d);
    code = rintf(fminf(fmaxf(code, -127.0f), 127.0f));
    if (lane == 0) *(u16*)block = bits;
    block[2 + lane] = (u8)(i8)(int)code;
}

// Writes a head, by a whole warp.
DEVICE void store_head(const KvCache& cache, u8* to, const float* x) {
    u32 lane = threadIdx.x % 32;
    for (u32 d = lane; d < cache.head_dim; d += 32) {
        if (cache.type == KV_F32) {
            ((float*)to)[d] = x[d];
        } else if (cache.type == KV_F16) {
            ((u16*)to)[d] = f32_to_f16(x[d]);
        } else {
            store_q8_0(to + d / 32 * 34, x[d]);
        }
    }
}
