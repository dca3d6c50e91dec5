// targets: 90a
// Products of many rows by Hopper's matrix instructions: the same as gemm.cu, with its parameters.
//
// A cluster of two blocks makes tiles of 256 rows, one after the other until all are made: each block has 128 rows of x, and
// both have the same columns of the weights, of which each fetches half and sends it to both. One warp fetches, by bulk
// copies into a ring of stages; two groups of four warps multiply, 64 rows each, and write their sums while the next
// tile's stages are filled.
#include "gemm.cuh"
#include "wgmma.cuh"

constexpr u32 ROWS = 128, WARPS = 8, THREADS = (WARPS + 1) * 32, CLUSTER = 2;
constexpr u32 X_BYTES = ROWS * PANEL_BYTES;

// Stages that fill the shared memory of a multiprocessor, next to the barriers.
template <int COLUMNS>
struct Ring {
    static constexpr u32 STAGE_BYTES = X_BYTES + COLUMNS * PANEL_BYTES;
    static constexpr u32 STAGES = 220 * 1024 / STAGE_BYTES < 6 ? 220 * 1024 / STAGE_BYTES : 6;
};

template <typename Type, int COLUMNS, bool PAIR>
__device__ __forceinline__ void gemm(const GemmParams& p) {
    constexpr u32 STAGES = Ring<COLUMNS>::STAGES, STAGE_BYTES = Ring<COLUMNS>::STAGE_BYTES;
    constexpr u32 HALF = COLUMNS / CLUSTER;
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    let_next_start();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = cluster_rank();
    // The ring starts at a multiple of 1024, as the swizzle wants it.
    const u32 ring = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 filled = shared_address(barriers), freed = filled + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            barrier_init(filled + 8 * stage, 1);
            barrier_init(freed + 8 * stage, CLUSTER * WARPS);
        }
        barriers_made();
    }
    cluster_sync();
    wait_for_previous();

    const u32 tall = (p.m + CLUSTER * ROWS - 1) / (CLUSTER * ROWS), wide = (p.w_rows + COLUMNS - 1) / COLUMNS;
    const u32 tiles = tall * wide, steps = p.panels * p.passes;
    u32 stage = 0, parity = 0;
    auto advance = [&] {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    };
    if (warp == WARPS) {
        if (lane == 0) {
            for (u32 index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
                Tile tile = tile_of<2048 / (CLUSTER * ROWS)>(index, tall, wide);
                Operands operands(p, (tile.row * CLUSTER + rank) * ROWS, tile.column * COLUMNS + rank * HALF);
                for (u32 step = 0; step < steps; step++) {
                    u32 to = ring + stage * STAGE_BYTES, barrier = filled + 8 * stage;
                    barrier_wait(freed + 8 * stage, parity ^ 1);
                    barrier_expect(barrier, STAGE_BYTES);
                    bulk_copy(to, operands.x, X_BYTES, barrier);
                    bulk_copy_to_all(to + X_BYTES + rank * HALF * PANEL_BYTES, operands.w, HALF * PANEL_BYTES, barrier,
                                     (1 << CLUSTER) - 1);
                    operands.next(p);
                    advance();
                }
            }
        }
        __syncwarp();
    } else {
        const u32 group = warp / 4;
        // Of a stage that this warp has done with.
        auto release = [&](u32 stage) {
            if (lane < CLUSTER) barrier_arrive(freed + 8 * stage, lane);
        };
        for (u32 index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
            Tile tile = tile_of<2048 / (CLUSTER * ROWS)>(index, tall, wide);
            float sums[COLUMNS / 8][4] = {};
            u32 before = 0;
            keep(sums);
            for (u32 step = 0; step < steps; step++) {
                u32 at = ring + stage * STAGE_BYTES;
                barrier_wait(filled + 8 * stage, parity);
                u64 x = tile_descriptor(at + group * 64 * PANEL_BYTES), w = tile_descriptor(at + X_BYTES);
                wgmma_begin();
#pragma unroll
                for (u32 k = 0; k < PANEL / 16; k++) Wgmma<Type>::multiply(sums, x + 2 * k, w + 2 * k);
                wgmma_commit();
                wgmma_wait<1>();
                if (step != 0) release(before);
                before = stage;
                advance();
            }
            wgmma_wait<0>();
            keep(sums);
            release(before);
            u32 row = (tile.row * CLUSTER + rank) * ROWS + group * 64 + warp % 4 * 16 + lane / 4;
            write_sums<PAIR>(p, row, tile.column * COLUMNS, sums);
        }
    }
    // No block may end while another sends to it.
    cluster_sync();
}

#define KERNEL(name, Type, COLUMNS, PAIR)                                                                             \
    extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)                          \
        name(const __grid_constant__ GemmParams p) {                                                                  \
        gemm<Type, COLUMNS, PAIR>(p);                                                                                 \
    }
#define KERNELS(COLUMNS)                                                                                              \
    KERNEL(gemm_bf16_##COLUMNS, Bfloat, COLUMNS, false)                                                               \
    KERNEL(gemm_f16_##COLUMNS, Half, COLUMNS, false)                                                                  \
    KERNEL(gemm_pair_bf16_##COLUMNS, Bfloat, COLUMNS, true)                                                           \
    KERNEL(gemm_pair_f16_##COLUMNS, Half, COLUMNS, true)
KERNELS(128)
KERNELS(160)
KERNELS(256)
