// Small-M GEMM by expert id, for decode batches: y[pair, n] = x W[id(pair)]^T + bias with block-quantized
// weights, on tensor cores in f16. A pair is a row of x and one of its experts (experts.cuh); the weights of
// an expert are read once for up to 8 or 16 of its pairs. Launched by src/kernels/expert_small_m.rs.
//
// expert_prepare: block 0 groups the pairs by expert (expert_sort.cuh); each of the others packs a row of x
//   as f16 (pack_row.cuh) in the order in which lanes read B-fragments.
// expert_small_m_<type>_<pairs>: one tile of up to PAIRS pairs of an expert x 64 or 128 rows of W per block;
//   grid ceil(n / rows) x the most tiles that there can be. 8 warps, each 16 rows of W: for gate and up four
//   warps have rows of gate and four the same rows of up, so that a block finishes the activation of 64
//   columns; for one projection a block has 128 rows.
//   A warp streams its rows in K chunks of 256 columns, as they lie in a GGUF file, into a ring of its own by
//   cp.async, dequantizes them to A-fragments of mma.m16n8k16 in registers (gemm_mixed_input_formats.cuh) and
//   multiplies them with B-fragments from shared memory, where the block has copied its rows of x before.
//
// Layouts: x [m, k] or [pairs, k] f32; packed [K chunk][row][k-step of 16][t][4 f16] with a K order for each
//   format (f16_fragments.cuh), zeros past k; W [n_experts, n, k] as in a GGUF file; y [pairs, n] f32; order
//   and tiles as in expert_sort.cuh; shared: rings [warp][stage][16 rows][ROW_VECTORS * 16], then x [pair]
//   [packed row, 32 bytes more], so that the pairs of a load lie in different banks.
// Preconditions: k a multiple of the format's block; W 16-byte aligned; at most 1024 experts; weights fit
//   f16.
// Numerics: x scaled by a power of two per row and rounded to f16, weights rounded to f16 once, f32 sums.
//   What a pair gets depends on nothing else in its tile.
// Bound: bytes of the weights of the experts in use, each read once for every PAIRS pairs. Alone not
//   measured; a step of gpt-oss-20b in MXFP4 with 16 rows that choose the same experts takes 4.0 ms on an
//   H200, 11.6 by a GEMV for each pair.
#include "expert_sort.cuh"
#include "gemm_mixed_input_formats.cuh"
#include "pack_row.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"

constexpr u32 WARPS = 8, THREADS = WARPS * 32, WARP_ROWS = 16;
constexpr u32 ROW_CHUNK_BYTES = K_CHUNK * 2;  // of a packed row of x
constexpr u32 ROW_PADDING = 32;               // bytes between rows of x in shared memory
#if __CUDA_ARCH__ >= 900
constexpr bool MANY_STAGES = true;
#else
constexpr bool MANY_STAGES = false;  // in 99 KiB of shared memory
#endif

// Mirrored by `ExpertPrepareArgs` in src/kernels/expert_small_m.rs.
struct ExpertPrepareArgs {
    ExpertSortArgs sort;
    const float* x;  // [rows, k]
    PackRowArgs row;
    u32 k;
    u32 unused;
};

// Mirrored by `ExpertSmallMArgs` there.
struct ExpertSmallMArgs {
    const u8* x;              // packed rows
    const float* row_scales;  // what the sums of a row of x are multiplied by
    const u8* w[2];           // gate and up, or one projection and null
    const float* bias[2];     // [n_experts, n] or null
    const u32* order;
    const ExpertTile* tiles;
    const float* weights;  // [pairs] routing weights, or null
    float* out;            // [pairs, n]
    GatedActivation activation;
    u32 n;
    u32 k;
    u32 row_bytes;
    u32 k_chunks;
    u32 x_rows;
    u32 pairs_per_row_of_x;  // top_k, or 1 if every pair has a row of x
};
#include "layout/expert_small_m.cuh"

// ---- Preparation ------------------------------------------------------------------------------------------

// A packed row: 16 k-steps of each chunk, in which thread t of a quad reads four f16.
struct PackedRow {
    static DEVICE void store(const PackRowArgs& args, u32 row, u32 at, float4 v) {
        const u32 order = args.packed[K_INTERLEAVED] ? K_INTERLEAVED : K_CONTIGUOUS;
        const FragmentPlace place(order, at % K_CHUNK);
        u8* to = args.packed[order] + ((u64)(at / K_CHUNK) * args.panel_rows + row) * ROW_CHUNK_BYTES;
        *(uint2*)(to + place.k_step * 32 + place.t * 8) = make_uint2(f16_pair(v.x, v.z), f16_pair(v.y, v.w));
    }
};

struct RowInMemory {
    const float* x;
    DEVICE float4 first(u32 at) const { return ldcg4(x + at); }
    DEVICE float4 again(u32 at) const { return ldcg4(x + at); }
};

extern "C" __global__ void __launch_bounds__(SORT_THREADS)
    expert_prepare(const __grid_constant__ ExpertPrepareArgs args) {
    pdl_begin();
    if (blockIdx.x == 0) {
        sort_pairs(args.sort);
        return;
    }
    const u32 row = blockIdx.x - 1;
    RowInMemory source{args.x + (u64)row * args.k};
    pack_row<PackedRow, 2>(args.row, source, row, args.k, args.k);
}

// ---- GEMM -------------------------------------------------------------------------------------------------

using mxfp4 = Dequantized32<FormatTable<TABLE_MXFP4>, PANEL_Q4_0>;
using iq4_nl = Dequantized32<FormatTable<TABLE_IQ4_NL>, PANEL_Q4_0>;
using iq4_xs = Dequantized32<FormatTable<TABLE_IQ4_XS>, PANEL_Q4_0>;

// The ring of a warp: 16 rows of W, one K chunk per stage.
template <class F>
struct WeightRows {
    static constexpr u32 STRIDE = F::ROW_VECTORS * 16, STAGE_BYTES = WARP_ROWS * STRIDE;
    static constexpr u32 STAGES = STAGE_BYTES <= 3072 && MANY_STAGES ? 4 : 3;
    static constexpr u32 VECTORS = WARP_ROWS * F::ROW_VECTORS, COPIES = (VECTORS + 31) / 32;

    const u8* rows;  // the warp's first row
    u32 row_bytes, count;
    u8* ring;

    // Starts to load a chunk. Rows and vectors that do not exist are left as they are.
    DEVICE void load(u32 chunk, u32 chunks) const {
        if (chunk < chunks) {
            const SharedAddress to = shared_address(ring) + chunk % STAGES * STAGE_BYTES;
            const u8* end = rows + (u64)count * row_bytes;
#pragma unroll
            for (u32 i = 0; i < COPIES; i++) {
                const u32 vector = i * 32 + threadIdx.x % 32, row = vector / F::ROW_VECTORS;
                const u8* from = rows + (u64)row * row_bytes + chunk * F::CHUNK_BYTES;
                from = (const u8*)((u64)from & ~15ull) + vector % F::ROW_VECTORS * 16;
                const bool wanted = vector < VECTORS && row < count && from < end;
                cp_async_16_l2_128_if(wanted, to + vector * 16, from);
            }
        }
        cp_async_commit();
    }

    // Row g or g + 8 of a chunk that has arrived.
    DEVICE const u8* row(u32 row, u32 chunk) const {
        const u32 skip = (u32)((u64)(rows + (u64)row * row_bytes + chunk * F::CHUNK_BYTES) & 15);
        return ring + chunk % STAGES * STAGE_BYTES + row * STRIDE + skip;
    }
};

template <class F, int N_TILES>
struct ExpertSmallM {
    static constexpr u32 PAIRS = 8 * N_TILES;
    typedef WeightRows<F> Weights;

    const ExpertSmallMArgs& args;
    const ExpertTile tile;
    const u32 lane, warp, which, x_pitch;
    u32 first_row;  // of the warp
    Weights weights;
    u8* x;
    u32* pairs;
    float sums[N_TILES][4];

    // Copies the rows of x of the tile's pairs. Pairs past the last repeat it; their sums are not stored.
    DEVICE void load_x() const {
        constexpr u32 VECTORS = ROW_CHUNK_BYTES / 16;  // of a row in a chunk: one per lane
#pragma unroll 4
        for (u32 at = warp; at < args.k_chunks * PAIRS; at += WARPS) {
            const u32 chunk = at / PAIRS, pair = at % PAIRS, row = pairs[pair] / args.pairs_per_row_of_x;
            const u32 vector = ((chunk * args.x_rows + row) * VECTORS + lane) * 16;
            cp_async_16(shared_address(x) + pair * x_pitch + chunk * ROW_CHUNK_BYTES + lane * 16,
                        args.x + vector);
        }
    }

    DEVICE void multiply_chunk(u32 chunk) {
        F format;
        format.load_scales(weights.row(lane / 4, chunk), weights.row(lane / 4 + 8, chunk),
                           args.k / 32 - chunk * 8, lane & 3);
        const u8* fragments = x + lane / 4 * x_pitch + chunk * ROW_CHUNK_BYTES + (lane & 3) * 8;
#pragma unroll
        for (u32 pass = 0; pass < F::PASSES; pass++) {
            format.load_quants(pass);
#pragma unroll
            for (u32 i = 0; i < F::STEPS; i++) {
                const u32 step = F::STEP(i) + pass * F::PASS_STEPS;
                u32 a[4];
                format.a_fragment(i, a);
#pragma unroll
                for (u32 tile = 0; tile < N_TILES; tile++) {
                    const uint2 b = *(const uint2*)(fragments + tile * 8 * x_pitch + step * 32);
                    mma_m16n8k16_f16(sums[tile], a, b.x, b.y);
                }
            }
        }
    }

    DEVICE void mainloop() {
#pragma unroll 1
        for (u32 chunk = 0; chunk < args.k_chunks; chunk++) {
            cp_async_wait<Weights::STAGES - 2>();
            if (chunk == 0)
                __syncthreads();  // x is from all threads
            else
                __syncwarp();
            multiply_chunk(chunk);
            __syncwarp();
            weights.load(chunk + Weights::STAGES - 1, args.k_chunks);
        }
        cp_async_wait<0>();
    }

    // Element i of the sums of an n-tile: row g + i / 2 * 8 of W and pair 2 t + i % 2.
    DEVICE u32 row_of(u32 i) const { return lane / 4 + i / 2 * 8; }
    DEVICE u32 pair_of(u32 n_tile, u32 i) const { return n_tile * 8 + (lane & 3) * 2 + i % 2; }

    // The sums times the scale of x, with the bias.
    DEVICE void finish() {
#pragma unroll
        for (u32 j = 0; j < N_TILES; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 row = first_row + row_of(i);
                sums[j][i] *= args.row_scales[pairs[pair_of(j, i)] / args.pairs_per_row_of_x];
                if (args.bias[which] && row < args.n)
                    sums[j][i] += args.bias[which][(u64)tile.expert * args.n + row];
            }
    }

    DEVICE void store(u32 j, u32 i, float value) const {
        const u32 row = first_row + row_of(i);
        if (row < args.n && pair_of(j, i) < tile.pairs)
            args.out[(u64)pairs[pair_of(j, i)] * args.n + row] = value;
    }

    // Gate warps get the sums of up through shared memory, where the rings were.
    DEVICE void store_gated(float* exchange) {
        float* mine = exchange + warp % (WARPS / 2) * (WARP_ROWS * PAIRS) + lane;
        __syncthreads();
        if (which == 1)
#pragma unroll
            for (u32 j = 0; j < N_TILES; j++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) mine[(j * 4 + i) * 32] = sums[j][i];
        __syncthreads();
        if (which == 0)
#pragma unroll
            for (u32 j = 0; j < N_TILES; j++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) store(j, i, args.activation(sums[j][i], mine[(j * 4 + i) * 32]));
    }

    DEVICE void store_plain() {
#pragma unroll
        for (u32 j = 0; j < N_TILES; j++)
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                store(j, i, args.weights ? sums[j][i] * args.weights[pairs[pair_of(j, i)]] : sums[j][i]);
    }

    DEVICE ExpertSmallM(const ExpertSmallMArgs& args, const ExpertTile& tile, u8* memory, u32* pairs)
        : args(args),
          tile(tile),
          lane(threadIdx.x % 32),
          warp(threadIdx.x / 32),
          which(args.w[1] && warp >= WARPS / 2),
          x_pitch(args.k_chunks * ROW_CHUNK_BYTES + ROW_PADDING),
          x(memory + WARPS * Weights::STAGES * Weights::STAGE_BYTES),
          pairs(pairs),
          sums{} {
        const u32 warps = args.w[1] ? WARPS / 2 : WARPS;
        first_row = (blockIdx.x * warps + warp % warps) * WARP_ROWS;
        weights.rows = args.w[which] + ((u64)tile.expert * args.n + min(first_row, args.n)) * args.row_bytes;
        weights.row_bytes = args.row_bytes;
        weights.count = min(WARP_ROWS, args.n - min(first_row, args.n));
        weights.ring = memory + warp * Weights::STAGES * Weights::STAGE_BYTES;
    }
};

template <class F, int N_TILES>
DEVICE void expert_small_m(const ExpertSmallMArgs& args) {
    typedef ExpertSmallM<F, N_TILES> Kernel;
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u32 pairs[Kernel::PAIRS];
    pdl_begin();
    const ExpertTile tile = args.tiles[blockIdx.y];
    if (tile.pairs == 0) return;
    if (threadIdx.x < Kernel::PAIRS)
        pairs[threadIdx.x] = args.order[tile.first + min(threadIdx.x, tile.pairs - 1)];
    Kernel kernel(args, tile, memory, pairs);
    __syncthreads();
    kernel.load_x();
#pragma unroll 1
    for (u32 chunk = 0; chunk + 1 < Kernel::Weights::STAGES; chunk++)
        kernel.weights.load(chunk, args.k_chunks);
    kernel.mainloop();
    kernel.finish();
    if (args.w[1])
        kernel.store_gated((float*)memory);
    else
        kernel.store_plain();
}

#define ENTRY(F, PAIRS)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                          \
        expert_small_m_##F##_##PAIRS(const __grid_constant__ ExpertSmallMArgs args) { \
        expert_small_m<F, PAIRS / 8>(args);                                           \
    }
#define KERNELS(F) \
    ENTRY(F, 8)    \
    ENTRY(F, 16)
KERNELS(q4_0)
KERNELS(q4_1)
KERNELS(q5_0)
KERNELS(q5_1)
KERNELS(q8_0)
KERNELS(q4_k)
KERNELS(q5_k)
KERNELS(q6_k)
KERNELS(mxfp4)
KERNELS(iq4_nl)
KERNELS(iq4_xs)
