// Products of many rows on tensor cores, for every GPU from compute capability 8.0 on: out = x · wᵀ (+ bias) (+ residual),
// or SwiGLU of two products. See gemm.cuh.
//
// A block of eight warps makes 128 x 128 elements of the output, a warp 64 x 32 of them. Panels of 64 elements pass through
// three stages of shared memory.
#include "gemm.cuh"

constexpr int SIDE = 128, STAGES = 3, THREADS = 256;
constexpr int WARP_ROWS = 64, WARP_COLUMNS = 32;
constexpr u32 TILE_BYTES = SIDE * PANEL_BYTES, STAGE_BYTES = 2 * TILE_BYTES;

template <typename Type, bool PAIR>
DEVICE void gemm(const GemmParams& p) {
    extern __shared__ __align__(1024) u8 stages[];
    pdl_begin();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Tile tile = tile_of<2048 / SIDE>(blockIdx.x, (p.m + SIDE - 1) / SIDE, (p.w_rows + SIDE - 1) / SIDE);
    u32 steps = p.panels * p.passes, memory = shared_address(stages);

    Operands operands(p, tile.row * SIDE, tile.column * SIDE);
    auto fetch = [&](u32 step) {
        if (step < steps) {
            u32 to = memory + step % STAGES * STAGE_BYTES + threadIdx.x * 16;
#pragma unroll
            for (u32 i = 0; i < TILE_BYTES; i += THREADS * 16) {
                cp_async_16(to + i, operands.x + threadIdx.x * 16 + i);
                cp_async_16(to + TILE_BYTES + i, operands.w + threadIdx.x * 16 + i);
            }
            operands.next(p);
        }
        cp_async_commit();
    };
    for (u32 step = 0; step < STAGES - 1; step++) fetch(step);

    float sums[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};
    // Where in a tile a lane points at, for the first 16 elements; the next 16 are two pieces further.
    u32 x_row = warp % 2 * WARP_ROWS + lane % 16, w_row = warp / 2 * WARP_COLUMNS + lane % 8 + lane / 16 * 8;
    u32 x_at = memory + x_row * PANEL_BYTES + ((lane / 16) ^ (x_row % 8)) * 16;
    u32 w_at = memory + TILE_BYTES + w_row * PANEL_BYTES + ((lane / 8 % 2) ^ (w_row % 8)) * 16;
    for (u32 step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        fetch(step + STAGES - 1);
        u32 stage = step % STAGES * STAGE_BYTES;
#pragma unroll
        for (u32 k = 0; k < PANEL / 16; k++) {
            u32 b[WARP_COLUMNS / 16][4];
#pragma unroll
            for (u32 j = 0; j < WARP_COLUMNS / 16; j++)
                ldmatrix_x4(b[j], stage + (w_at ^ (k * 32)) + j * 16 * PANEL_BYTES);
#pragma unroll
            for (u32 i = 0; i < WARP_ROWS / 16; i++) {
                u32 a[4];
                ldmatrix_x4(a, stage + (x_at ^ (k * 32)) + i * 16 * PANEL_BYTES);
#pragma unroll
                for (u32 j = 0; j < WARP_COLUMNS / 8; j++)
                    Type::mma(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
    u32 row = tile.row * SIDE + warp % 2 * WARP_ROWS + lane / 4;
    u32 column = tile.column * SIDE + warp / 2 * WARP_COLUMNS;
#pragma unroll
    for (u32 i = 0; i < WARP_ROWS / 16; i++) write_sums<PAIR>(p, row + i * 16, column, sums[i]);
}

#define KERNEL(name, Type, PAIR)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ GemmParams p) {             \
        gemm<Type, PAIR>(p);                                                                                          \
    }
KERNEL(gemm_bf16, MmaBf16, false)
KERNEL(gemm_f16, MmaF16, false)
KERNEL(gemm_pair_bf16, MmaBf16, true)
KERNEL(gemm_pair_f16, MmaF16, true)
