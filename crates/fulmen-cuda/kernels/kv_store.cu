// Rows of keys and values into a cache. One warp a head.
#include "kv.cuh"

struct KvStoreParams {
    const float* k;  // [m, n_kv_heads, head_dim]
    const float* v;
    KvCache cache;
    Slots slots;
};

extern "C" __global__ void __launch_bounds__(128) kv_store(const __grid_constant__ KvStoreParams p) {
    pdl_begin();
    u64 task = (u64)blockIdx.x * 4 + threadIdx.x / 32;
    u32 sides = 2 * p.cache.n_kv_heads;
    if (task >= (u64)p.slots.m * sides) return;
    u32 row = task / sides, side = task % sides;
    bool tells = side == 0 && threadIdx.x % 32 == 0;
    if (!has_place(p.slots, p.cache.n_seqs, p.cache.capacity, row, tells)) return;
    if (is_superseded(p.slots, row)) return;
    u32 head = side % p.cache.n_kv_heads;
    bool value = side >= p.cache.n_kv_heads;
    const float* x = (value ? p.v : p.k) + ((u64)row * p.cache.n_kv_heads + head) * p.cache.head_dim;
    u8* to = value ? p.cache.v : p.cache.k;
    store_head(p.cache, to + head_offset(p.cache, sequence_of(p.slots, row), head, p.slots.positions[row]), x);
}

struct SupersededParams {
    Slots slots;
    u32* out;
};

// For each row whether a later row has the same place; for batches in which every warp would look too long.
extern "C" __global__ void __launch_bounds__(128) superseded(const __grid_constant__ SupersededParams p) {
    pdl_begin();
    u32 row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= p.slots.m) return;
    bool found = is_superseded(p.slots, row);
    if (threadIdx.x % 32 == 0) p.out[row] = found;
}
