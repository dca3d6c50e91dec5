// GEMV with int8 activations (W4A8 to W8A8): y[n] = x[k] W[n, k]^T for one row of x and block-quantized W
// (Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, IQ4_NL, IQ4_XS), with a fused RMS norm before it
// and SwiGLU or GeGLU of gate and up, or bias and residual, after it. For decode at batch 1. Launched by
// src/kernels/gemv.rs.
//
// Algorithm
//   x is quantized to int8 (q8_activations.cuh) and multiplied with the quants of W by dp4a
//   (gemv_formats.cuh). Weights are streamed by TMA bulk copies, or by cp.async before compute capability
//   9.0, into rings in shared memory, one per warp (gemv_ring.cuh).
//   Every block quantizes x itself, so that norm, quantization and GEMV are one kernel; or x comes as q8
//   activations from the previous kernel (entries `gemv_q8_*`).
//
// Tiles and mapping (chosen in gemv.rs)
//   grid   one block per SM (fewer for gate-up that forwards q8), each with `rows_per_block` rows of a matrix
//   block  WARPS warps. A task is 32 / LANES consecutive rows (of gate and up: 16 / LANES rows of both); warp
//          w takes tasks w, w + WARPS ... With two formats (Q4_K and Q6_K) the warps are divided among them
//   warp   LANES = 8, 16 or 32 lanes per row; a lane multiplies every LANES-th unit of 64 columns;
//          shuffles add up the lanes
//   stage  the rows of a task as one TMA bulk copy (for gate and up one of each) of up to 8448 bytes; a
//          longer row (LANES = 32), or one that does not fit in the ring, is cut into segments of
//          SEGMENT_UNITS units
//
// Pipeline
//   Each warp has a ring of one or two stages; full[w][s] is that of stage s of warp w. No warp waits for
//   another. Weights do not depend on the previous kernel, so rings are filled before `pdl_wait`; gamma is
//   prefetched into L2 before it. `x_full` is the mbarrier of the copy of forwarded q8 activations, for
//   which all threads wait.
//
// Memory layouts
//   x       f32 [k], or q8 activations (768 bytes per 512 columns: quants by slice, scales and sums by unit)
//   W       as in a GGUF file, row-major blocks; a stage holds the 16-byte vectors that cover a task's rows
//   y       f32 [n]; gate-up also as q8 activations for the down projection
//   shared  q8 activations of x | rings: [warp][stage]
//
// Preconditions (small_m.rs, gemv.rs)
//   x, gamma and `normed` 16-byte aligned; k a multiple of 32 (of 64 for q8 input).
//
// Numerics
//   int8 activations with an f32 scale per 32 columns, exact integer dot products of 16 or 32 columns, f32
//   sums. With a norm, x * gamma is quantized, and the factor 1/rms multiplies the results: no thread waits
//   for the sum of squares before it quantizes.
//
// Performance
//   Bound by the bytes of W. H200: LM head 151936 x 2560 91 % of the memory bandwidth in Q4_K (83 % in Q6_K,
//   with its norm); in a decode step gate-up 46 %, down 33 to 35 %, QKV 25 %, output projection 20 % when
//   timed alone, which PDL overlaps (docs/lab/cuda-decode.md). Code is short, loops are rolled and
//   there is one entry per format, because hundreds of these kernels run in turn and each finds the
//   instruction cache full of another.
#include "float4.cuh"
#include "gemv_formats.cuh"
#include "gemv_ring.cuh"

constexpr int WARPS = 12;
constexpr int THREADS = WARPS * 32;
constexpr int MAX_WEIGHTS = 4;       // weight matrices of a launch
constexpr u32 SEGMENT_UNITS = 64;    // units of 64 columns in a stage, if a row takes several
constexpr int MAX_Q8_RESULTS = 256;  // rows of a block that are quantized for the next kernel

// One weight matrix [rows, k] with its output y [rows].
struct GemvWeight {
    const u8* data;
    float* out;
    const float* bias;      // [rows] or null
    const float* residual;  // [rows] or null; may be `out`
    u32 rows;
    u32 row_bytes;
    u32 rows_per_block;
    u32 unused;
};

struct GemvArgs {
    const float* x;  // [k]
    const u8* x_q8;  // x as q8 activations, or null
    u8* out_q8;      // q8 activations of the result, or null; gate-up with rows_per_block a multiple of 32
    const float* gamma;  // [k], weights of the RMS norm; null: no norm
    float* normed;       // where the norm's f32 result goes, or null
    float epsilon;
    float inverse_k;
    u32 k;
    u32 n_weights;             // 2 for gate and up
    u32 first_format_weights;  // of the first format,
    u32 first_format_warps;    // and the warps that work on them
    u32 stage_bytes;
    u32 segments;  // stages that a row takes; 1 if a warp works on several rows
    u32 stages;
    u32 gelu;  // the activation of the gate: 0 SiLU, 1 GELU
    GemvWeight weights[MAX_WEIGHTS];
};
#include "layout/gemv.cuh"

// ---- Activations ------------------------------------------------------------------------------------------

// x as q8 activations in shared memory. FORWARDED: it comes as such from the previous kernel.
template <bool FORWARDED>
struct Activations {
    u8* q8;
    u64* x_full;
    float* warp_sums;

    // Before `pdl_wait`. The weights that were streamed since its last use have evicted gamma from L2.
    DEVICE void init(const GemvArgs& args) const {
        if (threadIdx.x > 0) return;
        if (FORWARDED) {
            block_copy_init(x_full);
        } else if (args.gamma && blockIdx.x % 8 == 0) {
            prefetch_l2(args.gamma, args.k * 4);
        }
    }

    // Four elements of x and of gamma.
    struct Elements {
        float4 x, gamma;
        DEVICE Elements(const GemvArgs& args, u32 at)
            : x(make_float4(0, 0, 0, 0)), gamma(make_float4(1, 1, 1, 1)) {
            if (at >= args.k) return;
            x = ldcg4(args.x + at);
            if (args.gamma) gamma = ldcg4(args.gamma + at);
        }
    };

    // Quantizes x, or x * gamma; a thread's next elements are loaded meanwhile. The norm's factor, one for
    // the row, multiplies the results instead, so that no thread waits for the sum of all squares here.
    DEVICE void quantize(const GemvArgs& args) const {
        const u32 padded = q8_groups(args.k) * Q8_GROUP_ELEMENTS;
        float sum = 0;
        Elements elements(args, threadIdx.x * 4);
#pragma unroll 1
        for (u32 at = threadIdx.x * 4; at < padded; at += THREADS * 4) {
            const Elements next(args, at + THREADS * 4);
            sum += sum_of_squares(elements.x);
            quantize_q8_row_x4(q8, at, elements.x * elements.gamma);
            elements = next;
        }
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) warp_sums[threadIdx.x / 32] = sum;
    }

    // Waits for the previous kernel; starts the copy of forwarded activations.
    DEVICE void wait_and_copy(const GemvArgs& args) const {
        if (FORWARDED) __syncthreads();  // the mbarrier is initialized
        pdl_wait();
        if (!FORWARDED || threadIdx.x >= BLOCK_COPY_THREADS) return;
        const u32 bytes = q8_groups(args.k) * Q8_GROUP_BYTES;
        block_copy_expect(x_full, bytes);
        block_copy(q8, args.x_q8, bytes, x_full);
    }

    // On return all threads can read x. Gives 1/rms, or 1 without a norm.
    DEVICE float finish(const GemvArgs& args) const {
        if (FORWARDED) {
            block_copy_wait(x_full);
            return 1;
        }
        quantize(args);
        __syncthreads();
        if (!args.gamma) return 1;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += warp_sums[i];
        return rsqrtf(sum * args.inverse_k + args.epsilon);
    }
};

// ---- Warps ------------------------------------------------------------------------------------------------

// The first row of a block of the grid.
DEVICE u32 first_row(const GemvWeight& weight, u32 block) {
    return min(weight.rows, block * weight.rows_per_block);
}

// A position in the tasks of a warp: every `warps`-th task of the weights [weight, end), where a task is ROWS
// consecutive rows (of gate and up: of both). MULTI: there may be several weights besides gate and up.
template <u32 ROWS, bool MULTI>
struct TaskIterator {
    u32 task, weight, row, rows;

    // Finds weight and rows of the task; false if there are no more.
    DEVICE bool seek(const GemvArgs& args, u32 end) {
#pragma unroll 1
        for (;;) {
            const GemvWeight& w = args.weights[MULTI ? weight : 0];
            const u32 first = first_row(w, blockIdx.x), all = first_row(w, blockIdx.x + 1) - first;
            const u32 tasks = (all + ROWS - 1) / ROWS;
            if (task < tasks) {
                row = first + task * ROWS;
                rows = min(ROWS, all - task * ROWS);
                return true;
            }
            if (!MULTI || ++weight >= end) return false;
            task -= tasks;
        }
    }

    DEVICE const u8* data(const GemvArgs& args, u32 which) const {
        return args.weights[which].data + (u64)row * args.weights[which].row_bytes;
    }
};

// One warp: loads its rows into its ring and multiplies them. CHUNK_BYTES is that of the format whose rows
// take several stages.
template <int LANES, bool GATE_UP, bool MULTI, u32 CHUNK_BYTES>
struct GemvWarp {
    static constexpr u32 GROUPS = 32 / LANES, ROWS = GATE_UP ? GROUPS / 2 : GROUPS;
    static constexpr u32 SEGMENT_BYTES = SEGMENT_UNITS / 4 * CHUNK_BYTES;

    const GemvArgs& args;
    const u32 first, end, warp, warps;  // weights, and this warp among those that work on them
    u8* ring;
    u64* full;
    TaskIterator<ROWS, MULTI> load_task;
    u32 load_segment;
    bool more;

    DEVICE GemvWarp(const GemvArgs& args, u32 first, u32 end, u32 warp, u32 warps, u8* ring, u64* full)
        : args(args),
          first(first),
          end(end),
          warp(warp),
          warps(warps),
          ring(ring),
          full(full),
          load_segment(0) {
        load_task.task = warp;
        load_task.weight = first;
        more = load_task.seek(args, end);
    }

    DEVICE u32 segments() const { return LANES == 32 ? args.segments : 1; }
    DEVICE u32 up_offset() const {
        return args.stage_bytes / 2;
    }  // where the rows of the up matrix lie in a stage

    // Starts to load the next task, or the next segment of its row, into a stage.
    DEVICE void load(u32 stage) {
        if (more && (threadIdx.x & 31) < RING_COPY_LANES) {
            const u32 which = MULTI ? load_task.weight : 0;
            const u8* from = load_task.data(args, which);
            u32 bytes = load_task.rows * args.weights[which].row_bytes;
            u8* to = ring + stage * args.stage_bytes;
            if (GATE_UP) {
                const u8* up = load_task.data(args, 1);
                ring_expect(&full[stage], covering_bytes(from, bytes) + covering_bytes(up, bytes));
                ring_copy(to, from, bytes, &full[stage]);
                ring_copy(to + up_offset(), up, bytes, &full[stage]);
            } else {
                if (LANES == 32 && segments() > 1) {
                    const u32 begin = load_segment * SEGMENT_BYTES;
                    from += begin;
                    bytes = min(bytes - begin, SEGMENT_BYTES);
                }
                ring_expect(&full[stage], covering_bytes(from, bytes));
                ring_copy(to, from, bytes, &full[stage]);
            }
        }
        ring_commit();
        if (more && (LANES < 32 || ++load_segment == segments())) {
            load_segment = 0;
            load_task.task += warps;
            more = load_task.seek(args, end);
        }
    }
    DEVICE void fill_ring() {
#pragma unroll 1
        for (u32 i = 0; i < args.stages; i++) load(i);
    }

    // Bias plus residual of a row.
    static DEVICE float addend(const GemvWeight& weight, u32 row) {
        return (weight.bias ? weight.bias[row] : 0) + (weight.residual ? weight.residual[row] : 0);
    }
    // Of the rows of the warp's first 32 / ROWS tasks, one row per lane: loaded early.
    DEVICE float first_addends() const {
        if (MULTI || GATE_UP) return 0;
        const u32 lane = threadIdx.x & 31, begin = first_row(args.weights[0], blockIdx.x);
        const u32 row = begin + (warp + lane / ROWS * warps) * ROWS + lane % ROWS;
        return row < first_row(args.weights[0], blockIdx.x + 1) ? addend(args.weights[0], row) : 0;
    }

    // Mainloop and epilogue of all tasks. Results are multiplied by `factor`. `addends` is from
    // `first_addends`. `results`: shared memory for those of the block, if they are to be quantized.
    template <class F>
    DEVICE void multiply(const u8* x, float factor, float addends, float* results) {
        const u32 lane = threadIdx.x & 31, inner = lane & (LANES - 1), group = lane / LANES;
        const u32 stage_bytes = args.stage_bytes, blocks = (args.k + 31) / 32, units = (blocks + 1) / 2;
        u32 stage = 0, parity = 0;
        TaskIterator<ROWS, MULTI> task;
        task.task = warp;
        task.weight = first;
        u32 addend_lane = 0;  // that has the addend of the task's first row
#pragma unroll 1
        while (task.seek(args, end)) {
            const u32 which = GATE_UP ? group & 1
                              : MULTI ? task.weight
                                      : 0,
                      index = GATE_UP ? group >> 1 : group;
            const GemvWeight& weight = args.weights[which];
            const u32 to = task.row + index;
            const bool writes = inner == 0 && index < task.rows && !(GATE_UP && group & 1);
            // Loaded while the dot product is computed.
            const float own_addend = MULTI && writes ? addend(weight, to) : 0;
            const u8* row = ring + (GATE_UP ? (group & 1) * up_offset() : 0) +
                            ((u32)(u64)task.data(args, which) & 15) +
                            min(index, task.rows - 1) * weight.row_bytes;
            float value = 0;
            const u8* at = x + inner / 8 * Q8_GROUP_BYTES;
            u32 unit = inner;
#pragma unroll 1
            for (u32 segment = 0; segment < segments(); segment++) {
                const u32 past = segments() > 1 ? min(units, (segment + 1) * SEGMENT_UNITS) : units;
                ring_wait(&full[stage], parity, args);
                // Where the row would start if all of it were in this stage.
                const u8* here = row + stage * stage_bytes - segment * (SEGMENT_UNITS / 4 * F::CHUNK_BYTES);
#pragma unroll 1
                for (; unit < past; unit += LANES, at += LANES / 8 * Q8_GROUP_BYTES) {
                    F weights;
                    weights.load(here, unit, unit * 2 + 1 < blocks);
                    value = weights.add_dot(value, inner, at);
                }
                __syncwarp();
                load(stage);
                if (++stage == args.stages) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            value = lanes_sum<LANES>(value);
            if (GATE_UP) {
                value *= factor;
                const float up = __shfl_xor_sync(FULL_WARP, value, LANES);
                value = fast_gated(value, up, args.gelu);
            } else {
                const float added = MULTI              ? own_addend
                                    : addend_lane < 32 ? __shfl_sync(FULL_WARP, addends, addend_lane + index)
                                    : writes           ? addend(weight, to)
                                                       : 0;
                value = __fmaf_rn(factor, value, added);
                addend_lane += ROWS;
            }
            if (writes) {
                weight.out[to] = value;
                if (GATE_UP && args.out_q8) results[to - first_row(weight, blockIdx.x)] = value;
            }
            task.task += warps;
        }
    }
};

// ---- Entries ----------------------------------------------------------------------------------------------

// The norm's f32 result, by one block.
DEVICE void write_normed(const GemvArgs& args, float inverse_rms) {
#pragma unroll 1
    for (u32 at = threadIdx.x * 4; at < args.k; at += THREADS * 4)
        *(float4*)(args.normed + at) = ldcg4(args.x + at) * ldcg4(args.gamma + at) * inverse_rms;
}

// The block's results as q8 activations.
DEVICE void quantize_results(const GemvArgs& args, const float* results) {
    __syncthreads();
    const GemvWeight& weight = args.weights[0];
    const u32 begin = first_row(weight, blockIdx.x), count = first_row(weight, blockIdx.x + 1) - begin;
#pragma unroll 1
    for (u32 at = threadIdx.x; at < count; at += THREADS)
        quantize_q8_row_x1(args.out_q8, begin + at, results[at]);
}

// F and G are the formats of the first and the second weights.
template <class F, class G, bool TWO_FORMATS, int LANES, bool GATE_UP, bool MULTI, bool FORWARDED>
DEVICE void gemv(const GemvArgs& args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) float warp_sums[WARPS], results[GATE_UP ? MAX_Q8_RESULTS : 1];
    __shared__ u64 full[WARPS][MAX_STAGES], x_full;
    const u32 warp = threadIdx.x / 32;
    u8* ring = memory + q8_groups(args.k) * Q8_GROUP_BYTES + warp * (args.stages * args.stage_bytes);
    ring_init(full[warp]);
    pdl_launch_dependents();
    const Activations<FORWARDED> x{memory, &x_full, warp_sums};
    x.init(args);
    const bool second = TWO_FORMATS && warp >= args.first_format_warps;
    const u32 first_warp = second ? args.first_format_warps : 0;
    const u32 end_warp = TWO_FORMATS && !second ? args.first_format_warps : WARPS;
    GemvWarp<LANES, GATE_UP, MULTI, F::CHUNK_BYTES> rows(
        args, second ? args.first_format_weights : 0,
        TWO_FORMATS && !second ? args.first_format_weights : args.n_weights, warp - first_warp,
        end_warp - first_warp, ring, full[warp]);
    rows.fill_ring();
    x.wait_and_copy(args);
    const float addends = rows.first_addends();
    const float inverse_rms = x.finish(args);
    if (!second)
        rows.template multiply<F>(memory, inverse_rms, addends, results);
    else
        rows.template multiply<G>(memory, inverse_rms, addends, results);
    if (!FORWARDED && args.normed && blockIdx.x == gridDim.x - 1) write_normed(args, inverse_rms);
    if (GATE_UP && args.out_q8) quantize_results(args, results);
}

#define ENTRY(NAME, F, G, TWO_FORMATS, LANES, GATE_UP, MULTI, FORWARDED)    \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                \
        gemv_##NAME##_lanes##LANES(const __grid_constant__ GemvArgs args) { \
        gemv<F, G, TWO_FORMATS, LANES, GATE_UP, MULTI, FORWARDED>(args);    \
    }
// For one weight, for several, and for one with forwarded q8 activations.
#define LANES_PER_ROW(NAME, LANES)                                    \
    ENTRY(NAME, NAME, NAME, false, LANES, false, false, false)        \
    ENTRY(multi_##NAME, NAME, NAME, false, LANES, false, true, false) \
    ENTRY(q8_##NAME, NAME, NAME, false, LANES, false, false, true)
#define FORMAT(NAME)                                                \
    LANES_PER_ROW(NAME, 8)                                          \
    LANES_PER_ROW(NAME, 16)                                         \
    LANES_PER_ROW(NAME, 32)                                         \
    ENTRY(gate_up_##NAME, NAME, NAME, false, 8, true, false, false) \
    ENTRY(gate_up_##NAME, NAME, NAME, false, 16, true, false, false)

FOR_EACH_GEMV_FORMAT(FORMAT)
ENTRY(multi_q4_k_q6_k, q4_k, q6_k, true, 8, false, true, false)
ENTRY(multi_q4_k_q6_k, q4_k, q6_k, true, 16, false, true, false)
