// targets: 90a
// Warp-specialized persistent GEMM for prefill on Hopper: wgmma fed by TMA bulk copies. Same arguments and
// results as gemm.cu; launched by src/kernels/gemm/mod.rs, which chooses the tile (gemm/tile.rs).
//
// Tile: BLOCK_M x BLOCK_N of 128 x 80, 128 x 128, 128 x 192, 128 x 256 or 256 x 160, one K panel of 64
// elements per step.
// Grid: one block per SM; a block computes tile blockIdx.x, blockIdx.x + gridDim.x, ..., in bands of 2048
// rows (gemm.cuh).
// Warp roles, 384 threads: the third warpgroup is the producer, of which one thread copies the panels of x
// and w into a ring of up to 6 stages (225 KiB), one cp.async.bulk each since a tile of a panel is
// contiguous. Two consumer warpgroups compute BLOCK_M / 2 rows each and write their outputs while the
// producer fills the stages of the next tile. Each stage has a full mbarrier (1 arrival + bytes) and an empty
// one (8 arrivals, one per consumer warp). setmaxnreg moves registers from the producer to the consumers.
// Layouts: x and w are packed panels in bf16 or f16 (gemm_panels.cuh); outputs [m, n] f32.
// Preconditions, numerics and epilogue: as gemm.cu.
// Bound: the bandwidth into an SM's shared memory: 32 to 39 bytes per clock, so tensor cores are busy 38 % of
// the time with tiles of 128 x 80 and 77 % with 256 x 160. 570 to 700 TFLOP/s on an H200 for the GEMMs of a
// 2048-token prefill. Multicast within a cluster does not change that.
#include "gemm.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "uniform_warp.cuh"

constexpr u32 CONSUMERS = 2, CONSUMER_WARPS = 4 * CONSUMERS, THREADS = (CONSUMERS + 1) * 128;

template <typename Type, int BLOCK_M, int BLOCK_N, bool GATE_UP>
struct GemmHopper {
    static constexpr u32 X_BYTES = BLOCK_M * PANEL_ROW_BYTES, W_BYTES = BLOCK_N * PANEL_ROW_BYTES;
    static constexpr u32 STAGE_BYTES = X_BYTES + W_BYTES, STAGES_THAT_FIT = 225 * 1024 / STAGE_BYTES;
    static constexpr u32 STAGES = STAGES_THAT_FIT < 6 ? STAGES_THAT_FIT : 6;
    static constexpr u32 M_TILES = BLOCK_M / CONSUMERS / 64;  // wgmma tiles of 64 rows per consumer

    const GemmArgs& args;
    const SharedAddress ring, full, empty;
    const u32 tile_rows = (args.m + BLOCK_M - 1) / BLOCK_M,
              tile_columns = (args.w_rows + BLOCK_N - 1) / BLOCK_N;
    const u32 tiles = tile_rows * tile_columns, steps = args.k_panels * args.passes;
    const u32 warp, lane = threadIdx.x % 32;
    PipelineState pipeline;

    DEVICE GemmHopper(const GemmArgs& args, SharedAddress ring, SharedAddress full, SharedAddress empty)
        : args(args), ring(ring), full(full), empty(empty), warp(uniform_warp_index()) {}

    DEVICE TileCoord tile_of(u32 index) const {
        return tile_at<2048 / BLOCK_M>(index, tile_rows, tile_columns);
    }

    // By one thread.
    DEVICE void produce() {
        for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
            TileCoord tile = tile_of(index);
            OperandIterator operands(args, tile.row * BLOCK_M, tile.column * BLOCK_N);
            for (u32 step = 0; step < steps; step++) {
                u32 to = ring + pipeline.stage * STAGE_BYTES, barrier = full + 8 * pipeline.stage;
                mbarrier_wait_parity(empty + 8 * pipeline.stage, pipeline.parity ^ 1);
                mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
                cp_async_bulk(to, operands.x, X_BYTES, barrier);
                cp_async_bulk(to + X_BYTES, operands.w, W_BYTES, barrier);
                operands.advance(args);
                pipeline.template advance<STAGES>();
            }
        }
    }

    // By each warp, of a stage that it has finished reading.
    DEVICE void release(u32 stage) {
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
    }

    // The mainloop keeps one group of wgmma in flight: a stage is released when the next one's have been
    // issued.
    DEVICE void consume(u32 consumer) {
        for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
            TileCoord tile = tile_of(index);
            float acc[M_TILES][BLOCK_N / 8][4] = {};
            u32 previous_stage = 0;
#pragma unroll
            for (u32 i = 0; i < M_TILES; i++) wgmma_fence_operand(acc[i]);
            for (u32 step = 0; step < steps; step++) {
                u32 at = ring + pipeline.stage * STAGE_BYTES;
                mbarrier_wait_parity(full + 8 * pipeline.stage, pipeline.parity);
                u64 x = wgmma_descriptor(at + consumer * M_TILES * 64 * PANEL_ROW_BYTES),
                    w = wgmma_descriptor(at + X_BYTES);
                wgmma_fence();
#pragma unroll
                for (u32 k = 0; k < PANEL / 16; k++)
#pragma unroll
                    for (u32 i = 0; i < M_TILES; i++)
                        Wgmma<Type>::mma(acc[i], x + i * (64 * PANEL_ROW_BYTES / 16) + 2 * k, w + 2 * k);
                wgmma_commit();
                wgmma_wait<1>();
                if (step != 0) release(previous_stage);
                previous_stage = pipeline.stage;
                pipeline.template advance<STAGES>();
            }
            wgmma_wait<0>();
            release(previous_stage);
            u32 row = tile.row * BLOCK_M + consumer * M_TILES * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
            for (u32 i = 0; i < M_TILES; i++) {
                wgmma_fence_operand(acc[i]);
                epilogue<GATE_UP>(args, row + i * 64, tile.column * BLOCK_N, acc[i]);
            }
        }
    }

    static DEVICE void run(const GemmArgs& args) {
        extern __shared__ __align__(1024) u8 memory[];
        __shared__ __align__(8) u64 barriers[2 * STAGES];
        pdl_launch_dependents();
        // The ring is 1024-byte aligned for the swizzle.
        const SharedAddress ring = (shared_address(memory) + 1023) / 1024 * 1024;
        const SharedAddress full = shared_address(barriers), empty = full + 8 * STAGES;
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; stage++) {
                mbarrier_init(full + 8 * stage, 1);
                mbarrier_init(empty + 8 * stage, CONSUMER_WARPS);
            }
            fence_mbarrier_init();
        }
        __syncthreads();
        pdl_wait();
        GemmHopper gemm(args, ring, full, empty);
        const u32 warpgroup = gemm.warp / 4;
        if (warpgroup == CONSUMERS) {
            setmaxnreg_dec<40>();
            if (threadIdx.x % 128 == 0) gemm.produce();
        } else {
            setmaxnreg_inc<232>();
            gemm.consume(warpgroup);
        }
    }
};

#define KERNEL(name, Type, BLOCK_M, BLOCK_N, GATE_UP)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const __grid_constant__ GemmArgs args) { \
        GemmHopper<Type, BLOCK_M, BLOCK_N, GATE_UP>::run(args);                                            \
    }
#define KERNELS(BLOCK_M, BLOCK_N)                                                    \
    KERNEL(gemm_bf16_##BLOCK_M##_##BLOCK_N, MmaBf16, BLOCK_M, BLOCK_N, false)        \
    KERNEL(gemm_f16_##BLOCK_M##_##BLOCK_N, MmaF16, BLOCK_M, BLOCK_N, false)          \
    KERNEL(gemm_gate_up_bf16_##BLOCK_M##_##BLOCK_N, MmaBf16, BLOCK_M, BLOCK_N, true) \
    KERNEL(gemm_gate_up_f16_##BLOCK_M##_##BLOCK_N, MmaF16, BLOCK_M, BLOCK_N, true)
KERNELS(128, 80)
KERNELS(128, 128)
KERNELS(128, 192)
KERNELS(128, 256)
KERNELS(256, 160)
