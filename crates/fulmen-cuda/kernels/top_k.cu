// The largest values of each row in descending order, and their columns; of equal ones the lowest column
// first, never NaN or -inf.
//
// Algorithm: a two-level selection by 64-bit keys (ordered_key.cuh), whose order is total. Tile: 4096 values.
// - top_k_parts: grid rows x parts of 4096 values, 1024 threads, 4 values per thread in registers. A warp
//   selects the largest of its 128 keys, one per round of shuffles, into shared memory; the first warp merges
//   the 32 sorted lists, a lane per list.
// - top_k: one block per row merges the sorted lists of its parts, a thread per list: in each round the block
//   takes the largest of the heads.
// Launched by src/kernels/top_k.rs.
//
// Layouts: x [rows, width] f32; part_keys [rows, parts, k], sorted, 0 for none; values and indices [rows, k],
// -inf and NO_TOKEN for none.
// Preconditions: k at most 64; parts = ceil(width / 4096), at most 1024.
// Numerics: exact.
// Bound: one pass over the values, and the latency of k rounds of selection. Not measured.
#include "largest_keys.cuh"

constexpr u32 PART = 4096;  // values of a block of top_k_parts
constexpr u32 PART_THREADS = 1024;
constexpr u32 MAX_K = 64;
constexpr u32 MAX_PARTS = 1024;
constexpr u32 NO_TOKEN = ~0u;

struct TopKArgs {
    const float* x;  // [rows, width]
    float* values;   // [rows, k]
    u32* indices;    // [rows, k]
    u64* part_keys;  // [rows, parts, k]
    u32 width;
    u32 parts;
    u32 k;
    u32 first;  // added to columns
};
#include "layout/top_k.cuh"

extern "C" __global__ void __launch_bounds__(PART_THREADS)
    top_k_parts(const __grid_constant__ TopKArgs args) {
    constexpr u32 OWN = PART / PART_THREADS;
    __shared__ u64 lists[PART_THREADS / 32][MAX_K];
    pdl_begin();
    const float* x = args.x + (u64)blockIdx.x * args.width;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 keys[OWN];
#pragma unroll
    for (u32 j = 0; j < OWN; j++) {
        u32 i = blockIdx.y * PART + j * PART_THREADS + threadIdx.x;
        keys[j] = i < args.width ? ordered_key(x[i], i) : 0;
    }
    for (u32 at = 0; at < args.k; at++) {
        u64 key = take_largest(keys);
        if (lane == 0) lists[warp][at] = key;
    }
    __syncthreads();
    if (warp != 0) return;
    u64* part_keys = args.part_keys + ((u64)blockIdx.x * args.parts + blockIdx.y) * args.k;
    u32 next = 0;
    for (u32 at = 0; at < args.k; at++) {
        u64 head = next < args.k ? lists[lane][next] : 0;
        u64 key = warp_max(head);
        if (head == key) next++;
        if (lane == 0) part_keys[at] = key;
    }
}

extern "C" __global__ void __launch_bounds__(MAX_PARTS) top_k(const __grid_constant__ TopKArgs args) {
    __shared__ u64 warp_keys[32];
    pdl_begin();
    u64 row = blockIdx.x;
    const u64* list = args.part_keys + (row * args.parts + threadIdx.x) * args.k;
    u32 next = 0;
    u64 head = threadIdx.x < args.parts ? list[0] : 0;
    for (u32 at = 0; at < args.k; at++) {
        u64 key = block_max(head, warp_keys);
        // Keys are all different but for 0, which stands for none.
        if (key != 0 && head == key) {
            next++;
            head = next < args.k ? list[next] : 0;
        }
        if (threadIdx.x == 0) {
            args.values[row * args.k + at] = key != 0 ? key_value(key) : -INFINITE;
            args.indices[row * args.k + at] = key != 0 ? key_index(key) + args.first : NO_TOKEN;
        }
    }
}
