// Decode attention (attention_decode.cu): the kernel for any type of cache.
#pragma once

#include "attention_decode_epilogue.cuh"

// Blocks per row and KV head, or part of its query heads, in mixed steps.
constexpr int MIXED_SPLITS = HAS_CLUSTERS ? 2 : 1;

// One row; the blocks of a cluster have arrived at its barrier.
template <typename Block>
DEVICE void decode_row(const AttentionDecodeArgs& args, typename Block::Shared& shared,
                       typename Block::ClusterPartials& partials, u8* rings, u32 row) {
    const Block block(args, shared, partials, rings, row);
    if (!Block::SINGLE_ROW && block.sequence == NO_SEQUENCE) {
        // A later kernel may rely on this one to have waited for all before it.
        pdl_wait();
        block.clear_output();
        if constexpr (HAS_CLUSTERS && Block::SPLITS > 1) cluster_wait();
        return;
    }
    TileLoader<Block> loader(block);
    Prologue<Block> prologue(block);
    prologue.find_new_rows();
    if (!args.fused_store) pdl_wait();
    if (prologue.only_row) loader.load_first_tiles(block.cached);
    prologue.compute_rotation();
    prologue.clear_queries();
    __syncthreads();
    prologue.read_rotation();
    if (args.fused_store) pdl_wait();
    prologue.run();
    block.report_invalid_row();
    // What a warp has stored to the cache is read by cp.async of other warps after the barrier: the fence
    // orders these stores for the block explicitly.
    __threadfence_block();
    __syncthreads();
    if (!Block::SINGLE_ROW && !prologue.only_row) loader.load_first_tiles(block.position + 1);
    Mainloop<Block> mainloop(block);
    mainloop.run(loader);
    Epilogue<Block>(block, mainloop).run(prologue.query);
    loader.report_invalid_page();
}

template <typename Block>
DEVICE void attention_decode(const AttentionDecodeArgs& args) {
    extern __shared__ __align__(128) u8 rings[];
    __shared__ typename Block::Shared shared;
    __shared__ typename Block::ClusterPartials partials;
    pdl_launch_dependents();
    if constexpr (HAS_CLUSTERS && Block::SPLITS > 1) cluster_arrive();
    // The step's weights have evicted the gammas from L2: prefetched before anything is waited for.
    if (HAS_CLUSTERS && threadIdx.x == 0 && blockIdx.x % Block::SPLITS == 0) {
        if (args.q_gamma) cp_async_bulk_prefetch_l2_covering(args.q_gamma, Block::HEAD_DIM * 4);
        if (args.k_gamma) cp_async_bulk_prefetch_l2_covering(args.k_gamma, Block::HEAD_DIM * 4);
        if (Block::SCORE_MODS && args.scores.sinks)
            cp_async_bulk_prefetch_l2_covering(args.scores.sinks, args.n_heads * 4);
    }
    decode_row<Block>(args, shared, partials, rings, blockIdx.y);
}

// The decode rows of a mixed step, whose number is in device memory: grid y is a number of rows that fills
// the device, and a block takes every so many rows.
template <typename Block>
DEVICE void attention_decode_mixed(const AttentionDecodeArgs& args) {
    extern __shared__ __align__(128) u8 rings[];
    __shared__ typename Block::Shared shared;
    __shared__ typename Block::ClusterPartials partials;
    pdl_begin();
    const u32 rows = min(args.work[0], args.rows);
#pragma unroll 1
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        // The other blocks of the cluster send their partial results after this, so they do not overwrite
        // those of the previous row while they are read.
        if constexpr (HAS_CLUSTERS && Block::SPLITS > 1) cluster_arrive();
        decode_row<Block>(args, shared, partials, rings, row);
        __syncthreads();
    }
}

// Whether the kernels of a file have score modifiers; then their names have `_scores` before the head size.
#ifdef DECODE_SCORE_MODS
#define DECODE_NAME(FILE, HEAD_DIM, NAME) FILE##_scores_##HEAD_DIM##_##NAME
#else
#define DECODE_SCORE_MODS false
#define DECODE_NAME(FILE, HEAD_DIM, NAME) FILE##_##HEAD_DIM##_##NAME
#endif

// TYPE: of the cache. FILE and NAME: of the kernel, before and after its head size.
#define DECODE_KERNEL_OF(TYPE, FILE, NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW, ...)                       \
    extern "C" __global__ void __launch_bounds__(decode_warps<TYPE, HEAD_DIM>() * 32, ##__VA_ARGS__)        \
        DECODE_NAME(FILE, HEAD_DIM, NAME)(const __grid_constant__ AttentionDecodeArgs args) {               \
        attention_decode<DecodeBlock<TYPE, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW, DECODE_SCORE_MODS>>(args); \
    }
#define DECODE_KERNEL(TYPE, FILE, NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW) \
    DECODE_KERNEL_OF(TYPE, FILE, NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW)
#define DECODE_MIXED_KERNEL(TYPE, FILE, HEAD_DIM, STAGES)                                                    \
    extern "C" __global__ void __launch_bounds__(decode_warps<TYPE, HEAD_DIM>() * 32)                        \
        DECODE_NAME(FILE, HEAD_DIM, mixed)(const __grid_constant__ AttentionDecodeArgs args) {               \
        attention_decode_mixed<DecodeBlock<TYPE, HEAD_DIM, MIXED_SPLITS, STAGES, false, DECODE_SCORE_MODS>>( \
            args);                                                                                           \
    }
// Without clusters.
#define COMBINE_KERNEL(HEAD_DIM)                                                                \
    extern "C" __global__ void __launch_bounds__(AMPERE_WARPS * 32)                             \
        attention_decode_combine_##HEAD_DIM(const __grid_constant__ AttentionDecodeArgs args) { \
        combine_splits<HEAD_DIM>(args);                                                         \
    }
