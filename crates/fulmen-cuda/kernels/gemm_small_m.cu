// targets: 90
// Weight-only quantized (W4A16 to W8A16) small-M GEMM: y[m, n] = x[m, k] W[n, k]^T for m = 2..32 rows and
// block-quantized W (Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, IQ4_NL, IQ4_XS), with fused
// SwiGLU or GeGLU of gate and up, or bias and residual. For decode at batch 2 to 32; up to 48 rows in several
// launches. Launched by src/kernels/gemm_small_m/mod.rs.
//
// Algorithm
//   Weights are dequantized in registers to f16 A-fragments of mma.m16n8k16; activations are its B-fragments.
//   Every byte of W is read once. Warp-specialized: consumer warps stream weights and multiply, one producer
//   warp loads x. Split-K over the blocks of a cluster, with a reduction through distributed shared memory.
//
// Tiles
//   Output tile: 16 rows of W (MMA M) x ROWS = 8, 16 or 32 rows of x (1, 2 or 4 n-tiles). For gate and up a
//   tile is 16 rows of both, which share the B-fragments. K chunk: 256 columns. Work item: one tile x one K
//   chunk, one pipeline stage.
//
// Mapping (gemm_small_m_schedule.cuh; chosen in gemm_small_m/config.rs)
//   grid     clusters * cluster_size blocks, at most one per SM; tiles are split over the clusters
//   cluster  1, 2, 4 or 8 blocks that split the K chunks of the cluster's tiles
//   block    up to 12 consumer warps and the producer warp, the last one
//   warp     a consecutive range of the block's work items, tile after tile
//
// Pipeline
//   Each consumer warp has a ring of 2 to 4 stages and loads its own weights (gemm_small_m_weights.cuh): TMA
//   tiles for Q4_K and Q5_K, cp.async for the others. Weights do not depend on the previous kernel, so the
//   rings fill before `pdl_wait`. The producer warp waits for the previous kernel, copies x with cp.async and
//   publishes the row scales.
//
//     mbarrier              arrives                              waits
//     stage_full[w][s]      TMA bytes, or 32 cp.async arrivals   consumer warp w, before it reads stage s
//     x_full[c]             32 cp.async arrivals (producer)      consumers, before they multiply chunk c
//     state.fits_ready      producer, if x was forwarded         consumers, before their first item
//     state.scales_ready    32 lanes of the producer             consumers, before the epilogue
//     state.partials_ready  st.async bytes of all blocks         consumers of the block that finishes a tile
//
//   Named barrier 1: the producer arrives when it has initialized its mbarriers, consumers wait for that;
//   later the consumers use it among themselves, before and after they repack x (`repack_from_f32`), when x
//   is no longer needed and when partials are stored.
//
// Reduction and epilogue
//   1. A tile whose chunks one warp has multiplied alone is finished by that warp, from a stage of its ring.
//   2. Other tiles: warps store partials to shared memory, and are added up in the order of the warps.
//   3. In a cluster, these sums go to the block that finishes the tile (st.async to distributed shared
//      memory), which adds them up in the order of the blocks. So results do not depend on timing. Each block
//      applies its own row scales before it sends its sums: a repack makes them differ between blocks.
//   Tail partial: a warp's sums of the tile that its range of items stops in. Head partial: a warp's sums of
//   a tile that its range goes beyond and that it did not compute alone.
//
// Memory layouts
//   x       f16 fragments: [chunk][18 k-steps][lanes], also in shared memory (f16_fragments.cuh)
//   W       as in a GGUF file, row-major blocks; a stage has 16 rows of one chunk
//   y       f32 [m, n]; with forwarding also f16 fragments for the next GEMM (forwarding.cuh)
//   shared  x (later tail partials) | rings: [warp][stage] | head partials | cluster partials (or over x)
//           static: SharedState, x_full, stage_full
//
// Preconditions (small_m.rs, config.rs)
//   Compute capability 9.0; x fragments 16-byte aligned, ROWS rows, zero-padded to whole chunks; W of Q4_K
//   and Q5_K 16-byte aligned; at most 52 chunks per block.
//
// Numerics
//   f16 operands, f32 accumulation. Rows of x were scaled by a power of two (row_scaling.cuh); or forwarded
//   by attention as an eighth, with row scale 8; or forwarded by a GEMM unscaled, with flags that say whether
//   f16 holds them: if not, consumer warps repack x from f32.
//   K-quants: integer scales are applied in f16, exactly for Q4_K and Q5_K; products of Q6_K above 2048 are
//   rounded to 11 bits. Block scales are applied in f32, as are the row scales of x for all formats. Minima
//   and zero points are multiplied with the sums of 16 columns of x (two f16 per sum), so they do not cancel
//   in f16. The formats of 32 elements apply block scales, minima and zero points to each element, in f16.
//
// Performance
//   Bound by the bytes of W. H200, 16 rows, kernels timed alone: LM head 66 % of the memory bandwidth,
//   gate-up 37 %, down 23 to 27 %, QKV 19 %, output projection 14 %: the small ones are bound by start-up, x
//   and reduction latency (docs/lab/cuda-decode.md). Fewer clusters than SMs are faster where the
//   next kernel can start on free SMs.
#include "gemm_small_m_epilogue.cuh"
#include "gemm_small_m_mainloop.cuh"
#include "ptx/cluster.cuh"

// Caps registers at 128 per thread; a block has at most 416 threads, which leaves registers for another
// kernel's block. Gate and up for 32 rows need 168, and have at most WIDE_GATE_UP_WARPS consumer warps.
constexpr u32 launch_bound(u32 rows, bool gate_up) { return rows == 32 && gate_up ? 384 : 512; }
static_assert(32 * (MAX_WARPS + 1) <= launch_bound(32, false), "consumer warps and the producer warp");
static_assert(32 * (WIDE_GATE_UP_WARPS + 1) <= launch_bound(32, true), "the same");

// ---- Consumer warps ---------------------------------------------------------------------------------------

// A consumer warp: mainloop, reductions and epilogue.
template <class F, class G, int ROWS, bool GATE_UP>
struct ConsumerWarp : Mainloop<F, G, ROWS, GATE_UP> {
    typedef Mainloop<F, G, ROWS, GATE_UP> Base;
    using Base::args, Base::work, Base::state, Base::ring;
    using Base::Base;
    using Base::cluster_partial, Base::head_partial, Base::tail_partial;
    using Base::TILE_FLOATS, Base::PARTIAL_FLOATS;

    // Who contributes to a tile: this warp alone, warps of this block, blocks of the cluster.
    enum Phase { COMPLETE_TILES, WARP_REDUCTION, CLUSTER_REDUCTION };

    // The partials of a tile: sources [first, end). Partial i is at base + i * PARTIAL_FLOATS, except in
    // WARP_REDUCTION, where partial() finds warp i's head or tail partial.
    struct Sources {
        u32 first, end;
        const float* base;
    };

    DEVICE const float* partial(Phase phase, const Sources& sources, u32 i, u32 index) const {
        if (phase != WARP_REDUCTION) return sources.base + i * PARTIAL_FLOATS;
        return work.items.begin(i + 1) <= (index + 1) * work.chunks ? tail_partial(i)
                                                                    : head_partial(i, index);
    }

    // Accumulators times the row scale. Not times the product of both factors, which may overflow.
    static DEVICE float4 scaled(float4 sum, float row_scale) {
        static_assert(F::SCALE == G::SCALE, "one for both");
        return sum * F::SCALE * row_scale;
    }

    // Adds up float4 of a tile, in the order of the sources: the one at float `at`, and at every 128th float
    // after it below `end`. Runs the epilogue, or sends the sum to the block of the cluster that does.
    DEVICE void reduce(Phase phase, const Sources& sources, u32 index, u32 at, u32 end) {
#pragma unroll 1
        for (; at < end; at += 128) {
            float4 value = {}, up = {};
#pragma unroll 1
            for (u32 i = sources.first; i < sources.end; i++) {
                const float* sums = partial(phase, sources, i, index);
                value = value + *(const float4*)(sums + at);
                if (GATE_UP) up = up + *(const float4*)(sums + TILE_FLOATS + at);
            }
            if (phase != CLUSTER_REDUCTION) {
                mbarrier_wait_parity(&state.scales_ready, 0);
                const float row_scale = state.row_scales[Accumulators<ROWS>::x_row(at)];
                value = scaled(value, row_scale);
                if (GATE_UP) up = scaled(up, row_scale);
            }
            if (phase == WARP_REDUCTION && args.cluster_size > 1) {
                const u32 slot = quotient(index, args.cluster_size) * args.cluster_size;
                float* to = cluster_partial(slot + work.rank) + at;
                st_async_v4(to, &state.partials_ready, index - slot, value);
                if (GATE_UP) st_async_v4(to + TILE_FLOATS, &state.partials_ready, index - slot, up);
            } else {
                epilogue<ROWS, GATE_UP>(args, OutputTile(args, work, work.first_tile + index), at, value, up);
            }
        }
    }

    // Runs the mainloop and finishes complete tiles as they come; then adds up the partials of the block's
    // warps and, in a cluster, those of its blocks: block r finishes tiles r, r + cluster_size ... The phases
    // share one copy of the code, because instruction fetch is a good part of the run time.
    DEVICE void run() {
        Phase phase = COMPLETE_TILES;
        u32 next;  // float of the block's tiles that this thread reduces next
#pragma unroll 1
        for (;;) {
            u32 index, at, end;
            Sources sources;
            sources.first = 0, sources.end = 1;
            if (phase == COMPLETE_TILES) {
                if (!this->next_complete_tile(index)) {
                    bar_sync<1>(args.consumer_warps * 32);
                    // Other blocks may be written to once they have started, or no longer need x.
                    if (args.cluster_size > 1) {
                        if (args.cluster_partials & PARTIALS_OVERLAY_X) cluster_arrive();
                        cluster_wait();
                    }
                    phase = WARP_REDUCTION, next = reload_tid_x() * 4;
                    continue;
                }
                __syncwarp();
                at = (reload_tid_x() & 31) * 4, end = TILE_FLOATS;
                sources.base = (float*)ring.stage_data();
            } else {
                index = next / TILE_FLOATS, at = next % TILE_FLOATS, end = at + 1;
                next += args.consumer_warps * 128;
                if (phase == CLUSTER_REDUCTION)
                    sources.base = cluster_partial(index * args.cluster_size),
                    index = work.rank + index * args.cluster_size, sources.end = args.cluster_size;
                if (index >= work.end_tile - work.first_tile) {
                    if (phase == CLUSTER_REDUCTION || args.cluster_size == 1) break;
                    phase = CLUSTER_REDUCTION, next = reload_tid_x() * 4;
                    continue;
                }
                if (phase == CLUSTER_REDUCTION) mbarrier_wait_parity_cluster(&state.partials_ready, 0);
                if (phase == WARP_REDUCTION) {
                    sources.first = work.items.owner(index * work.chunks);
                    sources.end = work.items.owner((index + 1) * work.chunks - 1) + 1;
                    // One warp has computed and finished it.
                    if (sources.end == sources.first + 1 && args.cluster_size == 1) continue;
                }
            }
            reduce(phase, sources, index, at, end);
            __syncwarp();
            // The stage that the sums were in is loaded again.
            if (phase == COMPLETE_TILES) fence_proxy_async();
        }
    }
};

// ---- Producer warp ----------------------------------------------------------------------------------------

// Loads x and everything else that the previous kernel has written.
template <int ROWS>
struct ActivationProducer {
    const GemmSmallMArgs& args;
    const BlockWork& work;
    u8* memory;
    u64* x_full;
    SharedState& state;
    const u32 lane;

    // `slot_bytes`: what a block sends for a tile.
    DEVICE void init_barriers(u32 slot_bytes) const {
#pragma unroll 1
        for (u32 i = lane; i < work.chunks; i += 32) mbarrier_init(&x_full[i], 32);
        if (lane == 0) {
            mbarrier_init(&state.fits_ready, 1), mbarrier_init(&state.scales_ready, 32);
            mbarrier_init(&state.partials_ready, 1);
            // This block finishes every cluster_size-th tile, from its rank on, and every block sends its
            // partial.
            const u32 tiles = work.end_tile - work.first_tile + args.cluster_size - 1 - work.rank;
            if (args.cluster_size > 1)
                mbarrier_arrive_expect_tx(&state.partials_ready, quotient(tiles, args.cluster_size) *
                                                                     args.cluster_size * slot_bytes);
        }
        fence_proxy_async();
        __syncwarp();
        if (args.cluster_size > 1) (fence_mbarrier_init(), cluster_arrive_relaxed());
        bar_arrive<1>(blockDim.x);
    }

    // Copies the block's chunks of x. By cp.async: TMA bulk copies would queue behind those of the weights.
    DEVICE void copy_x() const {
        constexpr u32 CHUNK_BYTES = F16Fragments<ROWS>::CHUNK_BYTES;
        const u8* x =
            (work.second_format ? args.x[1] : args.x[0]) + (u64)work.first_chunk * CHUNK_BYTES + lane * 16;
        SharedAddress to = shared_address(memory) + lane * 16;
#pragma unroll 1
        for (u32 i = 0; i < work.chunks; i++, x += CHUNK_BYTES, to += CHUNK_BYTES) {
#pragma unroll
            for (u32 j = 0; j < CHUNK_BYTES; j += 512) cp_async_16_l2_128(to + j, x + j);
            cp_async_mbarrier_arrive_noinc(&x_full[i]);
        }
        __syncwarp();
    }

    // Loads what the epilogue of this block's tiles will read (residual and gamma), so that it is in the
    // caches then.
    DEVICE void touch_epilogue_operands() const {
#pragma unroll 1
        for (u32 index = work.first_tile + work.rank; index < work.end_tile; index += args.cluster_size) {
            const OutputTile tile(args, work, index);
            const GemmWeight& weight = args.weights[tile.weight];
            const u32 row = tile.row + lane % 2 * 8;
            if (row < weight.rows) {
#pragma unroll
                for (u32 x_row = lane / 2; x_row < ROWS; x_row += 16)
                    if (weight.residual && x_row < args.m)
                        state.prefetch_sink[lane] = weight.residual[x_row * weight.rows + row];
                if (args.forwarded_out.gamma) state.prefetch_sink[lane] = args.forwarded_out.gamma[row];
            }
        }
    }

    DEVICE void run(u32 slot_bytes) const {
        init_barriers(slot_bytes);
        // The weights that were streamed since its last use have evicted gamma from L2.
        if (args.forwarded_out.gamma && lane == 0)
            cp_async_bulk_prefetch_l2_covering(args.forwarded_out.gamma + work.first_tile * TILE,
                                               (work.end_tile - work.first_tile) * TILE * 4);
        pdl_wait();
        const bool forwarded = args.forwarded_in.flags;
        const ForwardedInputReader<ROWS> reader(args.forwarded_in, work.first_chunk,
                                                forwarded ? work.end_chunk : 0, lane);
        copy_x();
        const u32 k = args.k_chunks * K_CHUNK, row = lane / (32 / ROWS);
        float row_scale = 1;
        if (!forwarded) {
            row_scale = __ldcg(args.row_scales + row);
        } else {
            const bool fits = reader.fits();
            if (lane == 0) {
                state.fits = fits;
                mbarrier_arrive(&state.fits_ready);
            }
            if (args.forwarded_in.squares) row_scale = reader.inverse_rms(k, args.epsilon);
        }
        state.row_scales[row] = row_scale;
        mbarrier_arrive(&state.scales_ready);
        args.prefetch.prefetch(lane);
        touch_epilogue_operands();
        if (forwarded && args.forwarded_in.normed) reader.write_normed(args.m, k, row_scale);
        __syncwarp();
        if (args.cluster_size > 1) cluster_wait();
    }
};

// ---- Entries ----------------------------------------------------------------------------------------------

template <class F, class G, int ROWS, bool GATE_UP>
DEVICE void gemm_small_m(const GemmSmallMArgs& args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 x_full[MAX_CHUNKS], stage_full[MAX_WARPS * MAX_STAGES];
    __shared__ SharedState state;
    pdl_launch_dependents();
    if (F::ALIGNED && threadIdx.x < args.n_tensor_maps) prefetch_tensormap(&args.tensor_maps[threadIdx.x]);
    const BlockWork work(args, F::CHUNK_BYTES != G::CHUNK_BYTES);
    typedef ConsumerWarp<F, G, ROWS, GATE_UP> Consumer;
    if (threadIdx.x / 32 == args.consumer_warps) {
        ActivationProducer<ROWS>{args, work, memory, x_full, state, threadIdx.x & 31}.run(
            Consumer::PARTIAL_FLOATS * 4);
    } else {
        __syncwarp();
        if (args.cluster_size > 1 && !(args.cluster_partials & PARTIALS_OVERLAY_X))
            (fence_mbarrier_init(), cluster_arrive_relaxed());
        Consumer(args, work, memory, x_full, stage_full, state).run();
    }
}

using q4_k = FormatQ45K<false>;
using q5_k = FormatQ45K<true>;
using q6_k = FormatQ6K;
using q4_0 = FormatQ45<false, false>;
using q4_1 = FormatQ45<false, true>;
using q5_0 = FormatQ45<true, false>;
using q5_1 = FormatQ45<true, true>;
using q8_0 = FormatQ8;
using mxfp4 = FormatTable<TABLE_MXFP4>;
using iq4_nl = FormatTable<TABLE_IQ4_NL>;
using iq4_xs = FormatTable<TABLE_IQ4_XS>;

#define ENTRY(NAME, F, G, ROWS, GATE_UP)                                                \
    extern "C" __global__ void __launch_bounds__(launch_bound(ROWS, GATE_UP), 1)        \
        gemm_small_m_##NAME##_rows##ROWS(const __grid_constant__ GemmSmallMArgs args) { \
        gemm_small_m<F, G, ROWS, GATE_UP>(args);                                        \
    }
#define FORMAT(NAME, ROWS)               \
    ENTRY(NAME, NAME, NAME, ROWS, false) \
    ENTRY(gate_up_##NAME, NAME, NAME, ROWS, true)
#define FORMATS(ROWS)    \
    FORMAT(q4_k, ROWS)   \
    FORMAT(q5_k, ROWS)   \
    FORMAT(q6_k, ROWS)   \
    FORMAT(q4_0, ROWS)   \
    FORMAT(q4_1, ROWS)   \
    FORMAT(q5_0, ROWS)   \
    FORMAT(q5_1, ROWS)   \
    FORMAT(q8_0, ROWS)   \
    FORMAT(mxfp4, ROWS)  \
    FORMAT(iq4_nl, ROWS) \
    FORMAT(iq4_xs, ROWS) \
    ENTRY(q4_k_q6_k, q4_k, q6_k, ROWS, false)
FORMATS(8)
FORMATS(16)
FORMATS(32)
