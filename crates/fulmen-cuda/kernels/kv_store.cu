// KV store: writes the keys and values of a batch of rows into the KV cache, converted to its type.
// Element-wise but for Q8_0 caches, where a warp quantizes blocks of 32. Launched by src/kernels/kv_store.rs
// and src/kernels/kv.rs.
//
// `kv_store`: one warp per head (m * 2 * n_kv_heads heads, keys first), four warps per block; lane l takes
// dims l + 32 i.
// `superseded`: one warp per row; marks rows whose slot a later row has, once, for batches in which it would
// take too long for every warp of `kv_store` or `rope_store` to search.
// Layouts: k, v [m, n_kv_heads, head_dim] f32; the cache in pages of f32, f16 or Q8_0 (kv.cuh).
// Preconditions: none. Rows with an invalid slot are skipped and reported; of several rows with one slot the
// last is stored.
// Bound: memory bandwidth and launch latency. Not measured.
#include "kv.cuh"

// Mirrored by `KvStoreArgs` in src/kernels/kv_store.rs.
struct KvStoreArgs {
    const float* k;  // [m, n_kv_heads, head_dim]
    const float* v;  // [m, n_kv_heads, head_dim]
    KvCacheArgs cache;
    KvSlots slots;
};

// Mirrored by `SupersededArgs` in src/kernels/kv_store.rs.
struct SupersededArgs {
    KvSlots slots;
    u32* out;  // [m]
};
#include "layout/kv_store.cuh"

extern "C" __global__ void __launch_bounds__(128) kv_store(const __grid_constant__ KvStoreArgs args) {
    pdl_begin();
    const KvCacheArgs& cache = args.cache;
    u64 task = (u64)blockIdx.x * 4 + threadIdx.x / 32;
    u32 heads = 2 * cache.n_kv_heads;  // of a row: keys, then values
    if (task >= (u64)args.slots.m * heads) return;
    u32 row = task / heads, index = task % heads;
    bool reports = index == 0 && threadIdx.x % 32 == 0;
    const u32 page = slot_page(args.slots, cache, row, reports);
    if (page == NO_PAGE || is_superseded(args.slots, row)) return;
    u32 head = index % cache.n_kv_heads;
    bool is_value = index >= cache.n_kv_heads;
    const float* x = (is_value ? args.v : args.k) + ((u64)row * cache.n_kv_heads + head) * cache.head_dim;
    store_head(cache, is_value ? cache.v : cache.k, page, head, args.slots.positions[row], x);
}

extern "C" __global__ void __launch_bounds__(128) superseded(const __grid_constant__ SupersededArgs args) {
    pdl_begin();
    u32 row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= args.slots.m) return;
    bool found = is_superseded(args.slots, row);
    if (threadIdx.x % 32 == 0) args.out[row] = found;
}
