// targets: 90a
// Mixed-input GEMM (W4A16 to W8A16) on wgmma: y[m, n] = x[m, k] W[n, k]^T for m = 17..256 rows and
// block-quantized W (Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0), with fused SwiGLU or GeGLU of gate and
// up, or bias and residual. For decode batches above 16 rows and prefill chunks of up to 256. Launched by
// src/kernels/gemm_mixed_input/mod.rs.
//
// Algorithm
//   y^T = W x^T. Weights are dequantized in registers to f16 A-fragments of wgmma.m64nNk16; x is its B
//   operand in shared memory. Every byte of W is read once for up to 256 rows of x. Stream-K: all tiles times
//   K chunks are split evenly over one block per SM (gemm_mixed_input.cuh). Q, K and V in two formats, as in
//   half of the layers of Q4_K_M, are two such GEMMs in one launch, each with a part of the blocks.
//
// Tiles
//   128 rows of W (two warpgroups of 64) x N = 32, 64, 128, 192 or 256 padded rows of x. K chunk: 256
//   columns. W ring: 2 to 4 stages (16 rows x 256 columns for each warp); x ring: 2 to 6 stages (128
//   columns); 223 KiB together.
//
// Warp roles, 288 threads; 384 for N above 128
//   8 consumer warps, two warpgroups. Each warp streams its own 16 rows of W into a ring of W_STAGES chunks
//   and dequantizes them: TMA tiles for Q4_K and Q5_K, cp.async for the others. Four k-steps are dequantized
//   while the wgmma of the four before them run.
//   One thread of the last warp, the producer, copies stages of x (half a chunk, one TMA bulk copy) into a
//   ring of X_STAGES. Above 128 rows that warp is a warpgroup, from which setmaxnreg moves registers to the
//   consumers. Below, a quarter to a third of the registers are left to blocks of the reduction, which start
//   beside this one.
//
//     mbarrier          arrives                                   waits
//     w_full[w][s]      TMA bytes, or 32 cp.async arrivals        consumer warp w, before it reads stage s
//     x_full[s]         bytes of the TMA bulk copy                consumers, before their wgmma read stage s
//     x_empty[s]        8 consumer warps, when their wgmma        producer, before it refills stage s
//                       have read stage s
//
//   Weights do not depend on the previous kernel, so their rings fill before `pdl_wait`.
//
// Memory layouts
//   x       f16 panels (f16_panels.cuh), packed by pack_f16_fragments.cu with a power-of-two scale per row
//   W       as in a GGUF file, row-major blocks; a stage has 16 rows of one chunk
//   y       f32 [m, n]
//   shared  x ring | weight rings: [warp][stage]
//
// Preconditions (gemm_mixed_input/mod.rs)
//   Compute capability 9.0 (wgmma); x zero-padded to whole chunks; W of Q4_K and Q5_K 16-byte aligned; fewer
//   than 2^21 work items.
//
// Numerics
//   f16 operands, f32 accumulation over all of K. Weights are rounded to f16 once (gemm_mixed_input_formats.
//   cuh), rows of x after scaling by a power of two (row_scaling.cuh).
//
// Performance
//   Bound by the bytes of W up to about 100 rows, by tensor cores above. H200, Qwen3-4B Q4_K_M: the matmuls
//   of a layer take 67 us for 64 rows, 88 for 128 and 150 for 256, with the reductions, which is 26, 39 and
//   46 % of the bound. What is lost: dequantization and wgmma do not overlap, start-up, the
//   reduction (docs/lab/cuda-decode.md).
#include "gemm_mixed_input.cuh"
#include "gemm_mixed_input_formats.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/wgmma.cuh"
#include "uniform_warp.cuh"

constexpr u32 at_most(u32 value, u32 most) { return value < most ? value : most; }

// ---- Weights ----------------------------------------------------------------------------------------------

// The loader of a consumer warp: streams its rows of all items of the block into its ring.
template <class F>
struct WeightLoader {
    static constexpr u32 ROW_BYTES = F::ROW_VECTORS * 16, STAGE_BYTES = WARP_ROWS * ROW_BYTES;
    static constexpr u32 ROWS_AT_ONCE = 32 / F::ROW_VECTORS;

    const GemmMixedInputArgs& args;
    const SharedAddress ring, full;
    u32 left;         // items to load
    u32 tile, chunk;  // of the next one
    WarpTile place;   // TMA: tensor map and row of the tile
    // cp.async. rows[i]: base of warp rows 8 i to 8 i + 7; for gate and up rows[1] is biased by -8 rows, so
    // that + row * row_bytes fits both. ends[i]: end of that matrix.
    const u8 *rows[2], *ends[2];

    DEVICE WeightLoader(const GemmMixedInputArgs& args, SharedAddress ring, SharedAddress full)
        : args(args), ring(ring), full(full), place(args, 0, 0) {
        const u32 item = args.items.begin(args.block());
        left = args.items.begin(args.block() + 1) - item;
        tile = item / args.k_chunks, chunk = item - tile * args.k_chunks;
        begin_tile();
    }

    DEVICE void begin_tile() {
        place = WarpTile(args, tile, reload_tid_x() / 32);
        if constexpr (!F::ALIGNED) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const GemmWeight& weight = args.weights[args.gate_up ? i : place.weight];
                const u32 skipped = args.gate_up && i == 1 ? WARP_ROWS / 2 : 0;
                rows[i] = weight.data + ((long long)place.row - skipped) * weight.row_bytes;
                ends[i] = weight.data + (u64)weight.rows * weight.row_bytes;
            }
        }
    }

    DEVICE void load_tma(u32 stage) const {
        if (reload_tid_x() % 32 != 0) return;
        const SharedAddress to = ring + stage * STAGE_BYTES, barrier = full + 8 * stage;
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
        tma_load_2d(to, &args.tensor_maps[place.weight], chunk * F::CHUNK_BYTES, place.row, barrier);
        if (args.gate_up)
            tma_load_2d(to + STAGE_BYTES / 2, &args.tensor_maps[1], chunk * F::CHUNK_BYTES, place.row,
                        barrier);
    }

    // Vectors past the end of a row are the next row's; only those past the last row do not exist.
    DEVICE void load_cp_async(u32 stage) const {
        const u32 lane = reload_tid_x() % 32;
        const SharedAddress to = ring + stage * STAGE_BYTES + lane * 16;
        const u32 row_bytes = args.weights[place.weight].row_bytes, vector = lane % F::ROW_VECTORS * 16;
#pragma unroll
        for (u32 first = 0; first < WARP_ROWS; first += ROWS_AT_ONCE) {
            const u32 row = first + lane / F::ROW_VECTORS;
            const bool upper = row >= WARP_ROWS / 2;
            const u64 start =
                (u64)((upper ? rows[1] : rows[0]) + (u64)row * row_bytes + chunk * F::CHUNK_BYTES);
            const u8* from = (const u8*)(start & ~15ull) + vector;
            const bool wanted = lane < at_most(ROWS_AT_ONCE, WARP_ROWS - first) * F::ROW_VECTORS &&
                                from < (upper ? ends[1] : ends[0]);
            cp_async_16_l2_128_if(wanted, to + first * ROW_BYTES, from);
        }
        cp_async_mbarrier_arrive_noinc(full + 8 * stage);
    }

    // Loads the next item into a stage, if there is one.
    DEVICE void load(u32 stage) {
        if (left == 0) return;
        if (F::ALIGNED)
            load_tma(stage);
        else
            load_cp_async(stage);
        left--;
        if (++chunk == args.k_chunks) {
            chunk = 0, tile++;
            if (left > 0) begin_tile();
        }
    }
};

// ---- Pipelines and mainloop -------------------------------------------------------------------------------

template <class F, int N>
struct MixedInputMainloop {
    typedef WeightLoader<F> Loader;
    static_assert(follows_panel_order<F>());
    static constexpr u32 X_STAGE_BYTES = 256 * N, PANEL_BYTES = 128 * N;
    static constexpr u32 W_BYTES = CONSUMER_WARPS * Loader::STAGE_BYTES, RING_BYTES = SHARED_BYTES - 1024;
    static constexpr u32 W_STAGES = at_most((RING_BYTES - 2 * X_STAGE_BYTES) / W_BYTES, 4);
    static constexpr u32 X_STAGES = at_most((RING_BYTES - W_STAGES * W_BYTES) / X_STAGE_BYTES, 6);
    static_assert(W_STAGES >= 2 && X_STAGES >= 2);
    static constexpr u32 GROUP = 4;  // k-steps of a group of wgmma

    const GemmMixedInputArgs& args;
    const SharedAddress x_ring, x_full, x_empty;
    const u32 warp, lane;

    // By the producer.
    DEVICE void produce_x() const {
        pdl_wait();
        const u32 end = args.items.begin(args.block() + 1);
        u32 item = args.items.begin(args.block()), chunk = item % args.k_chunks;
        PipelineState pipeline;
        for (; item < end; item++) {
            for (u32 half = 0; half < 2; half++) {
                const SharedAddress barrier = x_full + 8 * pipeline.stage;
                mbarrier_wait_parity(x_empty + 8 * pipeline.stage, pipeline.parity ^ 1);
                mbarrier_arrive_expect_tx(barrier, X_STAGE_BYTES);
                cp_async_bulk(x_ring + pipeline.stage * X_STAGE_BYTES,
                              args.x + (u64)(2 * chunk + half) * X_STAGE_BYTES, X_STAGE_BYTES, barrier);
                pipeline.template advance<X_STAGES>();
            }
            if (++chunk == args.k_chunks) chunk = 0;
        }
    }

    DEVICE void release_x(u32 stage) const {
        if (lane == 0) mbarrier_arrive(x_empty + 8 * stage);
    }

    // The state of a consumer's pipelines between chunks.
    struct Pipelines {
        PipelineState x, w;
        u32 x_in_use;    // the stage of x that the wgmma in flight read
        bool in_flight;  // whether there are any
    };

    // One chunk: groups of GROUP k-steps. At most one group of wgmma is in flight while the next one is
    // dequantized.
    DEVICE void multiply_chunk(float (&sums)[N / 8][4], Loader& loader, Pipelines& pipelines,
                               const u8* weight_rows, const u32 (&row_address)[2], u32 chunk) const {
        F weights;
        mbarrier_wait_parity(loader.full + 8 * pipelines.w.stage, pipelines.w.parity);
        const u8* stage = weight_rows + pipelines.w.stage * Loader::STAGE_BYTES;
        const u32 skip[2] = {F::ALIGNED ? 0 : (row_address[0] + chunk * F::CHUNK_BYTES) & 15,
                             F::ALIGNED ? 0 : (row_address[1] + chunk * F::CHUNK_BYTES) & 15};
        weights.load_scales(stage + skip[0], stage + 8 * Loader::ROW_BYTES + skip[1],
                            args.k_blocks - chunk * 8, lane & 3);
#pragma unroll
        for (u32 step = 0; step < 16; step += GROUP) {
            u32 a[GROUP][4];
            if (step % F::STEPS == 0) weights.load_quants(step / F::STEPS);
#pragma unroll
            for (u32 i = 0; i < GROUP; i++) weights.a_fragment((step + i) % F::STEPS, a[i]);
            if (step + GROUP == 16) {
                // All of the stage has been read.
                __syncwarp();
                loader.load(pipelines.w.stage);
                pipelines.w.template advance<W_STAGES>();
            }
            if (step % 8 == 0) mbarrier_wait_parity(x_full + 8 * pipelines.x.stage, pipelines.x.parity);
            const u64 x =
                wgmma_descriptor(x_ring + pipelines.x.stage * X_STAGE_BYTES + step / 4 % 2 * PANEL_BYTES);
            wgmma_fence_operand(a);
            wgmma_fence();
#pragma unroll
            for (u32 i = 0; i < GROUP; i++) wgmma_a_registers_k_major(sums, a[i], x + 2 * (step % 4 + i));
            wgmma_commit();
            wgmma_wait<1>();
            if (step % 8 == 0) {
                if (pipelines.in_flight) release_x(pipelines.x_in_use);
                pipelines.in_flight = true;
                pipelines.x_in_use = pipelines.x.stage;
            } else if (step % 8 + GROUP == 8) {
                pipelines.x.template advance<X_STAGES>();
            }
        }
    }
};

// ---- Block ------------------------------------------------------------------------------------------------

template <class F, int N>
struct MixedInputGemm : MixedInputMainloop<F, N> {
    typedef MixedInputMainloop<F, N> Base;
    typedef typename Base::Loader Loader;
    typedef typename Base::Pipelines Pipelines;
    using Base::args, Base::warp, Base::lane;
    using Base::X_STAGES, Base::X_STAGE_BYTES, Base::W_STAGES;

    // The result of a whole tile.
    DEVICE void finish(const float (&sums)[N / 8][4], u32 tile) const {
        constexpr int AT_ONCE = N / 8 % 4 == 0 ? 4 : 2;
        const WarpTile place(args, tile, warp);
#pragma unroll
        for (u32 n = 0; n < N / 8; n += AT_ONCE) epilogue<AT_ONCE>(args, place, n, lane, sums + n);
    }

    DEVICE void store_partial(const float (&sums)[N / 8][4], u32 slot) const {
        float* to = partial_at(args, slot, lane % 4 * 2) + warp * WARP_ROWS + lane / 4;
#pragma unroll
        for (u32 n = 0; n < N / 8; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) to[(n * 8 + i % 2) * TILE_ROWS + i / 2 * 8] = sums[n][i];
    }

    DEVICE void consume(u8* weight_rings, SharedAddress w_full) const {
        u8* ring = weight_rings + warp * W_STAGES * Loader::STAGE_BYTES;
        Loader loader(args, shared_address(ring), w_full + 8 * warp * W_STAGES);
#pragma unroll 1
        for (u32 stage = 0; stage < W_STAGES; stage++) loader.load(stage);
        pdl_wait();
        const u8* weight_rows = ring + lane / 4 * Loader::ROW_BYTES;
        const u32 end = args.items.begin(args.block() + 1);
        u32 item = args.items.begin(args.block()), tile = item / args.k_chunks;
        u32 chunk = item - tile * args.k_chunks, slot = 2 * args.block();
        Pipelines pipelines = {{}, {}, 0, false};
#pragma unroll 1
        for (; item < end; tile++) {
            const u32 stop = min(args.k_chunks, chunk + end - item);
            const bool whole = chunk == 0 && stop == args.k_chunks;
            const WarpTile place(args, tile, warp);
            u32 row_address[2];  // low bits of the addresses of rows g and g + 8
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                const GemmWeight& weight = args.weights[args.gate_up ? r : place.weight];
                const u32 row = place.row + lane / 4 + (args.gate_up ? 0 : r * 8);
                row_address[r] = (u32)(u64)weight.data + row * weight.row_bytes;
            }
            float sums[N / 8][4] = {};
            wgmma_fence_operand(sums);
            item += stop - chunk;
#pragma unroll 1
            for (; chunk < stop; chunk++)
                this->multiply_chunk(sums, loader, pipelines, weight_rows, row_address, chunk);
            wgmma_wait<0>();
            wgmma_fence_operand(sums);
            this->release_x(pipelines.x_in_use);
            pipelines.in_flight = false;
            if (whole)
                finish(sums, tile);
            else
                store_partial(sums, slot);
            slot = 2 * args.block() + 1;
            chunk = 0;
        }
    }

    static DEVICE void run(const GemmMixedInputArgs& args) {
        extern __shared__ __align__(1024) u8 memory[];
        __shared__ __align__(8) u64 barriers[2 * X_STAGES + CONSUMER_WARPS * W_STAGES];
        pdl_launch_dependents();
        const SharedAddress x_full = shared_address(barriers), x_empty = x_full + 8 * X_STAGES;
        const SharedAddress w_full = x_empty + 8 * X_STAGES;
        const SharedAddress begin = shared_address(memory), x_ring = (begin + 1023) / 1024 * 1024;
        if (threadIdx.x < X_STAGES) {
            mbarrier_init(x_full + 8 * threadIdx.x, 1);
            mbarrier_init(x_empty + 8 * threadIdx.x, CONSUMER_WARPS);
        }
        if (threadIdx.x < CONSUMER_WARPS * W_STAGES)
            mbarrier_init(w_full + 8 * threadIdx.x, F::ALIGNED ? 1 : 32);
        fence_mbarrier_init();
        __syncthreads();
        const u32 warp = uniform_warp_index();
        const MixedInputGemm gemm{{args, x_ring, x_full, x_empty, warp, threadIdx.x % 32}};
        constexpr bool PRODUCER_WARPGROUP = N > PRODUCER_WARP_ROWS;
        if (warp >= CONSUMER_WARPS) {
            if (PRODUCER_WARPGROUP) setmaxnreg_dec<40>();
            if (threadIdx.x == 32 * CONSUMER_WARPS) gemm.produce_x();
        } else {
            if (PRODUCER_WARPGROUP) setmaxnreg_inc<232>();
            gemm.consume(memory + (x_ring - begin) + X_STAGES * X_STAGE_BYTES, w_full);
        }
    }
};

#define ENTRY(NAME, N)                                                                   \
    extern "C" __global__ void __launch_bounds__(threads(N), 1)                          \
        gemm_mixed_input_##NAME##_##N(const __grid_constant__ GemmMixedInputArgs args) { \
        MixedInputGemm<NAME, N>::run(args);                                              \
    }
#define FORMATS(N) \
    ENTRY(q4_k, N) \
    ENTRY(q5_k, N) \
    ENTRY(q6_k, N) \
    ENTRY(q4_0, N) \
    ENTRY(q4_1, N) \
    ENTRY(q5_0, N) \
    ENTRY(q5_1, N) \
    ENTRY(q8_0, N)
// Two GEMMs in one launch: the first blocks compute the first one.
#define PAIR_ENTRY(FIRST, SECOND, N)                                                                     \
    extern "C" __global__ void __launch_bounds__(threads(N), 1)                                          \
        gemm_mixed_input_##FIRST##_##SECOND##_##N(const __grid_constant__ GemmMixedInputPairArgs args) { \
        if (blockIdx.x < args.gemms[1].first_block)                                                      \
            MixedInputGemm<FIRST, N>::run(args.gemms[0]);                                                \
        else                                                                                             \
            MixedInputGemm<SECOND, N>::run(args.gemms[1]);                                               \
    }
#define PAIRS(N)              \
    PAIR_ENTRY(q4_k, q6_k, N) \
    PAIR_ENTRY(q5_k, q6_k, N)
FORMATS(32)
FORMATS(64)
FORMATS(128)
FORMATS(192)
FORMATS(256)
PAIRS(64)
PAIRS(128)
PAIRS(192)
PAIRS(256)
