// Decode attention (attention_decode.cu): the kernel for any type of cache.
#pragma once

#include "attention_decode_epilogue.cuh"

template <typename Block>
DEVICE void attention_decode(const AttentionDecodeArgs& args) {
    extern __shared__ __align__(128) u8 rings[];
    __shared__ typename Block::Shared shared;
    __shared__ typename Block::ClusterPartials partials;
    pdl_launch_dependents();
    if constexpr (HAS_CLUSTERS && Block::CLUSTER > 1) cluster_arrive();
    // The step's weights have evicted the gammas from L2: prefetched before anything is waited for.
    if (HAS_CLUSTERS && threadIdx.x == 0 && blockIdx.x % Block::CLUSTER == 0) {
        if (args.q_gamma) cp_async_bulk_prefetch_l2_covering(args.q_gamma, Block::HEAD_DIM * 4);
        if (args.k_gamma) cp_async_bulk_prefetch_l2_covering(args.k_gamma, Block::HEAD_DIM * 4);
    }
    const Block block(args, shared, partials, rings);
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

// TYPE: of the cache. FILE and NAME: of the kernel, before and after its head size.
#define DECODE_KERNEL(TYPE, FILE, NAME, HEAD_DIM, CLUSTER, STAGES, SINGLE_ROW)            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                 \
        FILE##_##HEAD_DIM##_##NAME(const __grid_constant__ AttentionDecodeArgs args) {    \
        attention_decode<DecodeBlock<TYPE, HEAD_DIM, CLUSTER, STAGES, SINGLE_ROW>>(args); \
    }
