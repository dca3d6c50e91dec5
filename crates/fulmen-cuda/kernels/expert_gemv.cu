// GEMV by expert id with int8 activations (W4A8 to W8A8), for decode: each row of x with block-quantized
// weights of its experts alone (Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, IQ4_NL, IQ4_XS).
// Launched by src/kernels/expert_gemv.rs. L: lanes per row of W. A pair is a row of x and one of its experts;
// its slot is the number of the expert among the top_k of the row.
//
// expert_gate_up_<format>_lanes<L>: activation(x gate[id]^T + bias, x up[id]^T + bias) for each pair.
//   grid ceil(n / rows_per_block) x pairs; a task is 16 / L rows of both matrices.
// expert_down_<format>_lanes<L>: out = residual + sum of weight * (x down[id]^T + bias) over a row's pairs.
//   grid ceil(n / rows_per_block) x m; a task is 32 / L rows of one expert. Results of all experts of a row
//   meet in shared memory and are added in the order of the slots.
//
// Algorithm
//   As in gemv.cu: x is quantized to int8 by every block (q8_activations.cuh), or comes as q8 activations
//   from the previous kernel, and is multiplied by dp4a (gemv_formats.cuh); weights are streamed into a ring
//   of each of the 12 warps (gemv_ring.cuh): up to two stages, usually of at most 8448 bytes.
//
// Pipeline
//   Gate-up must not load weights before `pdl_wait` (the ids choose them), and calls `pdl_launch_dependents`
//   only after it. So when down starts, everything before gate-up, the ids included, is complete: with
//   forwarded x (`x_q8`), down reads the ids and fills its rings before its own `pdl_wait`, while gate-up
//   still runs.
//
// Memory layouts
//   x       f32 [m, k] (gate-up) or [m, top_k, k] (down), or q8 activations of each of these rows, if m is 1
//   W       [n_experts, n, k] as in a GGUF file; a stage holds the 16-byte vectors that cover a task's rows
//   shared  q8 activations of x, of every pair of the row for down | rings: [warp][stage]
//           static: results f32 [row of the block], for down [slot][row of the block]
//
// Preconditions (expert_gemv.rs): x 16-byte aligned, k a multiple of 32, rows_per_block * top_k at most
// MAX_RESULTS, and rows_per_block at most THREADS, for down. For q8 output rows_per_block is a multiple of 32
// and at most MAX_Q8_ROWS. A row with an id out of range is reported and not written; a pair without an
// expert here (NO_EXPERT) is not written by gate-up, and not added by down.
//
// Numerics: as gemv.cu, without a norm; activations and routing weights in f32.
//
// Bound by the bytes of the active experts. H200, batch 1, ops timed alone: gate-up 29 % and down 20 % of the
// memory bandwidth (Qwen3-30B-A3B Q4_K_M), 34 % and 24 % (gpt-oss-20b MXFP4).
#include "experts.cuh"
#include "float4.cuh"
#include "gemv_formats.cuh"
#include "gemv_ring.cuh"

constexpr u32 WARPS = 12, THREADS = WARPS * 32;
constexpr u32 MAX_RESULTS = 1024;
constexpr u32 MAX_EXPERTS_PER_ROW = 32;
constexpr u32 MAX_Q8_ROWS = 128;

// Mirrored by `ExpertGemvArgs` in src/kernels/expert_gemv.rs.
struct ExpertGemvArgs {
    const float* x;
    const u8* x_q8;         // rows of x as q8 activations, or null
    u8* out_q8;             // gate-up: q8 activations of the result of each pair, or null
    const u32* ids;         // [m, top_k]
    const float* weights;   // [m, top_k], down
    const u8* w;            // gate or down
    const u8* up;           // or null
    const float* bias;      // [n_experts, n] or null
    const float* up_bias;   // [n_experts, n] or null
    const float* residual;  // [m, n] or null; may be `out`
    float* out;             // [m, top_k, n] or [m, n]
    Fault* fault;
    u64 expert_bytes;  // of one matrix
    GatedActivation activation;
    u32 n;
    u32 k;
    u32 top_k;
    u32 n_experts;
    u32 row_bytes;
    u32 rows_per_block;
    u32 stage_bytes;
    u32 stages;
};
#include "layout/expert_gemv.cuh"

// Quantizes `rows` consecutive rows of x, each to its own q8 activations.
DEVICE void quantize_rows(u8* q8, const float* x, u32 rows, u32 k) {
    const u32 padded = q8_groups(k) * Q8_GROUP_ELEMENTS, bytes = q8_groups(k) * Q8_GROUP_BYTES;
#pragma unroll 1
    for (u32 at = threadIdx.x * 4; at < rows * padded; at += THREADS * 4) {
        const u32 row = at / padded, column = at % padded;
        const float4 v = column < k ? ldcg4(x + (u64)row * k + column) : make_float4(0, 0, 0, 0);
        quantize_q8_row_x4(q8 + row * bytes, column, v);
    }
}

// A warp and its ring: tasks are numbered, and warp w takes w, w + WARPS, ... Task t of `Source` has
// `rows(t)` consecutive rows, at `data(t, 0)` and for gate-up also at `data(t, 1)`.
template <class F, int LANES, bool GATE_UP, class Source>
struct ExpertWarp {
    static constexpr u32 GROUPS = 32 / LANES;

    const ExpertGemvArgs& args;
    const Source& source;
    u8* ring;
    u64* full;
    u32 load_task;

    DEVICE void load(u32 stage) {
        if (load_task < source.tasks() && (threadIdx.x & 31) < RING_COPY_LANES) {
            const u32 bytes = source.rows(load_task) * args.row_bytes;
            u8* to = ring + stage * args.stage_bytes;
            const u8* from = source.data(load_task, 0);
            if (GATE_UP) {
                const u8* up = source.data(load_task, 1);
                ring_expect(&full[stage], covering_bytes(from, bytes) + covering_bytes(up, bytes));
                ring_copy(to, from, bytes, &full[stage]);
                ring_copy(to + args.stage_bytes / 2, up, bytes, &full[stage]);
            } else {
                ring_expect(&full[stage], covering_bytes(from, bytes));
                ring_copy(to, from, bytes, &full[stage]);
            }
        }
        ring_commit();
        load_task += WARPS;
    }

    DEVICE void fill_ring() {
#pragma unroll 1
        for (u32 stage = 0; stage < args.stages; stage++) load(stage);
    }

    // Calls done(task, index of the row in the task, rows of the task, value) with the dot product of each
    // row, in all lanes; for gate-up the value is that of the gate or of up, in turn by groups of LANES
    // lanes. The value of addend(task, index, rows) is loaded meanwhile, and added.
    template <class Addend, class Done>
    DEVICE void multiply(Addend addend, Done done) {
        const u32 lane = threadIdx.x & 31, inner = lane & (LANES - 1), group = lane / LANES;
        const u32 blocks = (args.k + 31) / 32, units = (blocks + 1) / 2;
        const u32 index = GATE_UP ? group >> 1 : group;
        u32 stage = 0, parity = 0;
#pragma unroll 1
        for (u32 task = threadIdx.x / 32; task < source.tasks(); task += WARPS) {
            const u32 rows = source.rows(task);
            const u8* row = ring + stage * args.stage_bytes +
                            (GATE_UP ? (group & 1) * (args.stage_bytes / 2) : 0) +
                            ((u32)(u64)source.data(task, GATE_UP ? group & 1 : 0) & 15) +
                            min(index, rows - 1) * args.row_bytes;
            const u8* x = source.x(task);
            const float added = addend(task, index, rows);
            ring_wait(&full[stage], parity, args);
            float value = 0;
#pragma unroll 1
            for (u32 unit = inner; unit < units; unit += LANES) {
                F weights;
                weights.load(row, unit, unit * 2 + 1 < blocks);
                value = weights.add_dot(value, unit, x + unit / 8 * Q8_GROUP_BYTES);
            }
            __syncwarp();
            load(stage);
            if (++stage == args.stages) {
                stage = 0;
                parity ^= 1;
            }
            done(task, index, rows, lanes_sum<LANES>(value) + added);
        }
    }
};

// The rows of a block in gate and up of one expert.
template <u32 ROWS>
struct GateUpRows {
    const ExpertGemvArgs& args;
    const u8* q8;
    u64 offset;  // of the expert's first row of the block
    u32 count;

    DEVICE u32 tasks() const { return (count + ROWS - 1) / ROWS; }
    DEVICE u32 rows(u32 task) const { return min(ROWS, count - task * ROWS); }
    DEVICE const u8* data(u32 task, u32 which) const {
        return (which ? args.up : args.w) + offset + (u64)task * ROWS * args.row_bytes;
    }
    DEVICE const u8* x(u32) const { return q8; }
};

// The q8 activations of `rows` rows, copied or quantized. All threads can read them on return.
DEVICE void load_x(const ExpertGemvArgs& args, u8* q8, u64* x_full, u32 first, u32 rows) {
    if (!args.x_q8) {
        quantize_rows(q8, args.x + (u64)first * args.k, rows, args.k);
        __syncthreads();
        return;
    }
    const u32 bytes = rows * q8_groups(args.k) * Q8_GROUP_BYTES;
    if (threadIdx.x < BLOCK_COPY_THREADS) {
        block_copy_expect(x_full, bytes);
        block_copy(q8, args.x_q8, bytes, x_full);
    }
    block_copy_wait(x_full);
}

template <class F, int LANES>
DEVICE void expert_gate_up(const ExpertGemvArgs& args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 full[WARPS][MAX_STAGES], x_full;
    __shared__ float results[MAX_Q8_ROWS];
    constexpr u32 ROWS = 16 / LANES;
    const u32 warp = threadIdx.x / 32, pair = blockIdx.y, begin = blockIdx.x * args.rows_per_block;
    ring_init(full[warp]);
    if (threadIdx.x == 0) block_copy_init(&x_full);
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
    const u32 id = args.ids[pair];
    if (id >= args.n_experts) {
        if (is_invalid_expert(id, args.n_experts) && begin == 0 && threadIdx.x == 0)
            report(args.fault, FAULT_EXPERT, pair / args.top_k, id, args.n_experts);
        return;
    }
    u8* ring = memory + q8_groups(args.k) * Q8_GROUP_BYTES + warp * (args.stages * args.stage_bytes);
    const GateUpRows<ROWS> source{args, memory, id * args.expert_bytes + (u64)begin * args.row_bytes,
                                  min(args.rows_per_block, args.n - begin)};
    ExpertWarp<F, LANES, true, GateUpRows<ROWS>> rows{args, source, ring, full[warp], warp};
    rows.fill_ring();
    load_x(args, memory, &x_full, pair / args.top_k, 1);
    const bool is_up = threadIdx.x / LANES & 1;
    const float* bias = is_up ? args.up_bias : args.bias;
    rows.multiply(
        [&](u32 task, u32 index, u32 count) {
            return bias && index < count ? bias[(u64)id * args.n + begin + task * ROWS + index] : 0.0f;
        },
        [&](u32 task, u32 index, u32 count, float value) {
            const u32 row = task * ROWS + index;
            const float up = __shfl_xor_sync(FULL_WARP, value, LANES);
            if (index >= count || is_up || (threadIdx.x & (LANES - 1)) != 0) return;
            const float result = args.activation(value, up);
            args.out[(u64)pair * args.n + begin + row] = result;
            if (args.out_q8) results[row] = result;
        });
    if (!args.out_q8) return;
    __syncthreads();
    u8* q8 = args.out_q8 + (u64)pair * (q8_groups(args.n) * Q8_GROUP_BYTES);
    // The same for all lanes of a warp: n and the rows of a block are multiples of 32.
    if (threadIdx.x < source.count) quantize_q8_row_x1(q8, begin + threadIdx.x, results[threadIdx.x]);
}

// The experts of a row that are here, in the order of their slots.
struct RowExperts {
    u32 ids[MAX_EXPERTS_PER_ROW];
    u32 slots[MAX_EXPERTS_PER_ROW];
    u32 count;

    // By all threads. False if an id is out of range, in all of them.
    DEVICE bool load(const ExpertGemvArgs& args, u32 row) {
        bool valid = true;
        if (threadIdx.x < 32) {
            const u32 slot = threadIdx.x;
            const u32 id = slot < args.top_k ? __ldcg(args.ids + (u64)row * args.top_k + slot) : NO_EXPERT;
            valid = !is_invalid_expert(id, args.n_experts);
            if (!valid && blockIdx.x == 0) report(args.fault, FAULT_EXPERT, row, id, args.n_experts);
            const u32 here = __ballot_sync(FULL_WARP, id != NO_EXPERT);
            if (id != NO_EXPERT) {
                const u32 at = __popc(here & ((1u << slot) - 1));
                ids[at] = id;
                slots[at] = slot;
            }
            if (slot == 0) count = __popc(here);
        }
        return __syncthreads_and(valid);
    }
};

// The rows of a block in the down matrices of the experts of one row of the batch: task t is some rows of
// expert t % experts.
template <u32 ROWS>
struct DownRows {
    const ExpertGemvArgs& args;
    const u8* q8;
    const RowExperts& row;
    u32 experts;  // of the row
    u32 begin, count;

    DEVICE u32 tasks() const { return (count + ROWS - 1) / ROWS * experts; }
    DEVICE u32 first(u32 task) const { return task / experts * ROWS; }
    DEVICE u32 rows(u32 task) const { return min(ROWS, count - first(task)); }
    DEVICE const u8* data(u32 task, u32) const {
        return args.w + row.ids[task % experts] * args.expert_bytes +
               (u64)(begin + first(task)) * args.row_bytes;
    }
    DEVICE const u8* x(u32 task) const {
        return q8 + row.slots[task % experts] * (q8_groups(args.k) * Q8_GROUP_BYTES);
    }
};

template <class F, int LANES>
DEVICE void expert_down(const ExpertGemvArgs& args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 full[WARPS][MAX_STAGES], x_full;
    __shared__ float results[MAX_RESULTS];  // [expert of the row][row of the block]
    __shared__ RowExperts experts;
    constexpr u32 ROWS = 32 / LANES;
    const u32 warp = threadIdx.x / 32, row = blockIdx.y, begin = blockIdx.x * args.rows_per_block;
    const u32 count = min(args.rows_per_block, args.n - begin);
    ring_init(full[warp]);
    if (threadIdx.x == 0) block_copy_init(&x_full);
    pdl_launch_dependents();
    if (!args.x_q8) pdl_wait();
    const bool valid = experts.load(args, row);
    const u32 used = experts.count;
    const DownRows<ROWS> source{args, memory, experts, used, begin, count};
    const u32 x_bytes = args.top_k * q8_groups(args.k) * Q8_GROUP_BYTES;
    u8* ring = memory + x_bytes + warp * (args.stages * args.stage_bytes);
    ExpertWarp<F, LANES, false, DownRows<ROWS>> rows{args, source, ring, full[warp], warp};
    if (valid) rows.fill_ring();
    if (args.x_q8) pdl_wait();
    if (!valid) return;
    const u64 to = (u64)row * args.n + begin + threadIdx.x;
    const bool writes = threadIdx.x < count;
    float sum = writes && args.residual ? args.residual[to] : 0.0f;
    load_x(args, memory, &x_full, row * args.top_k, args.top_k);
    rows.multiply(
        [&](u32 task, u32 index, u32 rows_of_task) {
            const u32 at = begin + source.first(task) + index;
            return args.bias && index < rows_of_task ? args.bias[(u64)experts.ids[task % used] * args.n + at]
                                                     : 0.0f;
        },
        [&](u32 task, u32 index, u32 rows_of_task, float value) {
            if (index >= rows_of_task || (threadIdx.x & (LANES - 1)) != 0) return;
            results[task % used * args.rows_per_block + source.first(task) + index] = value;
        });
    __syncthreads();
    if (!writes) return;
    for (u32 at = 0; at < used; at++)
        sum += args.weights[(u64)row * args.top_k + experts.slots[at]] *
               results[at * args.rows_per_block + threadIdx.x];
    args.out[to] = sum;
}

#define ENTRY(KIND, NAME, LANES)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                 \
        expert_##KIND##_##NAME##_lanes##LANES(const __grid_constant__ ExpertGemvArgs args) { \
        expert_##KIND<NAME, LANES>(args);                                                    \
    }
#define FORMAT(NAME)         \
    ENTRY(gate_up, NAME, 8)  \
    ENTRY(gate_up, NAME, 16) \
    ENTRY(down, NAME, 8)     \
    ENTRY(down, NAME, 16)    \
    ENTRY(down, NAME, 32)

FOR_EACH_GEMV_FORMAT(FORMAT)
