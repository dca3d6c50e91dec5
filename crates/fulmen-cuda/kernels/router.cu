// targets: 90
// The router of a mixture of experts at batch 1, as one kernel: RMS norm or none, logits = x W^T + bias with
// float weights, and the selection of the experts. Launched by src/kernels/router.rs.
//
// Algorithm
//   A GEMV over one cluster of CLUSTER blocks. Every block reads all of x and has `rows_per_block` rows of W;
//   the logits meet in the shared memory of block 0 (distributed shared memory), which routes the row
//   (routing.cuh). Meanwhile block r writes the columns with column / 4 % 8 = r of the norm's f32 result;
//   block 7 also writes all of it as q8 activations for the gate and up projections of the experts.
//
// Tiles and mapping
//   grid   CLUSTER blocks, one cluster: the router is a megabyte, and what takes time is the chain of
//          dependent steps, not its bytes
//   block  16 warps; a thread owns four columns in every 2048, so x stays in registers, and each element of W
//          is loaded from shared memory once. Rows of W go in groups of GROUP: a thread has GROUP partial
//          sums, which shuffles add up over the warp while they spread the rows over its lanes
//
// Pipeline
//   W does not depend on the previous kernel: the first `held_rows` rows of a block are copied to shared
//   memory before `pdl_wait` (one TMA bulk copy), the others, and gamma, are prefetched into L2.
//
// Memory layouts
//   x, gamma, normed f32 [k]; W row-major [n_experts, k] in f32, f16 or bf16; logits f32 [n_experts]; weights
//   f32 and ids u32 [top_k]; q8 activations of the norm's result, padded to whole groups (q8_activations.cuh)
//   shared  W [held_rows][k]
//
// Preconditions (router.rs)
//   x, gamma, normed and W 16-byte aligned; k a multiple of 8, at most MAX_K; at most MAX_ROUTED experts;
//   what the kernel writes does not overlap what it reads.
//
// Numerics
//   f32 products and sums. With a norm, x * gamma is multiplied, and the factor 1/rms multiplies the sums.
//
// Performance
//   Bound by latency: x from L2, 128 KB of shared memory a block at 128 bytes per clock (0.6 us for 128
//   experts of 2048 columns in f32), one cluster barrier, the selection. 9.9 us a layer timed alone (H200,
//   Qwen3-30B-A3B).
#include "float4.cuh"
#include "ptx/cluster.cuh"
#include "ptx/tma.cuh"
#include "q8_activations.cuh"
#include "routing.cuh"

constexpr u32 CLUSTER = 8, WARPS = 16, THREADS = WARPS * 32;
constexpr u32 GROUP = 16;                        // rows that are multiplied at once
constexpr u32 STEP = THREADS * 4, MAX_K = 8192;  // columns of a step, and of a row
constexpr u32 MAX_ROUTED = 512, MAX_BLOCK_ROWS = MAX_ROUTED / CLUSTER;

// Mirrored by `RouterArgs` in src/kernels/router.rs.
struct RouterArgs {
    const float* x;
    const float* gamma;  // or null: no norm
    float* normed;       // or null
    u8* normed_q8;       // or null
    const u8* w;
    const float* bias;  // [n_experts] or null
    float* logits;
    float* weights;
    u32* ids;
    RouteRule rule;
    float epsilon;
    float inverse_k;
    u32 k;
    u32 rows_per_block;
    u32 held_rows;  // all rows of a block, or a multiple of GROUP
    u32 unused;
};
#include "layout/router.cuh"

// Four neighboring weights.
struct f32 {
    static constexpr u32 BYTES = 4;
    static DEVICE float4 load(const u8* from) { return *(const float4*)from; }
};
struct f16 {
    static constexpr u32 BYTES = 2;
    static DEVICE float4 load(const u8* from) {
        const uint2 raw = *(const uint2*)from;
        return make_float4(f16_to_f32((u16)raw.x), f16_to_f32((u16)(raw.x >> 16)), f16_to_f32((u16)raw.y),
                           f16_to_f32((u16)(raw.y >> 16)));
    }
};
struct bf16 {
    static constexpr u32 BYTES = 2;
    static DEVICE float4 load(const u8* from) {
        const uint2 raw = *(const uint2*)from;
        return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000),
                           __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000));
    }
};

// The sums over the warp of GROUP values per lane: lanes 2 i and 2 i + 1 get that of value i.
DEVICE float sums_of_warp(float (&values)[GROUP]) {
#pragma unroll
    for (int width = GROUP / 2; width > 0; width /= 2) {
        const bool upper = threadIdx.x & (2 * width);
#pragma unroll
        for (int i = 0; i < width; i++) {
            const float kept = upper ? values[i + width] : values[i];
            const float given = upper ? values[i] : values[i + width];
            values[i] = kept + __shfl_xor_sync(FULL_WARP, given, 2 * width);
        }
    }
    return values[0] + __shfl_xor_sync(FULL_WARP, values[0], 1);
}

// x * gamma in registers: columns STEP * i + 4 * thread to + 3.
struct RouterInput {
    float4 x[MAX_K / STEP];

    // Returns the sum of the squares of this thread's elements of x.
    DEVICE float load(const RouterArgs& args) {
        float squares = 0.0f;
#pragma unroll
        for (u32 i = 0; i < MAX_K / STEP; i++) {
            const u32 column = i * STEP + threadIdx.x * 4;
            x[i] = make_float4(0, 0, 0, 0);
            if (column >= args.k) continue;
            x[i] = ldcg4(args.x + column);
            squares += sum_of_squares(x[i]);
            if (args.gamma) x[i] = x[i] * ldcg4(args.gamma + column);
        }
        return squares;
    }

    // The part of the norm's f32 result that block `rank` writes.
    DEVICE void write_normed(const RouterArgs& args, u32 rank, float factor) const {
#pragma unroll
        for (u32 i = 0; i < MAX_K / STEP; i++) {
            const u32 column = i * STEP + threadIdx.x * 4;
            if (column < args.k && column / 4 % CLUSTER == rank)
                *(float4*)(args.normed + column) = x[i] * factor;
        }
    }

    DEVICE void write_q8(const RouterArgs& args, float factor) const {
        const u32 padded = q8_groups(args.k) * Q8_GROUP_ELEMENTS;
#pragma unroll
        for (u32 i = 0; i < MAX_K / STEP; i++) {
            const u32 column = i * STEP + threadIdx.x * 4;
            // The same for all lanes of a warp.
            if (column < padded) quantize_q8_row_x4(args.normed_q8, column, x[i] * factor);
        }
    }
};

// The products of x and the rows of this block, added up over each warp: partials[row][warp].
template <class W>
DEVICE void multiply_rows(const RouterArgs& args, const RouterInput& input, const u8* held, const u8* rows,
                          u32 count, float (*partials)[WARPS + 1]) {
    const u32 row_bytes = args.k * W::BYTES, lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 first = 0; first < count; first += GROUP) {
        const u8* group = (first < args.held_rows ? held : rows) + (u64)first * row_bytes;
        const u32 last = count - first - 1;
        float sums[GROUP] = {};
#pragma unroll
        for (u32 i = 0; i < MAX_K / STEP; i++) {
            const u32 column = i * STEP + threadIdx.x * 4;
            if (column >= args.k) continue;
            const u8* from = group + column * W::BYTES;
#pragma unroll
            for (u32 row = 0; row < GROUP; row++) {
                // Rows that do not exist repeat the last one; their sums are not used.
                const float4 w = W::load(from + min(row, last) * row_bytes);
                sums[row] = fmaf(w.x, input.x[i].x, sums[row]);
                sums[row] = fmaf(w.y, input.x[i].y, sums[row]);
                sums[row] = fmaf(w.z, input.x[i].z, sums[row]);
                sums[row] = fmaf(w.w, input.x[i].w, sums[row]);
            }
        }
        const float sum = sums_of_warp(sums);
        if (lane % 2 == 0 && lane / 2 <= last) partials[first + lane / 2][threadIdx.x / 32] = sum;
    }
}

template <class W>
DEVICE void router(const RouterArgs& args) {
    extern __shared__ __align__(128) u8 held[];
    __shared__ float partials[MAX_BLOCK_ROWS][WARPS + 1], squares[WARPS], logits[MAX_ROUTED];
    __shared__ BlockRouting<MAX_ROUTED> routing;
    __shared__ u64 full;
    const u32 rank = blockIdx.x, warp = threadIdx.x / 32, row_bytes = args.k * W::BYTES;
    const u32 first = min(args.rule.n_experts, rank * args.rows_per_block);
    const u32 count = min(args.rule.n_experts - first, args.rows_per_block);
    const u32 copied = min(count, args.held_rows);
    const u8* rows = args.w + (u64)first * row_bytes;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        fence_proxy_async();
        mbarrier_arrive_expect_tx(&full, copied * row_bytes);
        if (copied > 0) cp_async_bulk_covering(held, rows, copied * row_bytes, &full);
        if (copied < count)
            cp_async_bulk_prefetch_l2(rows + (u64)copied * row_bytes, (count - copied) * row_bytes);
        if (args.gamma) cp_async_bulk_prefetch_l2_covering(args.gamma, args.k * 4);
    }
    __syncwarp();
    pdl_launch_dependents();
    cluster_arrive_relaxed();
    pdl_wait();
    RouterInput input;
    const float sum = warp_sum(input.load(args));
    if (threadIdx.x % 32 == 0) squares[warp] = sum;
    __syncthreads();  // the mbarrier is initialized, and the squares are there
    mbarrier_wait_parity(&full, 0);
    multiply_rows<W>(args, input, held, rows, count, partials);
    float factor = 1.0f;
    if (args.gamma) {
        float all = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) all += squares[i];
        factor = 1.0f / sqrtf(all * args.inverse_k + args.epsilon);
    }
    __syncthreads();
    cluster_wait();  // all blocks have started
    if (threadIdx.x < count) {
        float dot = 0.0f;
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) dot += partials[threadIdx.x][i];
        const u32 expert = first + threadIdx.x;
        const float logit = fmaf(factor, dot, args.bias ? args.bias[expert] : 0.0f);
        args.logits[expert] = logit;
        st_shared_cluster(&logits[expert], 0, logit);
    }
    __syncwarp();
    cluster_arrive();
    if (args.normed) input.write_normed(args, rank, factor);
    if (args.normed_q8 && rank == CLUSTER - 1) input.write_q8(args, factor);
    __syncwarp();
    cluster_wait();
    if (rank == 0) routing.route(args.rule, logits, args.weights, args.ids);
}

#define ENTRY(W)                                              \
    extern "C" __global__ void __launch_bounds__(THREADS)     \
        router_##W(const __grid_constant__ RouterArgs args) { \
        router<W>(args);                                      \
    }
ENTRY(f32)
ENTRY(f16)
ENTRY(bf16)
