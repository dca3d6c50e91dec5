// targets: 90
// Int8 GEMM for few rows (W4A8 to W8A8): y[m, n] = x[m, k] W[n, k]^T for m = 2..8 rows of x and
// block-quantized W (Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0), with a fused RMS norm before it and
// SwiGLU of gate and up, or bias and residual, after it. For decode at batch 2 to 8: the GEMV's arithmetic
// (gemv.cu) on tensor cores, and its bits.
//
// Algorithm
//   x is quantized to int8 as in the GEMV and packed as B-fragments (q8_rows.cuh). Quants of W are unpacked
//   to bytes in registers, the A operand; mma.m16n8k32 gives exact integer sums of blocks, which are scaled
//   and added up in f32 (gemm_q8_formats.cuh). Every block of the grid quantizes x itself, or copies q8 rows
//   that the previous kernel has forwarded.
//
// Order of sums
//   The GEMV gives LANES lanes a row of W. Lane l adds up units l, l + LANES ... in turn, and a butterfly
//   adds up the lanes. Here a team of LANES / 2 warps works on the same rows: warp i has the units of lanes
//   2 i and 2 i + 1, in the same order, and the sums of all warps are added up in shared memory as the
//   butterfly does.
//
// Tiles and mapping (chosen in gemm_q8.rs)
//   grid   up to one block per SM, each with `tasks_per_block` consecutive tasks
//   block  teams of 4, 8 or 16 warps (1 << team_shift); team j takes tasks j, j + teams ... At least 12 warps
//          where x is to be quantized
//   task   32 rows of W (of gate and up: 16 rows of both): two MMA tiles of each warp. A tile of gate and up
//          is 8 rows of gate, then the same 8 of up
//   warp   every (team size)-th half of 128 columns
//   stage  the 32 rows, a segment of K long, one bulk copy per row
//
// Pipeline
//   Each team has a ring of `stages` stages. full[team][stage] has an arrival for each of the 32 rows with
//   the bytes of its copy; the warps of the team divide the rows among them. A named barrier per team before
//   a stage is filled again. Rings are filled before `pdl_wait`. `x_full`: of the copies of forwarded q8
//   rows, one for each segment of K.
//
// Memory layouts
//   x       f32 [m, k], or q8 rows
//   W       as in a GGUF file; a row of a stage starts at a multiple of `pitch`, an odd multiple of 16
//           bytes, so that the rows of a tile lie in different banks
//   y       f32 [m, n]; gate-up also as q8 rows for the down projection
//   shared  q8 rows of x | rings: [team][stage]. The last stage of a task is reused for the sums of the warps
//
// Preconditions (small_m.rs, gemm_q8.rs)
//   x, gamma and `normed` 16-byte aligned, W too for Q4_K and Q5_K; k a multiple of 32 (of 128 for q8 input).
//
// Numerics
//   Those of the GEMV, to the bit, whatever m is.
//
// Performance
//   Bound by the bytes of W: 16 rows and 256 columns of Q4_K take an SM 124 cycles from memory at 4.3 TB/s,
//   about 376 instructions (of 496 issue slots) and 66 cycles of shared memory (docs/lab/cuda-decode.md).
#include "float4.cuh"
#include "gemm_q8_formats.cuh"
#include "l2_prefetch.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"

constexpr int MAX_WARPS = 16, MAX_TEAMS = 4, MAX_STAGES = 4;
constexpr u32 MAX_X_COPIES = 8;
constexpr int MAX_WEIGHTS = 3;       // weight matrices of a launch
constexpr int MAX_ROWS = 8;          // of x
constexpr int MAX_Q8_RESULTS = 256;  // rows of a block that are quantized for the next kernel
// The GEMV's block, whose order of sums the norm follows.
constexpr int GEMV_WARPS = 12;
constexpr u32 ROW_GROUP = 4;  // rows of x that a warp quantizes at once
// In floats, the sums of a unit in shared memory: a row of 32 and a pad for each row of x.
constexpr u32 SUMS_PITCH = TASK_ROWS + 4, UNIT_SUMS = MAX_ROWS * SUMS_PITCH;

// One weight matrix [rows, k] with its output y [m, rows].
struct GemmQ8Weight {
    const u8* data;
    float* out;
    const float* bias;      // [rows] or null
    const float* residual;  // [m, rows] or null; may be `out`
    u32 rows;
    u32 row_bytes;
    u32 first_task;
    u32 unused;
};

struct GemmQ8Args {
    const float* x;      // [m, k]
    const u8* x_q8;      // x as q8 rows, or null
    u8* out_q8;          // q8 rows of the result, or null; gate-up with an even number of tasks per block
    const float* gamma;  // [k], weights of the RMS norm; null: no norm
    float* normed;       // where the norm's f32 result goes, or null
    float epsilon;
    float inverse_k;
    u32 k;
    u32 m;
    u32 x_rows;                // m, padded to 2, 4 or 8
    u32 first_format_weights;  // of the first format
    u32 n_weights;             // 2 for gate and up
    u32 tasks;
    u32 tasks_per_block;
    u32 team_shift;
    u32 segment_halves;  // halves of 128 columns in a stage, a multiple of the team's warps
    u32 segments;        // stages that a task takes
    u32 stages;
    u32 stage_bytes;
    u32 pitch;
    u32 teams;  // further warps only help to quantize x
    GemmQ8Weight weights[MAX_WEIGHTS];
    L2Prefetch prefetch;
};
#include "layout/gemm_q8.cuh"

// ---- Activations ------------------------------------------------------------------------------------------

// x as q8 rows in shared memory.
struct Activations {
    const GemmQ8Args& args;
    u8* q8;
    u64* x_full;
    float (*warp_sums)[GEMV_WARPS];  // [MAX_ROWS]: sums of squares
    float* factors;                  // [MAX_ROWS]: 1 / rms

    // Before `pdl_wait`, by one thread.
    DEVICE void init() const {
#pragma unroll
        for (int i = 0; i < MAX_X_COPIES; i++) mbarrier_init(&x_full[i], 1);
        if (args.gamma && blockIdx.x % 8 == 0) cp_async_bulk_prefetch_l2_covering(args.gamma, args.k * 4);
    }

    // Four columns of four rows of x, and of gamma.
    struct Elements {
        float4 x[ROW_GROUP], gamma;
        DEVICE Elements(const GemmQ8Args& args, u32 first_row, u32 at) : gamma(splat4(1)) {
            const bool inside = at < args.k;
            if (inside && args.gamma) gamma = ldcg4(args.gamma + at);
#pragma unroll
            for (u32 i = 0; i < ROW_GROUP; i++) {
                x[i] = splat4(0);
                if (inside && first_row + i < args.m)
                    x[i] = ldcg4(args.x + (u64)(first_row + i) * args.k + at);
            }
        }
    };

    // Quantizes x, or x * gamma: what the GEMV's warp `gemv_warp` quantizes of a row, of up to four rows,
    // with sums of squares added up as there. A thread's next elements are loaded meanwhile.
    DEVICE void quantize(u32 first_row, u32 gemv_warp) const {
        const u32 lane = threadIdx.x & 31;
        float sums[ROW_GROUP] = {};
        u32 at = (gemv_warp * 32 + lane) * 4;
        Elements elements(args, first_row, at);
#pragma unroll 1
        for (u32 first = gemv_warp * 128; first < args.k; first += GEMV_WARPS * 128) {
            const Elements next(args, first_row, at + GEMV_WARPS * 128);
#pragma unroll
            for (u32 i = 0; i < ROW_GROUP; i++) {
                if (first_row + i >= args.m) break;
                sums[i] += sum_of_squares(elements.x[i]);
                quantize_q8_rows_x4(q8, args.x_rows, first_row + i, at, elements.x[i] * elements.gamma);
            }
            elements = next;
            at += GEMV_WARPS * 128;
        }
#pragma unroll
        for (u32 i = 0; i < ROW_GROUP; i++) {
            const float sum = warp_sum(sums[i]);
            if (lane == 0) warp_sums[first_row + i][gemv_warp] = sum;
        }
    }

    // Starts to copy q8 rows, a segment of K at a time; the last copy has what is left.
    DEVICE void copy() const {
        const u32 all = q8_rows_bytes(args.x_rows, args.k);
        const u32 each = args.segment_halves * (2 * Q8_ROWS_UNIT_BYTES * args.x_rows);
#pragma unroll 1
        for (u32 i = 0; i < MAX_X_COPIES && i * each < all; i++) {
            const u32 bytes = i == MAX_X_COPIES - 1 ? all - i * each : min(each, all - i * each);
            mbarrier_arrive_expect_tx(&x_full[i], bytes);
            cp_async_bulk_covering(q8 + i * each, args.x_q8 + i * each, bytes, &x_full[i]);
        }
    }
    // Waits for the copy that has a segment.
    DEVICE void wait(u32 segment) const {
        if (args.x_q8) mbarrier_wait_parity(&x_full[min(segment, MAX_X_COPIES - 1)], 0);
    }

    // On return all threads can read x, but for what is copied, and `factors`.
    DEVICE void finish() const {
        if (args.x_q8) {
            if (threadIdx.x == 0) copy();
            return;
        }
#pragma unroll 1
        for (u32 i = threadIdx.x / 32; i < GEMV_WARPS * ((args.m + 3) / ROW_GROUP); i += blockDim.x / 32)
            quantize(i / GEMV_WARPS * ROW_GROUP, i % GEMV_WARPS);
        __syncthreads();
        if (!args.gamma) return;
        if (threadIdx.x < args.m) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < GEMV_WARPS; i++) sum += warp_sums[threadIdx.x][i];
            factors[threadIdx.x] = rsqrtf(sum * args.inverse_k + args.epsilon);
        }
        __syncthreads();
    }

    // The norm's f32 result, a row per block from the last one on.
    DEVICE void write_normed() const {
#pragma unroll 1
        for (u32 row = gridDim.x - 1 - blockIdx.x; row < args.m; row += gridDim.x) {
            const float* x = args.x + (u64)row * args.k;
            float* to = args.normed + (u64)row * args.k;
#pragma unroll 1
            for (u32 at = threadIdx.x * 4; at < args.k; at += blockDim.x * 4)
                *(float4*)(to + at) = ldcg4(x + at) * ldcg4(args.gamma + at) * factors[row];
        }
    }
};

// ---- Teams ------------------------------------------------------------------------------------------------

// The tasks of a team and its ring. F and G are the formats of the first and the second weights.
template <class F, class G, bool TWO_FORMATS, bool GATE_UP>
struct TeamLoader {
    static constexpr u32 ROWS = GATE_UP ? TASK_ROWS / 2 : TASK_ROWS;  // results of a task per row of x

    const GemmQ8Args& args;
    const u32 lane, warps, team, member, teams, end;
    u8* ring;
    u64* full;
    u32 load_task, load_segment;

    DEVICE TeamLoader(const GemmQ8Args& args, u8* rings, u64 (*full)[MAX_STAGES])
        : args(args),
          lane(threadIdx.x & 31),
          warps(1u << args.team_shift),
          team(threadIdx.x / 32 >> args.team_shift),
          member(threadIdx.x / 32 & (warps - 1)),
          teams(args.teams),
          end(team < teams ? min(args.tasks, (blockIdx.x + 1) * args.tasks_per_block) : 0),
          ring(rings + team * args.stages * args.stage_bytes),
          full(full[team]),
          load_task(first_task()),
          load_segment(0) {}

    DEVICE u32 first_task() const { return blockIdx.x * args.tasks_per_block + team; }
    DEVICE void sync() const { bar_sync(1 + team, warps * 32); }

    // The weight matrix of a task; gate for gate and up.
    DEVICE u32 weight_of(u32 task) const {
        if (GATE_UP) return 0;
        u32 which = 0;
#pragma unroll
        for (int i = 1; i < MAX_WEIGHTS; i++)
            if (i < args.n_weights && task >= args.weights[i].first_task) which = i;
        return which;
    }
    DEVICE bool second_format(u32 which) const { return TWO_FORMATS && which >= args.first_format_weights; }
    DEVICE u32 segment_bytes(u32 which) const {
        return args.segment_halves / 2 * (second_format(which) ? G::CHUNK_BYTES : F::CHUNK_BYTES);
    }
    // The row of its matrix that row `r` of a task is.
    DEVICE u32 row_of(u32 task, u32 which, u32 r) const {
        return GATE_UP ? task * ROWS + r / 16 * 8 + r % 8
                       : (task - args.weights[which].first_task) * ROWS + r;
    }

    // Starts to load the next segment into a stage: each warp its part of the rows.
    DEVICE void load(u32 stage) {
        if (load_task >= end) return;
        const u32 task_weight = weight_of(load_task), begin = load_segment * segment_bytes(task_weight);
        if (elect_one()) {
            const u32 each = TASK_ROWS >> args.team_shift;
#pragma unroll 1
            for (u32 r = member * each; r < (member + 1) * each; r++) {
                const u32 which = GATE_UP ? r / 8 & 1 : task_weight;
                const GemmQ8Weight& weight = args.weights[which];
                const u32 row = row_of(load_task, which, r);
                if (row >= weight.rows) {
                    mbarrier_arrive(&full[stage]);
                    continue;
                }
                const u8* from = weight.data + (u64)row * weight.row_bytes + begin;
                const u32 bytes = min(weight.row_bytes - begin, segment_bytes(task_weight));
                mbarrier_arrive_expect_tx(&full[stage], covering_bytes(from, bytes));
                cp_async_bulk_covering(ring + stage * args.stage_bytes + r * args.pitch, from, bytes,
                                       &full[stage]);
            }
        }
        __syncwarp();
        if (++load_segment == args.segments) load_segment = 0, load_task += teams;
    }
    DEVICE void fill_ring() {
#pragma unroll 1
        for (u32 i = 0; i < args.stages; i++) load(i);
    }
};

// Mainloop and epilogue of a team.
template <class F, class G, bool TWO_FORMATS, bool GATE_UP>
struct TeamGemm : TeamLoader<F, G, TWO_FORMATS, GATE_UP> {
    using Loader = TeamLoader<F, G, TWO_FORMATS, GATE_UP>;
    using Loader::args, Loader::lane, Loader::warps, Loader::team, Loader::member, Loader::teams, Loader::end;
    using Loader::first_task, Loader::sync, Loader::weight_of, Loader::second_format, Loader::segment_bytes;
    using Loader::Loader, Loader::ROWS, Loader::ring, Loader::full, Loader::row_of, Loader::load;

    // Multiplies this warp's halves of a segment.
    template <class Format>
    DEVICE void multiply_segment(const u8* x, u32 task, u32 which, u32 segment, u32 stage,
                                 UnitSums& sums) const {
        StageRows w;
        w.stage = ring + stage * args.stage_bytes;
        w.pitch = args.pitch, w.first = lane / 4 * args.pitch;
        w.matrices = shared_address(w.stage) + (lane & 15) * args.pitch + lane / 16 * 16;
        const u32 begin = segment * segment_bytes(which);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                const GemmQ8Weight& weight = args.weights[GATE_UP ? upper : which];
                const u32 row = row_of(task, which, tile * 16 + upper * 8 + lane / 4);
                const u32 address = (u32)(u64)weight.data + row * weight.row_bytes + begin;
                w.offset[tile][upper] = Format::ALIGNED ? 0 : address & 15;
            }
        const u32 halves = (args.k + Q8_ROWS_HALF - 1) / Q8_ROWS_HALF, first = segment * args.segment_halves;
        const u32 past = min(halves - first, args.segment_halves);
#pragma unroll 1
        for (u32 half = member; half < past; half += warps) {
            const XUnit unit = {x + (first + half) * (2 * Q8_ROWS_UNIT_BYTES * args.x_rows), args.x_rows};
            Format::multiply(w, unit, half, (args.k + 31) / 32 - (first + half) * 4, sums);
        }
    }

    // Puts the sums of a warp into shared memory: [warp][unit][row of x][row of W].
    DEVICE void store_sums(float* to, const UnitSums& sums) const {
        const u32 g = lane / 4, t = lane % 4;
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    to[(member * 2 + e) * UNIT_SUMS + (2 * t + c % 2) * SUMS_PITCH + tile * 16 + g +
                       c / 2 * 8] = sums[e][tile][c];
    }
    // Adds up those of all warps, as a butterfly over the lanes of the GEMV does.
    DEVICE float add_sums(const float* from) const {
        auto unit = [&](u32 e) {
            float parts[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                auto sum_of = [&](u32 warp) { return from[(warp * 2 + e) * UNIT_SUMS]; };
                parts[i] = sum_of(i);
                if (warps == 16) parts[i] += sum_of(i + 8);
                if (warps >= 8) parts[i] += warps == 16 ? sum_of(i + 4) + sum_of(i + 12) : sum_of(i + 4);
            }
            return (parts[0] + parts[2]) + (parts[1] + parts[3]);
        };
        return unit(0) + unit(1);
    }

    // A result of a task: row of x and row among the task's; thread `i` of the team has i, i + threads ...
    struct Result {
        u32 m, index;
        DEVICE Result(u32 i) : m(i / ROWS), index(i % ROWS) {}
    };
    static constexpr u32 MAX_ADDENDS = MAX_ROWS * TASK_ROWS / 128;  // results of a thread

    // Bias plus residual of this thread's results.
    DEVICE void load_addends(float (&addends)[MAX_ADDENDS], u32 task, u32 which) const {
        const GemmQ8Weight& weight = args.weights[which];
#pragma unroll
        for (u32 i = 0; i < MAX_ADDENDS; i++) {
            const Result result((i * warps + member) * 32 + lane);
            const u32 row = row_of(task, which, result.index);
            addends[i] = 0;
            if (result.m >= args.m || row >= weight.rows) continue;
            addends[i] = (weight.bias ? weight.bias[row] : 0) +
                         (weight.residual ? weight.residual[(u64)result.m * weight.rows + row] : 0);
        }
    }

    // The epilogue of a task. `results`: [MAX_ROWS][MAX_Q8_RESULTS], those of the block to be quantized.
    DEVICE void write_results(const float* all_sums, u32 task, u32 which, const float (&addends)[MAX_ADDENDS],
                              const float* factors, float* results) const {
        const GemmQ8Weight& weight = args.weights[which];
#pragma unroll
        for (u32 i = 0; i < MAX_ADDENDS; i++) {
            const Result result((i * warps + member) * 32 + lane);
            const u32 index = result.index, row = GATE_UP ? task * ROWS + index : row_of(task, which, index);
            if (result.m >= args.m || row >= weight.rows) continue;
            const float* from =
                all_sums + result.m * SUMS_PITCH + (GATE_UP ? index / 8 * 16 + index % 8 : index);
            const float factor = args.gamma ? factors[result.m] : 1;
            float value = add_sums(from);
            if (GATE_UP)
                value = fast_swiglu(__fmul_rn(value, factor), __fmul_rn(add_sums(from + 8), factor));
            else
                value = __fmaf_rn(factor, value, addends[i]);
            weight.out[(u64)result.m * weight.rows + row] = value;
            if (GATE_UP && args.out_q8)
                results[result.m * MAX_Q8_RESULTS + row - blockIdx.x * args.tasks_per_block * ROWS] = value;
        }
    }

    // Mainloop and epilogue of all tasks of the team.
    DEVICE void run(const Activations& x, float* results) {
        u32 stage = 0, parity = 0;
#pragma unroll 1
        for (u32 task = first_task(); task < end; task += teams) {
            const u32 which = weight_of(task);
            float addends[MAX_ADDENDS] = {};
            if (!GATE_UP) load_addends(addends, task, which);
            UnitSums sums = {};
#pragma unroll 1
            for (u32 segment = 0; segment < args.segments; segment++) {
                x.wait(segment);
                mbarrier_wait_parity(&full[stage], parity);
                if (!second_format(which))
                    multiply_segment<F>(x.q8, task, which, segment, stage, sums);
                else
                    multiply_segment<G>(x.q8, task, which, segment, stage, sums);
                sync();
                if (segment + 1 == args.segments) {
                    float* all_sums = (float*)(ring + stage * args.stage_bytes);
                    store_sums(all_sums, sums);
                    sync();
                    write_results(all_sums, task, which, addends, x.factors, results);
                    fence_proxy_async();
                    sync();
                }
                load(stage);
                if (++stage == args.stages) stage = 0, parity ^= 1;
            }
        }
    }
};

// ---- Entries ----------------------------------------------------------------------------------------------

// The block's results as q8 rows.
DEVICE void quantize_results(const GemmQ8Args& args, const float* results) {
    __syncthreads();
    const u32 rows = args.weights[0].rows, each = args.tasks_per_block * (TASK_ROWS / 2);
    const u32 begin = min(rows, blockIdx.x * each), count = min(rows - begin, each);
#pragma unroll 1
    for (u32 at = threadIdx.x; at < count; at += blockDim.x)
#pragma unroll 1
        for (u32 row = 0; row < args.m; row++)
            quantize_q8_rows_x1(args.out_q8, args.x_rows, row, begin + at,
                                results[row * MAX_Q8_RESULTS + at]);
}

template <class F, class G, bool TWO_FORMATS, bool GATE_UP>
DEVICE void gemm_q8(const GemmQ8Args& args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) float warp_sums[MAX_ROWS][GEMV_WARPS], factors[MAX_ROWS];
    __shared__ float results[GATE_UP ? MAX_ROWS * MAX_Q8_RESULTS : 1];
    __shared__ u64 full[MAX_TEAMS][MAX_STAGES], x_full[MAX_X_COPIES];
    const Activations x{args, memory, x_full, warp_sums, factors};
    if (threadIdx.x < MAX_TEAMS * MAX_STAGES) mbarrier_init(&full[0][threadIdx.x], TASK_ROWS);
    if (threadIdx.x == 0) x.init();
    fence_mbarrier_init();
    fence_proxy_async();
    __syncthreads();
    pdl_launch_dependents();
    TeamGemm<F, G, TWO_FORMATS, GATE_UP> rows(args, memory + q8_rows_bytes(args.x_rows, args.k), full);
    rows.fill_ring();
    pdl_wait();
    x.finish();
    if (threadIdx.x / 32 == blockDim.x / 32 - 1) args.prefetch.prefetch(threadIdx.x & 31);
    rows.run(x, results);
    if (args.normed) x.write_normed();
    if (GATE_UP && args.out_q8) quantize_results(args, results);
}

#define ENTRY(NAME, F, G, TWO_FORMATS, GATE_UP)                     \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS * 32, 1) \
        gemm_q8_##NAME(const __grid_constant__ GemmQ8Args args) {   \
        gemm_q8<F, G, TWO_FORMATS, GATE_UP>(args);                  \
    }
#define FORMAT(NAME)                      \
    ENTRY(NAME, NAME, NAME, false, false) \
    ENTRY(gate_up_##NAME, NAME, NAME, false, true)

FORMAT(q4_k)
FORMAT(q5_k)
FORMAT(q6_k)
FORMAT(q4_0)
FORMAT(q4_1)
FORMAT(q5_0)
FORMAT(q5_1)
FORMAT(q8_0)
ENTRY(q4_k_q6_k, q4_k, q6_k, true, false)
