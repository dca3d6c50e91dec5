// What the kernels of the mixed-input GEMM share (gemm_mixed_input.cu): arguments, the partition of the work
// (stream-K) and the epilogue.
//
// - A tile is TILE_ROWS = 128 rows of W times all rows of x: 16 rows for each of the 8 consumer warps. For
//   gate and up a tile is 64 rows of both; a warp has 8 rows of gate and the same 8 of up, so that a lane
//   holds both accumulators of a SwiGLU.
// - A work item is (tile, K chunk). The items of all tiles, tile after tile, are split evenly over the
//   blocks. What a block computes of one tile is a segment. If it is not all of K, the block stores its
//   accumulators as a partial, and `gemm_mixed_input_reduce` adds up the partials of the tile in the order of
//   the blocks, so results do not depend on timing.
#pragma once

#include "even_split.cuh"
#include "float4.cuh"
#include "f16_panels.cuh"
#include "gemm_weight.cuh"
#include "ptx/tma.cuh"

constexpr u32 CONSUMER_WARPS = 8, WARP_ROWS = 16, TILE_ROWS = CONSUMER_WARPS * WARP_ROWS;
// With up to this many padded rows of x the producer of x is one warp, with more a warpgroup (setmaxnreg).
constexpr u32 PRODUCER_WARP_ROWS = 128;
constexpr u32 threads(u32 n) { return 32 * CONSUMER_WARPS + (n <= PRODUCER_WARP_ROWS ? 32 : 128); }
constexpr u32 REDUCE_ROWS = 8;            // rows of x per block of the reduction
constexpr u32 SHARED_BYTES = 224 * 1024;  // dynamic; up to 1023 bytes of it align the ring of x

struct GemmMixedInputArgs {
    TensorMap tensor_maps[MAX_WEIGHTS];  // of the weights, if their rows are whole 16-byte vectors
    const u8* x;                         // panels (f16_panels.cuh) of N rows
    const float* row_scales;             // [m]
    float* partials;                     // [2 * blocks][N][TILE_ROWS]
    EvenSplit items;                     // over the blocks
    u32 m;
    u32 k_blocks;   // of 32 columns
    u32 k_chunks;   // of 256 columns
    u32 n_weights;  // 1 for gate and up
    u32 gate_up;
    u32 padded_rows;  // N
    GemmWeight weights[MAX_WEIGHTS];
    u32 gelu;         // the activation of the gate: 0 SiLU, 1 GELU
    u32 first_block;  // of the launch that computes this GEMM
    u32 unused[12];

    // The block's number among those of this GEMM.
    DEVICE u32 block() const { return blockIdx.x - first_block; }
};

// Two GEMMs of one x in one launch: of weights in two formats.
struct GemmMixedInputPairArgs {
    GemmMixedInputArgs gemms[2];
    u32 tiles;  // of the first
    u32 unused[15];
};
#include "layout/gemm_mixed_input.cuh"

// The rows of a warp in a tile: from `row` on of weight `weight`; for gate and up 8 rows of both.
struct WarpTile {
    u32 weight, row;

    DEVICE WarpTile(const GemmMixedInputArgs& args, u32 tile, u32 warp) : weight(0) {
        while (weight + 1 < args.n_weights && tile >= args.weights[weight + 1].first_tile) weight++;
        const u32 in_weight = (tile - args.weights[weight].first_tile) * CONSUMER_WARPS + warp;
        row = in_weight * (args.gate_up ? WARP_ROWS / 2 : WARP_ROWS);
    }
};

// Where a partial has the columns of a tile for a row of x. Column i of a warp's 16 is that of row i of its
// rows; for gate and up, the first 8 are of gate and the others of up.
DEVICE float* partial_at(const GemmMixedInputArgs& args, u32 slot, u32 x_row) {
    return args.partials + ((u64)slot * args.padded_rows + x_row) * TILE_ROWS;
}

// Finishes COUNT n-tiles from n-tile `first` on: lane 4 g + t holds in sums[n][i] row g + i / 2 * 8 of the
// warp's rows (gate and up: row g of gate and of up) and row 8 n + 2 t + i % 2 of x.
template <int COUNT>
DEVICE void epilogue(const GemmMixedInputArgs& args, const WarpTile& tile, u32 first, u32 lane,
                     const float (*sums)[4]) {
    const GemmWeight& weight = args.weights[tile.weight];
    const u32 x_row = first * 8 + lane % 4 * 2, row = tile.row + lane / 4;
    const bool exists[2] = {row < weight.rows, !args.gate_up && row + 8 < weight.rows};
    float add[COUNT][4] = {};
    // All residuals are loaded before the first store: they may alias the output.
    if (weight.residual) {
#pragma unroll
        for (int n = 0; n < COUNT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (x_row + n * 8 + i % 2 < args.m && exists[i / 2])
                    add[n][i] = weight.residual[(u64)(x_row + n * 8 + i % 2) * weight.rows + row + i / 2 * 8];
    }
    const float bias[2] = {weight.bias && exists[0] ? weight.bias[row] : 0,
                           weight.bias && exists[1] ? weight.bias[row + 8] : 0};
#pragma unroll
    for (int n = 0; n < COUNT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            if (x_row + n * 8 + c >= args.m) continue;
            const float scale = args.row_scales[x_row + n * 8 + c];
            float* out = weight.out + (u64)(x_row + n * 8 + c) * weight.rows + row;
            if (args.gate_up) {
                if (exists[0]) out[0] = fast_gated(sums[n][c] * scale, sums[n][2 + c] * scale, args.gelu);
            } else {
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (exists[r]) out[r * 8] = sums[n][2 * r + c] * scale + bias[r] + add[n][2 * r + c];
            }
        }
}

// The blocks that share a tile, which is complete if it is one. Only the first of them can have begun with
// another tile: its partial is in its second slot then, those of the others are in their first.
struct SharedTile {
    u32 block, last;
    bool second_slot;

    DEVICE SharedTile(const GemmMixedInputArgs& args, u32 tile) {
        const u32 first_item = tile * args.k_chunks;
        block = args.items.owner(first_item), last = args.items.owner(first_item + args.k_chunks - 1);
        second_slot = args.items.begin(block) < first_item;
    }
    DEVICE bool complete() const { return block == last; }

    DEVICE const float* partial(const GemmMixedInputArgs& args, u32 at, u32 x_row) const {
        return partial_at(args, 2 * at + (at == block && second_slot), x_row);
    }

    // Adds up their partials of a column for a row of x, in the order of the blocks.
    DEVICE float sum_one(const GemmMixedInputArgs& args, u32 x_row, u32 column) const {
        float sum = 0;
#pragma unroll 1
        for (u32 at = block; at <= last; at++) sum += __ldcg(partial(args, at, x_row) + column);
        return sum;
    }

    // The same of four columns, with AT_ONCE loads in flight.
    template <int AT_ONCE>
    DEVICE float4 sum(const GemmMixedInputArgs& args, u32 x_row, u32 column) const {
        float4 sum = splat4(0);
#pragma unroll 1
        for (u32 first = block; first <= last; first += AT_ONCE) {
            float4 v[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                v[i] = first + i <= last ? ldcg4(partial(args, first + i, x_row) + column) : splat4(0);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) sum = sum + v[i];
        }
        return sum;
    }
};

// Four columns of the result for a row of x, from its sums: SwiGLU or GeGLU, or bias and residual. They
// exist, and all addresses are multiples of 16.
DEVICE float4 finish_x4(const GemmMixedInputArgs& args, const SharedTile& tile, const GemmWeight& weight,
                        u32 x_row, u32 in_tile, u32 column) {
    const float scale = args.row_scales[x_row];
    if (args.gate_up) {
        const u32 at = in_tile / 8 * 16 + in_tile % 8;
        const float4 gate = tile.sum<2>(args, x_row, at) * scale;
        const float4 up = tile.sum<2>(args, x_row, at + 8) * scale;
        return fast_gated4(gate, up, args.gelu);
    }
    float4 v = tile.sum<8>(args, x_row, in_tile) * scale;
    if (weight.bias) v = v + ldcg4(weight.bias + column);
    if (weight.residual) v = v + ldcg4(weight.residual + (u64)x_row * weight.rows + column);
    return v;
}
