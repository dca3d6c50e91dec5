// targets: 90a
// Products of many rows by Hopper's matrix instructions: the same as gemm.cu, with its parameters.
//
// A block makes one tile after the other until all are made. One warp fetches, by bulk copies into a ring of stages; two
// groups of four warps multiply, half of the rows each, and write their sums while the next tile's stages are filled.
//
// A multiprocessor takes in 32 to 39 bytes a clock, so the larger a tile, the less its matrix units wait. Sharing operands between the
// blocks of a cluster does not change that.
#include "gemm.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

constexpr u32 GROUPS = 2, WARPS = 4 * GROUPS, THREADS = (GROUPS + 1) * 128;

// Stages that fill the shared memory of a multiprocessor, next to the barriers.
template <int ROWS, int COLUMNS>
struct Ring {
    static constexpr u32 X_BYTES = ROWS * PANEL_BYTES, W_BYTES = COLUMNS * PANEL_BYTES, STAGE_BYTES = X_BYTES + W_BYTES;
    static constexpr u32 STAGES = 225 * 1024 / STAGE_BYTES < 6 ? 225 * 1024 / STAGE_BYTES : 6;
};

template <typename Type, int ROWS, int COLUMNS, bool PAIR>
DEVICE void gemm(const GemmParams& p) {
    using Ring = Ring<ROWS, COLUMNS>;
    constexpr u32 STAGES = Ring::STAGES, STAGE_BYTES = Ring::STAGE_BYTES;
    constexpr u32 BLOCKS = ROWS / GROUPS / 64;  // of 64 rows in a group
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    pdl_launch_dependents();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 4;
    // The ring starts at a multiple of 1024, as the swizzle wants it.
    const u32 ring = (shared_address(memory) + 1023) / 1024 * 1024;
    const u32 filled = shared_address(barriers), freed = filled + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < STAGES; stage++) {
            mbarrier_init(filled + 8 * stage, 1);
            mbarrier_init(freed + 8 * stage, WARPS);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    pdl_wait();

    const u32 tall = (p.m + ROWS - 1) / ROWS, wide = (p.w_rows + COLUMNS - 1) / COLUMNS;
    const u32 tiles = tall * wide, steps = p.panels * p.passes;
    u32 stage = 0, parity = 0;
    auto advance = [&] {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    };
    if (group == GROUPS) {
        setmaxnreg_dec<40>();
        if (threadIdx.x % 128 == 0) {
            for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
                Tile tile = tile_of<2048 / ROWS>(index, tall, wide);
                Operands operands(p, tile.row * ROWS, tile.column * COLUMNS);
                for (u32 step = 0; step < steps; step++) {
                    u32 to = ring + stage * STAGE_BYTES, barrier = filled + 8 * stage;
                    mbarrier_wait_parity(freed + 8 * stage, parity ^ 1);
                    mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
                    cp_async_bulk(to, operands.x, Ring::X_BYTES, barrier);
                    cp_async_bulk(to + Ring::X_BYTES, operands.w, Ring::W_BYTES, barrier);
                    operands.next(p);
                    advance();
                }
            }
        }
        return;
    }
    setmaxnreg_inc<232>();
    // Of a stage that this warp has done with.
    auto release = [&](u32 stage) {
        if (lane == 0) mbarrier_arrive(freed + 8 * stage);
    };
    for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
        Tile tile = tile_of<2048 / ROWS>(index, tall, wide);
        float sums[BLOCKS][COLUMNS / 8][4] = {};
        u32 before = 0;
#pragma unroll
        for (u32 block = 0; block < BLOCKS; block++) wgmma_fence_operand(sums[block]);
        for (u32 step = 0; step < steps; step++) {
            u32 at = ring + stage * STAGE_BYTES;
            mbarrier_wait_parity(filled + 8 * stage, parity);
            u64 x = wgmma_descriptor(at + group * BLOCKS * 64 * PANEL_BYTES), w = wgmma_descriptor(at + Ring::X_BYTES);
            wgmma_fence();
#pragma unroll
            for (u32 k = 0; k < PANEL / 16; k++)
#pragma unroll
                for (u32 block = 0; block < BLOCKS; block++)
                    Wgmma<Type>::mma(sums[block], x + block * (64 * PANEL_BYTES / 16) + 2 * k, w + 2 * k);
            wgmma_commit();
            wgmma_wait<1>();
            if (step != 0) release(before);
            before = stage;
            advance();
        }
        wgmma_wait<0>();
        release(before);
        u32 row = tile.row * ROWS + group * BLOCKS * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
        for (u32 block = 0; block < BLOCKS; block++) {
            wgmma_fence_operand(sums[block]);
            write_sums<PAIR>(p, row + block * 64, tile.column * COLUMNS, sums[block]);
        }
    }
}

#define KERNEL(name, Type, ROWS, COLUMNS, PAIR)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ GemmParams p) {             \
        gemm<Type, ROWS, COLUMNS, PAIR>(p);                                                                           \
    }
#define KERNELS(ROWS, COLUMNS)                                                                                        \
    KERNEL(gemm_bf16_##ROWS##_##COLUMNS, MmaBf16, ROWS, COLUMNS, false)                                                \
    KERNEL(gemm_f16_##ROWS##_##COLUMNS, MmaF16, ROWS, COLUMNS, false)                                                   \
    KERNEL(gemm_pair_bf16_##ROWS##_##COLUMNS, MmaBf16, ROWS, COLUMNS, true)                                            \
    KERNEL(gemm_pair_f16_##ROWS##_##COLUMNS, MmaF16, ROWS, COLUMNS, true)
KERNELS(128, 80)
KERNELS(128, 128)
KERNELS(128, 192)
KERNELS(128, 256)
KERNELS(256, 160)
