// The gated delta rule as a sequential scan (recurrent form), one row at a time. A block of 128 threads has
// 32 columns of the state of one value head, four threads for each column; grid: blocks of columns of all
// heads, rows or, where there is a list of rows (sequence_chunk_list.cu), blocks that share it. Launched by
// src/kernels/gated_delta_rule.rs; for prefill see gated_delta_chunks.cu.
//
// Tile: 32 columns x head_dim elements of the state, in registers; no pipeline.
//
// The blocks of the first row of a sequence walk over all rows of that sequence in their order, with their
// part of the state in registers; those of later rows exit at once. A thread owns every fourth element of its
// column. For each row: q and k go to shared memory, divided by their L2 norms; `k · S` is summed over the
// four threads of a column by two shuffles; the state is updated; `q · S` is summed. A row at position 0
// starts from zeros. `gated_delta_rule_<STEPS>`: heads of up to 4 STEPS elements.
//
// Layouts: x [m, q k v]; alpha and beta [m, n_v_heads]; decay and dt [n_v_heads]; state [n_seqs, n_v_heads,
// head_dim, head_dim], rows by k and columns by v; y [m, n_v_heads, head_dim].
// Preconditions: head_dim at most 256, n_v_heads a multiple of n_k_heads. Numerics: f32.
// Bound: memory bandwidth for one row of many sequences, of which the share was not measured; latency of
// barriers and shuffles for prefill, about 1.7 us a row on an H200.
#include "delta_heads.cuh"
#include "sequence_walk.cuh"
#include "silu.cuh"
#include "softplus.cuh"

constexpr u32 COLUMNS = 32;
constexpr u32 THREADS = 128;

// Mirrored by `GatedDeltaRuleArgs` in src/kernels/gated_delta_rule.rs.
struct GatedDeltaRuleArgs {
    const float* x;
    const float* alpha;
    const float* beta;
    const float* decay;
    const float* dt;
    float* state;
    float* y;
    StateRows rows;
    WalkStarts starts;
    DeltaHeads heads;
    float epsilon;
    u32 unused;
};
#include "layout/gated_delta_rule.cuh"

// 1 / the L2 norm, but at most 1 / epsilon. A NaN stays one.
DEVICE float inverse_norm(float squares, float epsilon) {
    const float norm = sqrtf(squares);
    return 1.0f / (norm < epsilon ? epsilon : norm);
}

// The sum over the threads of a column, lanes 8 apart.
DEVICE float column_sum(float value) {
    value += __shfl_xor_sync(FULL_WARP, value, 8);
    return value + __shfl_xor_sync(FULL_WARP, value, 16);
}

// Walks over the rows of the sequence that begins at row `start`.
template <int STEPS>
DEVICE void walk(const GatedDeltaRuleArgs& args, u32 start, float* query, float* key, float* sums) {
    const u32 d = args.heads.head_dim, blocks = (d + COLUMNS - 1) / COLUMNS;
    const u32 head = blockIdx.x / blocks, lane = threadIdx.x % 32, part = lane / 8;
    const u32 column = blockIdx.x % blocks * COLUMNS + threadIdx.x / 32 * 8 + lane % 8;
    const u32 key_head = args.heads.key_head(head);
    const u32 key_width = args.heads.n_k_heads * d, width = 2 * key_width + args.heads.n_v_heads * d;
    const bool inside = column < d;
    // The same for all threads of the block.
    u32 row = args.rows.first(start);
    if (row == NO_ROW) {
        const u64 at = (u64)start * args.heads.n_v_heads + head;
        if (inside && part == 0 && args.rows.inactive(start)) args.y[at * d + column] = 0.0f;
        return;
    }
    float* slot = args.state + ((u64)args.rows.sequence(row) * args.heads.n_v_heads + head) * d * d + column;
    float state[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const u32 i = part + 4 * step;
        state[step] = inside && i < d ? slot[(u64)i * d] : 0.0f;
    }
    const float query_scale = rsqrtf((float)d);
    for (; row != NO_ROW; row = args.rows.next(row)) {
        const float* x = args.x + (u64)row * width;
        __syncthreads();
        float q_squares = 0.0f, k_squares = 0.0f;
        for (u32 i = threadIdx.x; i < 4 * STEPS; i += THREADS) {
            const float q = i < d ? x[key_head * d + i] : 0.0f;
            const float k = i < d ? x[key_width + key_head * d + i] : 0.0f;
            query[i] = q, key[i] = k;
            q_squares += q * q, k_squares += k * k;
        }
        // The reductions end with barriers, behind which q and k are there.
        const float of_query = inverse_norm(block_reduce<Sum>(q_squares, sums), args.epsilon) * query_scale;
        const float of_key = inverse_norm(block_reduce<Sum>(k_squares, sums), args.epsilon);
        const u64 at = (u64)row * args.heads.n_v_heads + head;
        const float gate = expf(args.decay[head] * softplus(args.alpha[at] + args.dt[head]));
        const float beta = sigmoid(args.beta[at]);
        const bool from_zeros = args.rows.positions[row] == 0;
        float predicted = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            state[step] = from_zeros ? 0.0f : state[step] * gate;
            predicted = fmaf(key[part + 4 * step] * of_key, state[step], predicted);
        }
        predicted = column_sum(predicted);
        const float v = inside ? x[2 * key_width + head * d + column] : 0.0f;
        const float update = beta * (v - predicted);
        float result = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            state[step] = fmaf(key[part + 4 * step] * of_key, update, state[step]);
            result = fmaf(query[part + 4 * step] * of_query, state[step], result);
        }
        result = column_sum(result);
        if (inside && part == 0) args.y[at * d + column] = result;
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const u32 i = part + 4 * step;
        if (inside && i < d) slot[(u64)i * d] = state[step];
    }
}

template <int STEPS>
DEVICE void gated_delta_rule(const GatedDeltaRuleArgs& args) {
    __shared__ float query[4 * STEPS], key[4 * STEPS], sums[32];
    pdl_begin();
    const u32 count = args.starts.count();
    for (u32 i = blockIdx.y; i < count; i += gridDim.y)
        walk<STEPS>(args, args.starts.row(i), query, key, sums);
}

// BLOCKS: blocks of an SM, few enough that no thread runs out of registers.
#define KERNEL(STEPS, BLOCKS)                                                       \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                       \
        gated_delta_rule_##STEPS(const __grid_constant__ GatedDeltaRuleArgs args) { \
        gated_delta_rule<STEPS>(args);                                              \
    }
KERNEL(8, 4)
KERNEL(16, 4)
KERNEL(32, 3)
KERNEL(64, 2)
