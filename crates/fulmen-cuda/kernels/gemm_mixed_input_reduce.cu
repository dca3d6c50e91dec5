// targets: 90
// The reductions of the mixed-input GEMM (gemm_mixed_input.cu): add up the partials of each tile that several
// blocks have computed, in the order of the blocks, and finish its columns. Kernels of their own, because the
// last block of a tile would take longer: it has one SM's share of the L2 bandwidth. Launched by
// src/kernels/gemm_mixed_input/reduce.rs.
//
// - gemm_mixed_input_reduce: the columns of shared tiles, any number of weight matrices. _pair: of two GEMMs.
// - gemm_mixed_input_reduce_rows: whole rows of one result, also normed if an RMS norm follows, and
//   packed as panels for the next GEMM (pack_row.cuh): one launch instead of a reduction, a norm and a
//   conversion. _cluster2: two blocks a row, for few and long rows.
// - Layouts: partials [slot][row of x][column of the tile], f32; results f32 [m, n]; panels (f16_panels.cuh).
// - Tiles: four columns of a row per thread; all partials of four columns are loaded by one thread.
// - Preconditions: those of the GEMM; by rows, one matrix or gate and up, with float4 columns.
// - Numerics: f32, partials in the order of the blocks.
// - Bound: latency. The partials lie in L2: 128 * N * 4 bytes for each of 132 to 264 segments. Not measured
//   alone since rows are finished whole; before, a reduction added 3.5 to 8.6 us to a GEMM of 64 rows (H200).
#include "gemm_mixed_input.cuh"
#include "pack_row.cuh"

// Finishes four columns of a row of x in a tile, by a thread.
DEVICE void reduce_tile(const GemmMixedInputArgs& args, u32 index) {
    const SharedTile tile(args, index);
    if (tile.complete()) return;
    const u32 columns = args.gate_up ? TILE_ROWS / 2 : TILE_ROWS, in_tile = threadIdx.x % 32 * 4;
    const WarpTile first(args, index, 0);
    const GemmWeight& weight = args.weights[first.weight];
    const u32 x_row = blockIdx.y * REDUCE_ROWS + threadIdx.x / 32, column = first.row + in_tile;
    if (x_row >= args.m || in_tile >= columns || column >= weight.rows) return;
    float* out = weight.out + (u64)x_row * weight.rows + column;
    if (weight.vectorized) {
        *(float4*)out = finish_x4(args, tile, weight, x_row, in_tile, column);
        return;
    }
#pragma unroll 1
    for (u32 i = 0; i < min(4u, weight.rows - column); i++) {
        const u32 at = in_tile + i;
        const float scale = args.row_scales[x_row];
        if (args.gate_up) {
            const u32 gate = at / 8 * 16 + at % 8;
            out[i] = fast_gated(tile.sum_one(args, x_row, gate) * scale,
                                tile.sum_one(args, x_row, gate + 8) * scale, args.gelu);
        } else {
            const float bias = weight.bias ? weight.bias[column + i] : 0;
            const float add = weight.residual ? weight.residual[out + i - weight.out] : 0;
            out[i] = tile.sum_one(args, x_row, at) * scale + bias + add;
        }
    }
}

// Grid: tiles x groups of REDUCE_ROWS rows of x.
extern "C" __global__ void __launch_bounds__(32 * REDUCE_ROWS)
    gemm_mixed_input_reduce(const __grid_constant__ GemmMixedInputArgs args) {
    pdl_begin();
    reduce_tile(args, blockIdx.x);
}

// Grid: tiles of both GEMMs x groups of REDUCE_ROWS rows of x.
extern "C" __global__ void __launch_bounds__(32 * REDUCE_ROWS)
    gemm_mixed_input_reduce_pair(const __grid_constant__ GemmMixedInputPairArgs args) {
    pdl_begin();
    if (blockIdx.x < args.tiles)
        reduce_tile(args.gemms[0], blockIdx.x);
    else
        reduce_tile(args.gemms[1], blockIdx.x - args.tiles);
}

// One weight matrix, or gate and up: a block finishes all columns of a row of x, and packs them, after an RMS
// norm if one follows, as the next GEMM reads them (pack_row.cuh). Columns of complete tiles are read back.
struct ReduceRowsArgs {
    GemmMixedInputArgs gemm;
    PackRowArgs row;
    u32 unused[2];
};
#include "layout/gemm_mixed_input_reduce.cuh"

struct ReducedRow {
    const GemmMixedInputArgs& args;
    const u32 row;

    DEVICE float4 first(u32 at) const {
        const GemmWeight& weight = args.weights[0];
        const u32 columns = args.gate_up ? TILE_ROWS / 2 : TILE_ROWS, index = at / columns;
        const SharedTile tile(args, index);
        if (tile.complete()) return again(at);
        const float4 v = finish_x4(args, tile, weight, row, at - index * columns, at);
        *(float4*)(weight.out + (u64)row * weight.rows + at) = v;
        return v;
    }
    // What this thread or the GEMM has written.
    DEVICE float4 again(u32 at) const {
        return ldcg4(args.weights[0].out + (u64)row * args.weights[0].rows + at);
    }
};

template <int CLUSTER>
DEVICE void reduce_rows(const ReduceRowsArgs& args) {
    pdl_launch_dependents();
    if (CLUSTER > 1) cluster_arrive_relaxed();
    const u32 columns = args.gemm.weights[0].rows;
    // The weights that were streamed since its last use have evicted gamma from L2.
    if (args.row.gamma && threadIdx.x == 0 && blockIdx.x < 2)
        cp_async_bulk_prefetch_l2_covering(args.row.gamma, columns * 4);
    pdl_wait();
    ReducedRow source{args.gemm, blockIdx.x / CLUSTER};
    pack_row<Panels, 3, CLUSTER>(args.row, source, blockIdx.x / CLUSTER, columns, columns);
}

// Grid: rows of x.
extern "C" __global__ void __launch_bounds__(1024)
    gemm_mixed_input_reduce_rows(const __grid_constant__ ReduceRowsArgs args) {
    reduce_rows<1>(args);
}

// Grid: rows of x, a cluster of two blocks for each.
extern "C" __global__ void __launch_bounds__(1024)
    gemm_mixed_input_reduce_rows_cluster2(const __grid_constant__ ReduceRowsArgs args) {
    reduce_rows<2>(args);
}
