// GEMV with float weights: y[m, n] = x[m, k] W[n, k]^T for m = 1 to 4 rows of x and W in f16, bf16 or f32,
// with a fused RMS norm before it and SwiGLU or GeGLU of gate and up, or bias and residual, after it. For
// decode; up to 16 rows, m at a time. Launched by src/kernels/gemv_float.rs.
//
// Algorithm
//   x stays in f32 in shared memory, multiplied with gamma if there is a norm. Weights are streamed into a
//   ring in shared memory per warp (gemv_ring.cuh), converted to f32 and multiplied by FMA. A block keeps
//   the partial sums of its rows in shared memory and finishes all of them at the end.
//
// Tiles and mapping (chosen in gemv_float.rs)
//   grid   x: one block per SM, each with `rows_per_block` rows of each weight matrix; y: m rows of x each
//   block  WARPS warps, all of which stage x and finish results; the first `warps` of them multiply. The
//          rows of a block are divided into groups of GROUP_ROWS rows of one matrix, and the columns into
//          `splits`: a task is one split of one group. Warp w takes tasks w, w + warps ...
//   warp   all lanes work on the same rows: 16 bytes of each row per lane and step, so that x is loaded from
//          shared memory once for GROUP_ROWS rows
//   stage  GROUP_ROWS x SEGMENT_BYTES: a segment of each row
//
// Pipeline
//   See gemv_ring.cuh: up to three stages per warp where shared memory has room for them, else two. Weights
//   do not depend on the previous kernel, so rings are filled before `pdl_wait`.
//
// Memory layouts
//   x       f32 [m, k]
//   W       row-major, rows of `row_bytes`
//   y       f32 [m, n]
//   shared  rings: [warp][stage][GROUP_ROWS][SEGMENT_BYTES] | x: [m][x_pitch] | partial sums: [row][split][m]
//           x of 16-bit weights: of every 256 columns, the first four of each eight lie before the last four,
//           so that 16-byte loads are free of bank conflicts
//
// Preconditions (gemv_float.rs)
//   x, gamma, `normed` and W 16-byte aligned, k a multiple of 4 (f32) or 8 (f16, bf16).
//
// Numerics
//   f32 products and sums. With a norm, x * gamma is multiplied, and the factor 1/rms multiplies the results.
//   The order of the sums depends on the shape and on the number of SMs.
//
// Performance
//   Bound by the bytes of W: 4096 bytes (a stage) take about 250 warp instructions and 80 cycles of shared
//   memory at m = 1, a third of the 220 cycles in which they come from memory on an H200. Alone there, in f16
//   in the shapes of Qwen3-4B: gate and up 4.08 TB/s, Q K V 3.30, down 3.06, output 2.46; a whole decode step
//   at batch 1 runs at 77 % of the bound.
#include "common.cuh"
#include "float4.cuh"
#include "gemv_ring.cuh"
#include "silu.cuh"

constexpr int WARPS = 14;
constexpr int THREADS = WARPS * 32;
constexpr int MAX_WEIGHTS = 3;       // weight matrices of a launch
constexpr u32 GROUP_ROWS = 4;        // rows of W that a warp multiplies at once
constexpr u32 SEGMENT_BYTES = 1024;  // of a row, in a stage
constexpr u32 STAGE_BYTES = GROUP_ROWS * SEGMENT_BYTES;
constexpr u32 STEP_BYTES = 32 * 16;  // of a row, that a warp multiplies at once
constexpr u32 RING_STAGES = 3;       // of a warp, at most

// One weight matrix [rows, k] with its output y [m, rows].
struct GemvFloatWeight {
    const u8* data;
    float* out;
    const float* bias;      // [rows] or null
    const float* residual;  // [m, rows] or null; may be `out`
    u32 rows;
    u32 rows_per_block;
    u32 first_group;  // among the groups of a block
    u32 unused;
};

struct GemvFloatArgs {
    const float* x;      // [m, k]
    const float* gamma;  // [k], weights of the RMS norm; null: no norm
    float* normed;       // where the norm's result goes, or null
    float epsilon;
    float inverse_k;
    u32 k;
    u32 x_pitch;  // floats of a row of x in shared memory
    u32 row_bytes;
    u32 n_weights;  // 2 for gate and up
    u32 gate_up;    // SwiGLU or GeGLU of both weights
    u32 groups;     // of a block
    u32 segments;   // of a row
    u32 task_segments;
    u32 splits;
    u32 warps;
    u32 stages;
    u32 gelu;  // the activation of the gate: 0 SiLU, 1 GELU
    GemvFloatWeight weights[MAX_WEIGHTS];
};
#include "layout/gemv_float.cuh"

// ---- Weight types -----------------------------------------------------------------------------------------

// COLUMNS: of a row in 16 bytes. `unpack` gives four of them.
struct f32 {
    static constexpr u32 COLUMNS = 4;
    static DEVICE float4 unpack(uint4 raw, u32 half) {
        return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                           __uint_as_float(raw.w));
    }
};

struct f16 {
    static constexpr u32 COLUMNS = 8;
    static DEVICE float4 unpack(uint4 raw, u32 half) {
        const u32 a = half ? raw.z : raw.x, b = half ? raw.w : raw.y;
        return make_float4(f16_to_f32((u16)a), f16_to_f32((u16)(a >> 16)), f16_to_f32((u16)b),
                           f16_to_f32((u16)(b >> 16)));
    }
};

struct bf16 {
    static constexpr u32 COLUMNS = 8;
    static DEVICE float4 unpack(uint4 raw, u32 half) {
        const u32 a = half ? raw.z : raw.x, b = half ? raw.w : raw.y;
        return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000),
                           __uint_as_float(b << 16), __uint_as_float(b & 0xffff0000));
    }
};

// ---- Activations ------------------------------------------------------------------------------------------

// The first row of x of a block that has M of them.
template <u32 M>
DEVICE u32 x_row() {
    return blockIdx.y * M;
}

// M rows of x in shared memory.
template <class W, u32 M>
struct Activations {
    float* x;
    float (*warp_sums)[WARPS];

    // Where column `at`, a multiple of 4, lies in a row.
    static DEVICE u32 index(u32 at) {
        return W::COLUMNS == 4 ? at : (at & ~255u) + (at & 4) * 32 + (at & 248) / 2;
    }

    // Copies x, or multiplies it with gamma and adds up its squares. All threads can read x after the next
    // barrier.
    DEVICE void stage(const GemvFloatArgs& args) const {
#pragma unroll 1
        for (u32 row = 0; row < M; row++) {
            const float* from = args.x + (u64)(x_row<M>() + row) * args.k;
            float* to = x + row * args.x_pitch;
            if (args.gamma)
                multiply_gamma(args, row, from, to);
            else
#pragma unroll 4
                for (u32 at = threadIdx.x * 4; at < args.k; at += THREADS * 4)
                    cp_async_16(shared_address(to + index(at)), from + at);
        }
        cp_async_commit();
        cp_async_wait<0>();
    }

    DEVICE void multiply_gamma(const GemvFloatArgs& args, u32 row, const float* from, float* to) const {
        float sum = 0;
#pragma unroll 4
        for (u32 at = threadIdx.x * 4; at < args.k; at += THREADS * 4) {
            const float4 v = ldcg4(from + at);
            sum += sum_of_squares(v);
            *(float4*)(to + index(at)) = v * ldcg4(args.gamma + at);
        }
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) warp_sums[row][threadIdx.x / 32] = sum;
    }

    // 1/rms of each row, or 1 without a norm.
    DEVICE void inverse_rms(const GemvFloatArgs& args, float (&factors)[M]) const {
#pragma unroll
        for (u32 row = 0; row < M; row++) {
            factors[row] = 1;
            if (!args.gamma) continue;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++) sum += warp_sums[row][i];
            factors[row] = 1.0f / sqrtf(sum * args.inverse_k + args.epsilon);
        }
    }

    // Stores the norm's result, each block a part of it.
    DEVICE void write_normed(const GemvFloatArgs& args, const float (&factors)[M]) const {
#pragma unroll 1
        for (u32 at = (blockIdx.x * THREADS + threadIdx.x) * 4; at < args.k; at += gridDim.x * THREADS * 4)
#pragma unroll
            for (u32 row = 0; row < M; row++)
                *(float4*)(args.normed + (u64)(x_row<M>() + row) * args.k + at) =
                    *(const float4*)(x + row * args.x_pitch + index(at)) * factors[row];
    }
};

// ---- Warps ------------------------------------------------------------------------------------------------

// The first row of a block of the grid.
DEVICE u32 first_row(const GemvFloatWeight& weight, u32 block) {
    return min(weight.rows, block * weight.rows_per_block);
}

// A position in the tasks of a warp.
struct TaskIterator {
    u32 task, group, split;
    u32 rows;        // of the group, 1 to GROUP_ROWS
    const u8* data;  // the first of them
    u32 segment, end;

    // Finds the rows and segments of the task, or of the next one that has rows; false if there are no more.
    DEVICE bool seek(const GemvFloatArgs& args) {
#pragma unroll 1
        for (; task < args.groups * args.splits; task += args.warps) {
            group = task / args.splits;
            split = task - group * args.splits;
            u32 which = 0;
            while (which + 1 < args.n_weights && group >= args.weights[which + 1].first_group) which++;
            const GemvFloatWeight& weight = args.weights[which];
            const u32 first = first_row(weight, blockIdx.x), all = first_row(weight, blockIdx.x + 1) - first;
            const u32 index = (group - weight.first_group) * GROUP_ROWS;
            if (index >= all) continue;
            rows = min(GROUP_ROWS, all - index);
            data = weight.data + (u64)(first + index) * args.row_bytes;
            segment = split * args.task_segments;
            end = min(args.segments, segment + args.task_segments);
            return true;
        }
        return false;
    }

    // Bytes of the current segment of a row.
    DEVICE u32 segment_bytes(const GemvFloatArgs& args) const {
        return min(SEGMENT_BYTES, args.row_bytes - segment * SEGMENT_BYTES);
    }
};

// One warp: loads its tasks into its ring and multiplies them.
template <class W, u32 M>
struct GemvWarp {
    // More rows of x leave no registers for the loads of two steps.
    static constexpr int UNROLLED_STEPS = M <= 2 ? 2 : 1;

    const GemvFloatArgs& args;
    const u32 warp;
    u8* ring;
    u64* full;
    TaskIterator load_task;
    bool more;

    DEVICE GemvWarp(const GemvFloatArgs& args, u32 warp, u8* ring, u64* full)
        : args(args), warp(warp), ring(ring), full(full) {
        load_task.task = warp;
        more = load_task.seek(args);
    }

    // Starts to load the next segment into a stage.
    DEVICE void load(u32 stage) {
        if (more && (threadIdx.x & 31) < RING_COPY_LANES) {
            const u32 bytes = load_task.segment_bytes(args);
            const u8* from = load_task.data + load_task.segment * SEGMENT_BYTES;
            u8* to = ring + stage * STAGE_BYTES;
            ring_expect(&full[stage], load_task.rows * bytes);
#pragma unroll 1
            for (u32 row = 0; row < load_task.rows; row++) {
                ring_copy(to, from, bytes, &full[stage]);
                to += SEGMENT_BYTES;
                from += args.row_bytes;
            }
        }
        ring_commit();
        if (more && ++load_task.segment == load_task.end) {
            load_task.task += args.warps;
            more = load_task.seek(args);
        }
    }
    DEVICE void fill_ring() {
#pragma unroll 1
        for (u32 i = 0; i < args.stages; i++) load(i);
    }

    // Adds the products of 16 bytes of each row. What lies at rows that do not exist is not used.
    DEVICE void multiply_step(float (&sums)[GROUP_ROWS][M], const u8* w, const float* x) const {
        uint4 raw[GROUP_ROWS];
#pragma unroll
        for (u32 row = 0; row < GROUP_ROWS; row++) raw[row] = *(const uint4*)(w + row * SEGMENT_BYTES);
#pragma unroll
        for (u32 half = 0; half < W::COLUMNS / 4; half++) {
            float4 xs[M];
#pragma unroll
            for (u32 m = 0; m < M; m++) xs[m] = *(const float4*)(x + m * args.x_pitch + half * 128);
#pragma unroll
            for (u32 row = 0; row < GROUP_ROWS; row++) {
                const float4 v = W::unpack(raw[row], half);
#pragma unroll
                for (u32 m = 0; m < M; m++) {
                    float& sum = sums[row][m];
                    sum = fmaf(v.x, xs[m].x, sum);
                    sum = fmaf(v.y, xs[m].y, sum);
                    sum = fmaf(v.z, xs[m].z, sum);
                    sum = fmaf(v.w, xs[m].w, sum);
                }
            }
        }
    }

    // The sum over all lanes of one of four values: lanes 8 i to 8 i + 7 get that of value i.
    static DEVICE float sum_of_lanes(float a, float b, float c, float d) {
        const bool upper = threadIdx.x & 16, odd = threadIdx.x & 8;
        float first = upper ? c : a, second = upper ? d : b;
        first += __shfl_xor_sync(FULL_WARP, upper ? a : c, 16);
        second += __shfl_xor_sync(FULL_WARP, upper ? b : d, 16);
        float value = odd ? second : first;
        value += __shfl_xor_sync(FULL_WARP, odd ? first : second, 8);
        return lanes_sum<8>(value);
    }

    // Mainloop of all tasks.
    DEVICE void multiply(const float* x, float* partials) {
        const u32 lane = threadIdx.x & 31;
        u32 stage = 0, parity = 0;
        TaskIterator task;
        task.task = warp;
#pragma unroll 1
        for (; task.seek(args); task.task += args.warps) {
            float sums[GROUP_ROWS][M] = {};
#pragma unroll 1
            for (; task.segment < task.end; task.segment++) {
                const u32 bytes = task.segment_bytes(args);
                const u8* w = ring + stage * STAGE_BYTES + lane * 16;
                const float* xs = x + task.segment * (SEGMENT_BYTES / 16 * W::COLUMNS) + lane * 4;
                ring_wait<RING_STAGES>(&full[stage], parity, args);
                if (bytes == SEGMENT_BYTES) {
#pragma unroll(UNROLLED_STEPS)
                    for (u32 at = 0; at < SEGMENT_BYTES; at += STEP_BYTES)
                        multiply_step(sums, w + at, xs + at / 16 * W::COLUMNS);
                } else {
#pragma unroll 1
                    for (u32 at = 0; at + lane * 16 < bytes; at += STEP_BYTES)
                        multiply_step(sums, w + at, xs + at / 16 * W::COLUMNS);
                }
                __syncwarp();
                load(stage);
                if (++stage == args.stages) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            float* to = partials + ((task.group * GROUP_ROWS + lane / 8) * args.splits + task.split) * M;
#pragma unroll
            for (u32 m = 0; m < M; m++) {
                const float sum = sum_of_lanes(sums[0][m], sums[1][m], sums[2][m], sums[3][m]);
                if (lane % 8 == 0) to[m] = sum;
            }
        }
    }
};

// ---- Epilogue ---------------------------------------------------------------------------------------------

// Bias plus residual of an element of the output; `m` is the row of x in the block.
template <u32 M>
DEVICE float addend(const GemvFloatWeight& weight, u32 m, u32 row) {
    return (weight.bias ? weight.bias[row] : 0) +
           (weight.residual ? weight.residual[(u64)(x_row<M>() + m) * weight.rows + row] : 0);
}

// The addends of the first row that this thread finishes, loaded early; more rows of x leave no registers for
// that.
template <u32 M>
constexpr bool EARLY_ADDENDS = M <= 2;
template <u32 M>
DEVICE void load_addends(const GemvFloatArgs& args, float (&addends)[M]) {
    const GemvFloatWeight& weight = args.weights[0];
    const u32 row = first_row(weight, blockIdx.x) + threadIdx.x;
#pragma unroll
    for (u32 m = 0; m < M; m++)
        addends[m] =
            EARLY_ADDENDS<M> && row < first_row(weight, blockIdx.x + 1) ? addend<M>(weight, m, row) : 0;
}

// The dot product of row `index` of a block's part of a weight and row `m` of x.
template <u32 M>
DEVICE float sum_of_splits(const GemvFloatArgs& args, const GemvFloatWeight& weight, const float* partials,
                           u32 index, u32 m) {
    const float* at = partials + (weight.first_group * GROUP_ROWS + index) * args.splits * M + m;
    float sum = 0;
#pragma unroll 1
    for (u32 split = 0; split < args.splits; split++) sum += at[split * M];
    return sum;
}

// Finishes and stores the rows of a block.
template <u32 M>
DEVICE void epilogue(const GemvFloatArgs& args, const float* partials, const float (&factors)[M],
                     const float (&addends)[M]) {
    const u32 outputs = args.gate_up ? 1 : args.n_weights;
#pragma unroll 1
    for (u32 which = 0; which < outputs; which++) {
        const GemvFloatWeight& weight = args.weights[which];
        const u32 first = first_row(weight, blockIdx.x), count = first_row(weight, blockIdx.x + 1) - first;
#pragma unroll 1
        for (u32 index = threadIdx.x; index < count; index += THREADS)
#pragma unroll
            for (u32 m = 0; m < M; m++) {
                float value = factors[m] * sum_of_splits<M>(args, weight, partials, index, m);
                if (args.gate_up)
                    value = (value == -INFINITE ? 0.0f : value * sigmoid(gate_logit(value, args.gelu))) *
                            (factors[m] * sum_of_splits<M>(args, args.weights[1], partials, index, m));
                else if (EARLY_ADDENDS<M> && which == 0 && index == threadIdx.x)
                    value += addends[m];
                else
                    value += addend<M>(weight, m, first + index);
                weight.out[(u64)(x_row<M>() + m) * weight.rows + first + index] = value;
            }
    }
}

// ---- Entries ----------------------------------------------------------------------------------------------

template <class W, u32 M>
DEVICE void gemv(const GemvFloatArgs& args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ float warp_sums[M][WARPS];
    __shared__ u64 full[WARPS][RING_STAGES];
    const u32 warp = threadIdx.x / 32, ring_bytes = args.stages * STAGE_BYTES;
    float* x_rows = (float*)(memory + args.warps * ring_bytes);
    float* partials = x_rows + M * args.x_pitch;
    const bool multiplies = warp < args.warps;
    ring_init<RING_STAGES>(full[warp]);
    pdl_launch_dependents();
    if (args.gamma && threadIdx.x == 0 && blockIdx.x % 8 == 0) prefetch_l2(args.gamma, args.k * 4);
    GemvWarp<W, M> rows(args, multiplies ? warp : ~0u, memory + warp * ring_bytes, full[warp]);
    if (multiplies) rows.fill_ring();
    pdl_wait();
    float addends[M], factors[M];
    load_addends(args, addends);
    const Activations<W, M> x{x_rows, warp_sums};
    x.stage(args);
    __syncthreads();
    if (multiplies) rows.multiply(x_rows, partials);
    x.inverse_rms(args, factors);
    if (args.normed) x.write_normed(args, factors);
    __syncthreads();
    epilogue(args, partials, factors, addends);
}

#define ENTRY(W, M)                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, M == 1 ? 2 : 1)      \
        gemv_float_##W##_rows##M(const __grid_constant__ GemvFloatArgs args) { \
        gemv<W, M>(args);                                                      \
    }
#define WEIGHT_TYPE(W) \
    ENTRY(W, 1)        \
    ENTRY(W, 2)        \
    ENTRY(W, 3)        \
    ENTRY(W, 4)

WEIGHT_TYPE(f16)
WEIGHT_TYPE(bf16)
WEIGHT_TYPE(f32)
