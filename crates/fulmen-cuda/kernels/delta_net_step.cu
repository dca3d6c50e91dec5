// targets: 90
// One step of a gated delta net, as one kernel: causal convolution with SiLU, gated delta rule, RMS norm per
// head, and the gate silu(z). For decode: 1 to 32 rows, one or more sequences. Launched by
// src/kernels/delta_net_step.rs. The parts alone are causal_conv.cu, gated_delta_rule.cu, rms_norm.cu and
// elementwise.cu, with the same results.
//
// Algorithm
//   The blocks of the first row of a sequence walk over all rows of that sequence (sequence_walk.cuh). For
//   each row a block computes the convolution of the channels of its value head and of the key head that
//   this reads, then the rule as gated_delta_rule.cu does, then norm and gate of the head's output.
//
// Tiles and mapping
//   grid     n_v_heads x rows that may start a sequence
//   cluster  the value heads that share a key head: all of them read the convolution's state of q and k, and
//            the first one writes it, behind a cluster barrier
//   block    THREADS threads; four threads for each of up to MAX_HEAD columns of the state, each with every
//            fourth element of it in registers; thread c < 3 head_dim has channel c of q | k | v
//   shared   no tiles: q | k | v of a row, the sums of the warps, and the result of the head
//
// Pipeline
//   Sequence numbers, both states and the weights are read before `pdl_wait`: see ptx/pdl.cuh for why this
//   is safe.
//
// Memory layouts
//   x [m, q k v]; conv_weight [channels, TAPS]; conv_state [n_seqs, TAPS - 1, channels]; alpha and beta
//   [m, n_v_heads]; decay and dt [n_v_heads]; gamma [head_dim]; state [n_seqs, n_v_heads, head_dim,
//   head_dim], rows by k, columns by v; z, and all outputs of a head, [m, n_v_heads, head_dim]; out_q8: q8
//   activations of the row, if m is 1
//
// Preconditions (delta_net_step.rs)
//   head_dim at most MAX_HEAD, a multiple of 32 for q8 output; n_v_heads / n_k_heads at most 8; x, alpha and
//   beta do not overlap what is written. Outputs are written in the order of the calls by the thread of their
//   element; z may be an output.
//
// Numerics: f32.
// Bound: latency. The state of a layer (2 MiB for 32 heads of 128) is read and written once, a microsecond of
// memory bandwidth, the reading while the previous kernel runs. Not measured alone.
#include "ptx/cluster.cuh"
#include "q8_activations.cuh"
#include "delta_heads.cuh"
#include "sequence_walk.cuh"
#include "silu.cuh"
#include "softplus.cuh"

constexpr u32 MAX_HEAD = 128, TAPS = 4;
constexpr u32 THREADS = 4 * MAX_HEAD, WARPS = THREADS / 32;
constexpr int STEPS = MAX_HEAD / 4;

// Mirrored by `DeltaNetStepArgs` in src/kernels/delta_net_step.rs.
struct DeltaNetStepArgs {
    const float* x;
    const float* conv_weight;
    float* conv_state;
    float* conv_out;  // or null
    const float* alpha;
    const float* beta;
    const float* decay;
    const float* dt;
    float* state;
    float* delta_out;  // or null
    const float* gamma;
    float* normed;  // or null
    const float* z;
    float* out;
    u8* out_q8;  // or null
    StateRows rows;
    DeltaHeads heads;
    float epsilon;
    float norm_epsilon;
};
#include "layout/delta_net_step.cuh"

// The heads of a block.
struct Heads {
    u32 key, value, rank;
    DEVICE Heads(const DeltaNetStepArgs& args) {
        const u32 ratio = args.heads.n_v_heads / args.heads.n_k_heads;
        key = blockIdx.x / ratio, rank = blockIdx.x % ratio;
        value = args.heads.key_head_modulo ? rank * args.heads.n_k_heads + key : blockIdx.x;
    }
};

// One channel of the convolution: its taps and its last inputs.
struct Channel {
    u32 index;    // in a row of x
    bool exists;  // this thread has one
    bool writes;  // and writes its output and its state
    float weight[TAPS], window[TAPS];

    DEVICE Channel(const DeltaNetStepArgs& args, const Heads& heads) {
        const u32 d = args.heads.head_dim, part = threadIdx.x / d, within = threadIdx.x % d;
        exists = part < 3;
        writes = exists && (part == 2 || heads.rank == 0);
        index = part == 2 ? (2 * args.heads.n_k_heads + heads.value) * d + within
                          : (part * args.heads.n_k_heads + heads.key) * d + within;
    }

    static DEVICE u32 channels(const DeltaNetStepArgs& args) {
        return (2 * args.heads.n_k_heads + args.heads.n_v_heads) * args.heads.head_dim;
    }
    DEVICE float* slot(const DeltaNetStepArgs& args, u32 sequence) const {
        return args.conv_state + (u64)sequence * (TAPS - 1) * channels(args) + index;
    }

    DEVICE void load(const DeltaNetStepArgs& args, u32 sequence) {
        if (!exists) return;
        const float* from = slot(args, sequence);
#pragma unroll
        for (u32 tap = 0; tap < TAPS; tap++) weight[tap] = args.conv_weight[(u64)index * TAPS + tap];
#pragma unroll
        for (u32 old = 0; old < TAPS - 1; old++) window[old] = __ldcg(from + (u64)old * channels(args));
    }

    // The output of one row.
    DEVICE float step(const DeltaNetStepArgs& args, u32 row, bool start) {
        const u64 at = (u64)row * channels(args) + index;
        if (start) {
#pragma unroll
            for (u32 old = 0; old < TAPS - 1; old++) window[old] = 0.0f;
        }
        window[TAPS - 1] = args.x[at];
        float sum = 0.0f;
#pragma unroll
        for (u32 tap = 0; tap < TAPS; tap++) sum = fmaf(weight[tap], window[tap], sum);
#pragma unroll
        for (u32 old = 0; old < TAPS - 1; old++) window[old] = window[old + 1];
        const float y = silu_of(sum);
        if (writes && args.conv_out) args.conv_out[at] = y;
        return y;
    }

    // The output of an inactive row is 0.
    DEVICE void clear(const DeltaNetStepArgs& args, u32 row) const {
        if (writes && args.conv_out) args.conv_out[(u64)row * channels(args) + index] = 0.0f;
    }

    DEVICE void store(const DeltaNetStepArgs& args, u32 sequence) const {
        if (!writes) return;
        float* to = slot(args, sequence);
#pragma unroll
        for (u32 old = 0; old < TAPS - 1; old++) to[(u64)old * channels(args)] = window[old];
    }
};

// 1 / the L2 norm of a head in shared memory, but at most 1 / epsilon; computed by every warp.
DEVICE float inverse_norm(const float* head, u32 d, float epsilon) {
    float squares = 0.0f;
#pragma unroll
    for (u32 i = threadIdx.x % 32; i < MAX_HEAD; i += 32) squares += i < d ? head[i] * head[i] : 0.0f;
    const float norm = sqrtf(warp_sum(squares));
    return 1.0f / (norm < epsilon ? epsilon : norm);
}

// The sum over the threads of a column, lanes 8 apart.
DEVICE float column_sum(float value) {
    value += __shfl_xor_sync(FULL_WARP, value, 8);
    return value + __shfl_xor_sync(FULL_WARP, value, 16);
}

// Norm and gate of a head's output, of which each thread of a column has its element.
DEVICE void write_head(const DeltaNetStepArgs& args, u64 at, u32 column, float y, float* sums,
                       float* results) {
    const u32 d = args.heads.head_dim, part = threadIdx.x % 32 / 8;
    const bool writes = part == 0 && column < d;
    const float z = writes ? args.z[at + column] : 0.0f, gain = writes ? args.gamma[column] : 0.0f;
    const float squares = warp_sum(writes ? y * y : 0.0f);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) all += sums[i];
    const float normed = y * (1.0f / sqrtf(all / (float)d + args.norm_epsilon)) * gain;
    const float result = silu_of(z) * normed;
    if (writes) {
        if (args.delta_out) args.delta_out[at + column] = y;
        if (args.normed) args.normed[at + column] = normed;
        args.out[at + column] = result;
        results[column] = result;
    }
    if (!args.out_q8) return;
    __syncthreads();
    // The same for all lanes of a warp.
    if (threadIdx.x < d) quantize_q8_row_x1(args.out_q8, (u32)at + threadIdx.x, results[threadIdx.x]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    delta_net_step(const __grid_constant__ DeltaNetStepArgs args) {
    __shared__ float qkv[3 * MAX_HEAD], sums[WARPS], results[MAX_HEAD];
    pdl_launch_dependents();
    const u32 d = args.heads.head_dim, lane = threadIdx.x % 32, part = lane / 8;
    const u32 column = threadIdx.x / 32 * 8 + lane % 8;
    const bool inside = column < d;
    const Heads heads(args);
    // The same for all threads of the cluster.
    u32 row = args.rows.first(blockIdx.y);
    if (row == NO_ROW) {
        pdl_wait();
        const u64 at = (u64)blockIdx.y * args.heads.n_v_heads + heads.value;
        if (args.rows.inactive(blockIdx.y)) {
            Channel(args, heads).clear(args, blockIdx.y);
            write_head(args, at * d, column, 0.0f, sums, results);
        }
        return;
    }
    const u32 sequence = args.rows.sequence(row);
    float* slot = args.state + ((u64)sequence * args.heads.n_v_heads + heads.value) * d * d + column;
    float state[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const u32 i = part + 4 * step;
        state[step] = inside && i < d ? __ldcg(slot + (u64)i * d) : 0.0f;
    }
    Channel channel(args, heads);
    channel.load(args, sequence);
    __syncwarp();
    cluster_arrive();  // this block has read the convolution's state
    const float decay = args.decay[heads.value], dt = args.dt[heads.value];
    const float query_scale = rsqrtf((float)d);
    pdl_wait();
    for (; row != NO_ROW; row = args.rows.next(row)) {
        const bool start = args.rows.positions[row] == 0;
        const u64 at = (u64)row * args.heads.n_v_heads + heads.value;
        const float gate = expf(decay * softplus(args.alpha[at] + dt)), beta = sigmoid(args.beta[at]);
        if (channel.exists) qkv[threadIdx.x] = channel.step(args, row, start);
        __syncthreads();
        const float *query = qkv, *key = qkv + d, *value = qkv + 2 * d;
        const float of_query = inverse_norm(query, d, args.epsilon) * query_scale;
        const float of_key = inverse_norm(key, d, args.epsilon);
        float predicted = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const u32 i = part + 4 * step;
            state[step] = start ? 0.0f : state[step] * gate;
            if (i < d) predicted = fmaf(key[i] * of_key, state[step], predicted);
        }
        const float update = beta * ((inside ? value[column] : 0.0f) - column_sum(predicted));
        float result = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const u32 i = part + 4 * step;
            if (i >= d) continue;
            state[step] = fmaf(key[i] * of_key, update, state[step]);
            result = fmaf(query[i] * of_query, state[step], result);
        }
        // Its barriers are behind all reads of q, k and v.
        write_head(args, at * d, column, column_sum(result), sums, results);
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const u32 i = part + 4 * step;
        if (inside && i < d) slot[(u64)i * d] = state[step];
    }
    __syncwarp();
    cluster_wait();  // all blocks have read the convolution's state
    channel.store(args, sequence);
}
