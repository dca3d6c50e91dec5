// GEMM for prefill with mma.sync, for every GPU from compute capability 8.0 on: out = x · wᵀ (+ bias) (+
// residual), or SwiGLU or GeGLU of two matmuls; gemm_hopper.cu is the one for Hopper. Launched by
// src/kernels/gemm/mod.rs for what the small-M and mixed-input GEMMs do not take: more than 256 rows (48
// where there is no mixed-input kernel, 16 with float weights).
//
// Tile: 128 x 128 of the output per block of 8 warps, 64 x 32 per warp, one K panel of 64 elements per step.
// Three stages of x and w panels in shared memory (96 KiB), filled by cp.async; two blocks per SM. Grid: one
// block per tile, in bands of 2048 rows (gemm.cuh). Each warp reads A and B fragments by ldmatrix;
// accumulators are f32 in registers.
// Layouts: x and w are packed panels in bf16 or f16 (gemm_panels.cuh); outputs [m, n] f32.
// Preconditions and epilogue: see gemm.cuh. f16 operands have a power-of-two scale per row of x; bf16 ones
// may be split into two parts (`passes`), which gives 16 bits of each significand.
// Bound: tensor cores and the bandwidth of L2 into shared memory; not measured on devices that take it.
#include "gemm.cuh"

constexpr int TILE = 128, STAGES = 3, THREADS = 256;
constexpr int WARP_M = 64, WARP_N = 32;
constexpr u32 TILE_BYTES = TILE * PANEL_ROW_BYTES, STAGE_BYTES = 2 * TILE_BYTES;

template <typename Type, bool GATE_UP>
DEVICE void gemm(const GemmArgs& args) {
    extern __shared__ __align__(1024) u8 stages[];
    pdl_begin();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    TileCoord tile =
        tile_at<2048 / TILE>(blockIdx.x, (args.m + TILE - 1) / TILE, (args.w_rows + TILE - 1) / TILE);
    u32 steps = args.k_panels * args.passes;
    SharedAddress memory = shared_address(stages);

    OperandIterator operands(args, tile.row * TILE, tile.column * TILE);
    auto load_stage = [&](u32 step) {
        if (step < steps) {
            u32 to = memory + step % STAGES * STAGE_BYTES + threadIdx.x * 16;
#pragma unroll
            for (u32 i = 0; i < TILE_BYTES; i += THREADS * 16) {
                cp_async_16(to + i, operands.x + threadIdx.x * 16 + i);
                cp_async_16(to + TILE_BYTES + i, operands.w + threadIdx.x * 16 + i);
            }
            operands.advance(args);
        }
        cp_async_commit();
    };
    for (u32 step = 0; step < STAGES - 1; step++) load_stage(step);

    float acc[WARP_M / 16][WARP_N / 8][4] = {};
    // The chunk of the first 16 elements that a lane addresses for ldmatrix; the next 16 are two chunks
    // further.
    u32 x_row = warp % 2 * WARP_M + lane % 16, w_row = warp / 2 * WARP_N + lane % 8 + lane / 16 * 8;
    u32 x_at = memory + x_row * PANEL_ROW_BYTES + ((lane / 16) ^ (x_row % 8)) * 16;
    u32 w_at = memory + TILE_BYTES + w_row * PANEL_ROW_BYTES + ((lane / 8 % 2) ^ (w_row % 8)) * 16;
    for (u32 step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        load_stage(step + STAGES - 1);
        u32 stage = step % STAGES * STAGE_BYTES;
#pragma unroll
        for (u32 k = 0; k < PANEL / 16; k++) {
            u32 b[WARP_N / 16][4];
#pragma unroll
            for (u32 j = 0; j < WARP_N / 16; j++)
                ldmatrix_x4(b[j], stage + (w_at ^ (k * 32)) + j * 16 * PANEL_ROW_BYTES);
#pragma unroll
            for (u32 i = 0; i < WARP_M / 16; i++) {
                u32 a[4];
                ldmatrix_x4(a, stage + (x_at ^ (k * 32)) + i * 16 * PANEL_ROW_BYTES);
#pragma unroll
                for (u32 j = 0; j < WARP_N / 8; j++)
                    Type::mma(acc[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
    u32 row = tile.row * TILE + warp % 2 * WARP_M + lane / 4;
    u32 column = tile.column * TILE + warp / 2 * WARP_N;
#pragma unroll
    for (u32 i = 0; i < WARP_M / 16; i++) epilogue<GATE_UP>(args, row + i * 16, column, acc[i]);
}

#define KERNEL(name, Type, GATE_UP)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ GemmArgs args) { \
        gemm<Type, GATE_UP>(args);                                                                         \
    }
KERNEL(gemm_bf16, MmaBf16, false)
KERNEL(gemm_f16, MmaF16, false)
KERNEL(gemm_gate_up_bf16, MmaBf16, true)
KERNEL(gemm_gate_up_f16, MmaF16, true)
