// Pairs of a row and one of its experts, grouped by expert: what the GEMMs by expert id share
// (expert_gemm.cu, expert_small_m.cu). Launched with them.
//
// A counting sort by one block of SORT_THREADS threads. `order` lists the pairs of expert 0, then of expert
// 1, ...; `tiles` has one entry per tile of up to `tile_pairs` pairs of one expert; entries past the last are
// empty. A pair whose id is out of range is reported and left out. The order of the pairs of an expert varies
// from run to run; results must not depend on it.
#pragma once
#include "experts.cuh"

constexpr u32 SORT_THREADS = 1024, MAX_EXPERTS = 1024;

// Pairs of an expert.
struct ExpertTile {
    u32 expert;
    u32 first;  // in `order`
    u32 pairs;
    u32 unused;
};

// Mirrored by `ExpertSortArgs` in src/kernels/expert_sort.rs.
struct ExpertSortArgs {
    const u32* ids;     // [pairs]
    u32* order;         // [pairs]
    ExpertTile* tiles;  // [max_tiles]
    Fault* fault;
    u32 pairs;
    u32 top_k;
    u32 n_experts;
    u32 max_tiles;
    u32 tile_pairs;
    u32 unused;
};
#include "layout/expert_sort.cuh"

// Sums of the values before each thread's, over the block; `warp_totals` has a value per warp.
DEVICE u32 exclusive_scan(u32 value, u32* warp_totals) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = value;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(FULL_WARP, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warp_totals[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        u32 total = warp_totals[lane];
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(FULL_WARP, total, step);
            if (lane >= step) total += other;
        }
        warp_totals[lane] = total;
    }
    __syncthreads();
    const u32 before = sum - value + (warp ? warp_totals[warp - 1] : 0);
    __syncthreads();
    return before;
}

// By all threads of a block of SORT_THREADS.
DEVICE void sort_pairs(const ExpertSortArgs& args) {
    __shared__ u32 counts[MAX_EXPERTS], warp_totals[SORT_THREADS / 32], all_tiles;
    // One thread per expert.
    const u32 expert = threadIdx.x;
    counts[expert] = 0;
    __syncthreads();
#pragma unroll 1
    for (u32 pair = threadIdx.x; pair < args.pairs; pair += SORT_THREADS) {
        const u32 id = args.ids[pair];
        if (id < args.n_experts)
            atomicAdd(&counts[id], 1u);
        else if (id != NO_EXPERT)
            report(args.fault, FAULT_EXPERT, pair / args.top_k, id, args.n_experts);
    }
    __syncthreads();
    const u32 count = counts[expert], tiles = (count + args.tile_pairs - 1) / args.tile_pairs;
    const u32 first = exclusive_scan(count, warp_totals), first_tile = exclusive_scan(tiles, warp_totals);
#pragma unroll 1
    for (u32 i = 0; i < tiles; i++) {
        const u32 begin = i * args.tile_pairs;
        args.tiles[first_tile + i] = {expert, first + begin, min(args.tile_pairs, count - begin), 0};
    }
    if (expert == SORT_THREADS - 1) all_tiles = first_tile + tiles;
    // The next free place of each expert.
    counts[expert] = first;
    __syncthreads();
#pragma unroll 1
    for (u32 tile = all_tiles + threadIdx.x; tile < args.max_tiles; tile += SORT_THREADS)
        args.tiles[tile] = {0, 0, 0, 0};
#pragma unroll 1
    for (u32 pair = threadIdx.x; pair < args.pairs; pair += SORT_THREADS) {
        const u32 id = args.ids[pair];
        if (id < args.n_experts) args.order[atomicAdd(&counts[id], 1u)] = pair;
    }
}
