// Small-M GEMM (gemm_small_m.cu): kernel arguments, and how the work is partitioned over clusters, blocks and
// warps.
//
// - An output tile is TILE = 16 rows of a weight matrix times all rows of x. Tiles are split over the
//   clusters of the grid.
// - Split-K: the K chunks (256 columns) of a tile are split over the blocks of the cluster, so that a matrix
//   with few rows still fills the GPU and no block needs all of x.
// - A work item is (tile, K chunk). The items of a block, tile after tile, are split evenly over its consumer
//   warps in consecutive ranges: most partial sums stay in registers, and a warp shares at most its first and
//   last tile with another one.
// - With two weight formats (Q4_K and Q6_K) each format has its own tiles and clusters.
//
// The host side is gemm_small_m/config.rs.
#pragma once

#include "even_split.cuh"
#include "forwarding.cuh"
#include "gemm_weight.cuh"
#include "l2_prefetch.cuh"

constexpr u32 MAX_WARPS = 12;           // consumer warps
constexpr u32 WIDE_GATE_UP_WARPS = 11;  // the same for gate and up with 32 rows of x
// K chunks of a block (one mbarrier each); x for 52 chunks of 8 rows exceeds shared memory.
constexpr u32 MAX_CHUNKS = 52;
constexpr u32 MAX_STAGES = 4;
constexpr u32 TILE = K_SLICE;  // rows of W; a tile of the output is a K slice of the next GEMM

// Flags in the low bits of `cluster_partials`.
constexpr u32 HEAD_PARTIALS_PER_TILE = 1;  // head partials have a slot per tile, not per warp
constexpr u32 PARTIALS_OVERLAY_X = 2;      // cluster partials take the place of x in shared memory

struct GemmSmallMArgs {
    TensorMap tensor_maps
        [MAX_WEIGHTS];        // of the weights of the first format, if its rows are whole 16-byte vectors
    const u8* x[2];           // f16 fragments in the K order of the first format and of the second
    const float* row_scales;  // [ROWS], where x was packed with row scaling
    ForwardedInput forwarded_in;
    ForwardedOutput forwarded_out;  // only with one, vectorized, weight
    u32 m;                          // rows of x
    u32 k_blocks;                   // of 32 columns
    u32 k_chunks;                   // of 256 columns
    u32 n_weights;                  // 1 for gate and up
    u32 first_format_weights;
    u32 first_format_clusters;
    EvenSplit tile_split[2];  // tiles of each format over its clusters
    EvenSplit chunk_split;    // K chunks over the blocks of a cluster
    u32 cluster_size;         // blocks; at most k_chunks
    u32 consumer_warps;       // the producer warp is one more
    u32 stages;               // of a warp's ring: 2 to MAX_STAGES
    u32 stage_bytes;
    u32 x_bytes;           // of shared memory for x, which tail partials reuse
    u32 cluster_partials;  // offset in shared memory of what other blocks send; the low bits are flags
    float epsilon;         // of the RMS norm
    u32 n_tensor_maps;
    GemmWeight weights[MAX_WEIGHTS];
    L2Prefetch prefetch;
    u32 gelu;  // the activation of the gate: 0 SiLU, 1 GELU
    u32 unused[11];
};
#include "layout/gemm_small_m_schedule.cuh"

// What the producer warp publishes to the consumer warps, with the mbarriers that say when.
struct __align__(16) SharedState {
    float row_scales[32];              // what the accumulators of each row are multiplied by
    u64 scales_ready;                  // `row_scales`: 32 arrivals of the producer warp
    u64 fits_ready;                    // `fits`: one arrival of the producer warp
    u64 partials_ready;                // cluster partials: bytes of st.async by all blocks of the cluster
    u32 fits;                          // whether forwarded fragments can be used as they are
    volatile float prefetch_sink[32];  // target of loads whose only purpose is to fill caches
};
static_assert(sizeof(SharedState) + sizeof(u64) * (MAX_CHUNKS + MAX_WARPS * MAX_STAGES) <= 1152,
              "STATIC_BYTES of gemm_small_m/config.rs");

// This block's work: tiles [first_tile, end_tile) of a format and K chunks [first_chunk, end_chunk).
struct BlockWork {
    u32 rank, cluster, first_tile, end_tile, first_chunk, end_chunk, chunks;
    bool second_format;
    EvenSplit items;  // over the consumer warps

    DEVICE BlockWork(const GemmSmallMArgs& args, bool two_formats) {
        cluster = quotient(blockIdx.x, args.cluster_size), rank = blockIdx.x - cluster * args.cluster_size;
        second_format = two_formats && cluster >= args.first_format_clusters;
        if (second_format) cluster -= args.first_format_clusters;
        first_tile = args.tile_split[second_format].begin(cluster);
        end_tile = args.tile_split[second_format].begin(cluster + 1);
        first_chunk = args.chunk_split.begin(rank), end_chunk = args.chunk_split.begin(rank + 1);
        chunks = end_chunk - first_chunk;
        const u32 all = (end_tile - first_tile) * chunks;
        items.each = quotient(all, args.consumer_warps), items.extra = all - items.each * args.consumer_warps;
    }
};

// Where a tile is: `rows` rows (16, fewer at the end) from `row` on of weight matrix `weight`.
struct OutputTile {
    u32 weight, row, rows;

    DEVICE OutputTile(const GemmSmallMArgs& args, const BlockWork& work, u32 tile)
        : weight(work.second_format ? args.first_format_weights : 0) {
        const u32 end = work.second_format ? args.n_weights : args.first_format_weights;
        while (weight + 1 < end && tile >= args.weights[weight + 1].first_tile) weight++;
        row = (tile - args.weights[weight].first_tile) * TILE;
        rows = min(TILE, args.weights[weight].rows - row);
    }

    // The first byte of its rows; `which` is 1 for the up matrix of gate and up.
    DEVICE const u8* data(const GemmSmallMArgs& args, u32 which) const {
        return args.weights[weight + which].data + (u64)row * args.weights[weight].row_bytes;
    }
};

// A position in the sequence of a warp's work items.
struct ItemIterator {
    u32 tile, chunk;

    // Advances; true if the next item belongs to another tile.
    DEVICE bool next(const BlockWork& work) {
        if (++chunk < work.end_chunk) return false;
        chunk = work.first_chunk;
        tile++;
        return true;
    }
};
