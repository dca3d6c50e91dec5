// Chunkwise gated delta rule (WY representation) for prefill: rows of a sequence in chunks of CHUNK, by
// matmuls within a chunk and a state that goes from chunk to chunk. Which rows are those of one sequence is
// read from device memory (sequence_chunks.cuh); the other rows of a step go row by row. Launched by
// src/kernels/gated_delta_chunks.rs; the rule row by row is gated_delta_rule.cu.
//
// Algorithm. For row t of a value head, with its gate g_t, beta b_t, and k and q divided by their
// L2 norms, q also by sqrt(head_dim), the rule is
//
//     S_t = g_t S_(t-1) + k_t u_t^T,   u_t = b_t (v_t - g_t S_(t-1)^T k_t),   y_t = S_t^T q_t.
//
// With G_t = g_1 ... g_t over the rows of a chunk and S_0 the state before it, S_t is G_t S_0 plus the sum of
// (G_t / G_s) k_s u_s^T over s <= t. Put into u_t, this is a unit lower triangular system for the chunk:
//
//     (I + A) U = diag(b) (V - diag(G) K S_0),   A[t, s] = b_t (G_t / G_s) k_t . k_s   for s < t
//     Y   = diag(G) Q S_0 + P U,                 P[t, s] = (G_t / G_s) q_t . k_s       for s <= t
//     S_C = G_C S_0 + sum of (G_C / G_s) k_s u_s^T
//
// Only S_0 depends on the chunks before. So there are two kernels:
//   gated_delta_prepare  for all chunks at once: T = (I + A)^-1 diag(b) by forward substitution, P, and the
//                        factors of the rows: G_t, G_C / G_t, 1 / |k_t|, 1 / (|q_t| sqrt(head_dim))
//   gated_delta_scan     from chunk to chunk: W = V - diag(G) K S_0, U = T W, then Y and S_C
// Ratios of gates are exp of differences of summed logarithms, at most 1 for decaying states; no quotients.
// A row at position 0 starts from zeros, as does one whose gate underflows: rows before it have no influence
// on it or on later ones, their ratio is 0.
//
// Tiles and mapping
//   prepare  grid most chunks x n_v_heads, 256 threads: 4 x 4 elements of K K^T and Q K^T each; four threads
//            for each column of the inverse, every fourth row of which a thread holds in registers
//   scan     work items (head_dim / COLUMNS) x n_v_heads x ranges, of which a grid of at most one block for
//            each SM takes every gridDim.x-th; 256 threads: columns of the state do not depend on each other.
//            A thread has 2 rows x 4 columns of W, U and Y, and 4 x 4 elements of the state
//   Shared memory of a block: prepare 83 KiB, scan 137 KiB; one stage, loads do not overlap FMA.
//
// Memory layouts
//   x [m, q k v]; alpha and beta [m, n_v_heads]; decay and dt [n_v_heads]; positions [m]; state [n_seqs,
//   n_v_heads, head_dim, head_dim], rows by k; y [m, n_v_heads, head_dim]; matrices [n_v_heads, 2, m, CHUNK]:
//   the rows of T and P; factors [n_v_heads, 4, m]. Rows behind the last one of a chunk count as zeros with a
//   gate of 1.
//   shared   rows of q, k, T, P, W, U and the state have pitches of 4 floats more than their length, so that
//            16-byte loads of 8 neighboring rows are free of bank conflicts
//
// Preconditions: 32 rows or more; head_dim a multiple of 32 (COLUMNS), at most 128 (MAX_HEAD);
// x, state and y 16-byte aligned.
// Numerics: f32 products and sums. An element that is not finite makes all rows of its chunk so.
// Bound: FMA and shared memory. A chunk takes 1.05 million FMA in each block of the scan (8200 cycles of an
// SM) for head_dim 128; a range has head_dim / 32 * n_v_heads items: 128 for 32 heads of 128, of 132 SMs on
// an H200. So ranges take their turns, and a step costs what its chunks do, whoever has them; a last chunk of
// few rows costs what a whole one does. Not measured
// alone; a prefill of 2048 tokens of Qwen3.5 4B takes 49.6 ms.
#include "common.cuh"
#include "delta_heads.cuh"
#include "float4.cuh"
#include "sequence_chunks.cuh"
#include "silu.cuh"
#include "softplus.cuh"

constexpr u32 CHUNK = CHUNK_ROWS, COLUMNS = 32, MAX_HEAD = 128, THREADS = 256, WARPS = THREADS / 32;
constexpr u32 HEAD_PITCH = MAX_HEAD + 4, CHUNK_PITCH = CHUNK + 4, COLUMN_PITCH = COLUMNS + 4;
constexpr float MIN_LOG_GATE = -87.0f;  // exp of less is not a normal number

// Mirrored by `DeltaChunksArgs` in src/kernels/gated_delta_chunks.rs.
struct DeltaChunksArgs {
    const float* x;
    const float* alpha;
    const float* beta;
    const float* decay;
    const float* dt;
    const u32* positions;
    float* state;
    float* y;
    float* matrices;
    float* factors;
    SequenceChunks chunks;
    DeltaHeads heads;
    float epsilon;
    u32 unused;
};
#include "layout/gated_delta_chunks.cuh"

// The factors of row t of a chunk: the product of the gates of rows 0 to t (G_t), that of the rows behind it
// (G_C / G_t), and what k_t and q_t are multiplied by: the inverses of their norms, for q also 1 /
// sqrt(head_dim).
enum Factor : u32 { DECAY_FROM_START, DECAY_TO_END, INV_NORM_K, INV_NORM_Q };

// A value head, and where its parts of a row of x are.
struct Head {
    u32 d, value, width, query_at, key_at, value_at;

    DEVICE Head(const DeltaChunksArgs& args, u32 value_head) {
        d = args.heads.head_dim, value = value_head;
        const u32 key = args.heads.key_head(value);
        width = (2 * args.heads.n_k_heads + args.heads.n_v_heads) * d;
        query_at = key * d, key_at = (args.heads.n_k_heads + key) * d;
        value_at = (2 * args.heads.n_k_heads + value) * d;
    }
    // Of the rows from `row` on.
    DEVICE float* matrix(const DeltaChunksArgs& args, u32 row, u32 which) const {
        return args.matrices + (((u64)value * 2 + which) * args.chunks.m + row) * CHUNK;
    }
    DEVICE float* factors(const DeltaChunksArgs& args, u32 row, Factor which) const {
        return args.factors + ((u64)value * 4 + which) * args.chunks.m + row;
    }
};

DEVICE float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
DEVICE float4 fma4(float a, float4 b, float4 sum) {
    return make_float4(fmaf(a, b.x, sum.x), fmaf(a, b.y, sum.y), fmaf(a, b.z, sum.z), fmaf(a, b.w, sum.w));
}
// Four rows of b, weighed by the elements of a.
DEVICE float4 fma4x4(float4 a, const float* b, u32 pitch, float4 sum) {
    sum = fma4(a.x, *(const float4*)b, sum);
    sum = fma4(a.y, *(const float4*)(b + pitch), sum);
    sum = fma4(a.z, *(const float4*)(b + 2 * pitch), sum);
    return fma4(a.w, *(const float4*)(b + 3 * pitch), sum);
}

// ---- Prepare ----------------------------------------------------------------------------------------------

// What rows contribute to each other.
struct ChunkGates {
    float log_gate[CHUNK], sum[CHUNK], beta[CHUNK];
    u32 starts[CHUNK], segment[CHUNK];

    // By the first CHUNK threads; all threads can read it on return.
    DEVICE void load(const DeltaChunksArgs& args, const Head& head, u32 first, u32 rows) {
        const u32 t = threadIdx.x;
        if (t < CHUNK) {
            float gate = 0.0f, b = 0.0f;
            u32 start = 0;
            if (t < rows) {
                const u64 at = (u64)(first + t) * args.heads.n_v_heads + head.value;
                gate = args.decay[head.value] * softplus(args.alpha[at] + args.dt[head.value]);
                b = sigmoid(args.beta[at]);
                start = args.positions[first + t] == 0 || gate < MIN_LOG_GATE;
            }
            log_gate[t] = start ? 0.0f : gate, beta[t] = b, starts[t] = start;
        }
        __syncthreads();
        if (t < CHUNK) {
            float total = 0.0f;
            u32 count = 0;
            for (u32 s = 0; s <= t; s++) total += log_gate[s], count += starts[s];
            sum[t] = total, segment[t] = count;
        }
        __syncthreads();
    }

    // G_t / G_s, s <= t.
    DEVICE float ratio(u32 t, u32 s) const { return segment[t] == segment[s] ? expf(sum[t] - sum[s]) : 0.0f; }

    DEVICE void write(const DeltaChunksArgs& args, const Head& head, u32 first, u32 rows) const {
        const u32 t = threadIdx.x;
        if (t >= rows) return;
        head.factors(args, first, DECAY_FROM_START)[t] = segment[t] == 0 ? expf(sum[t]) : 0.0f;
        head.factors(args, first, DECAY_TO_END)[t] = ratio(CHUNK - 1, t);
    }
};

// Loads rows of q or k, a warp each, divides them by their norms, and writes these factors.
DEVICE void load_normalized(const DeltaChunksArgs& args, const Head& head, u32 first, u32 rows, u32 column,
                            float scale, float* factors, float* to) {
    const u32 lane = threadIdx.x % 32;
    for (u32 t = threadIdx.x / 32; t < CHUNK; t += WARPS) {
        float4 v = make_float4(0, 0, 0, 0);
        if (t < rows && lane * 4 < head.d)
            v = ldcg4(args.x + (u64)(first + t) * head.width + column + lane * 4);
        const float norm = sqrtf(warp_sum(sum_of_squares(v)));
        const float factor = scale / (norm < args.epsilon ? args.epsilon : norm);
        if (lane == 0 && t < rows) factors[t] = factor;
        if (lane * 4 < head.d) *(float4*)(to + t * HEAD_PITCH + lane * 4) = v * factor;
    }
}

// The columns of (I + A)^-1 diag(beta), A strictly lower triangular in shared memory: a warp has eight, whose
// elements go to `to`, those of `count` rows. Row t is known when all rows above it are.
DEVICE void invert(const float* a, const ChunkGates& gates, u32 count, float* to) {
    const u32 lane = threadIdx.x % 32, part = lane / 8, column = threadIdx.x / 32 * 8 + lane % 8;
    float rows[CHUNK / 4];  // part, part + 4, ...
#pragma unroll
    for (u32 t = 0; t < CHUNK; t++) {
        float sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < (t + 3) / 4; i++) {
            const u32 s = part + 4 * i;
            if (s < t) sum = fmaf(a[t * CHUNK_PITCH + s], rows[i], sum);
        }
        sum += __shfl_xor_sync(FULL_WARP, sum, 8);
        sum += __shfl_xor_sync(FULL_WARP, sum, 16);
        const float value = (t == column ? gates.beta[t] : 0.0f) - sum;
        if (part == t % 4) {
            rows[t / 4] = value;
            if (t < count) to[t * CHUNK + column] = value;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_delta_prepare(const __grid_constant__ DeltaChunksArgs args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ ChunkGates gates;
    pdl_begin();
    float *k = (float*)memory, *q = k + CHUNK * HEAD_PITCH, *a = q + CHUNK * HEAD_PITCH;
    if (blockIdx.x >= args.chunks.n_chunks()) return;
    const RowChunk chunk = args.chunks.chunk(blockIdx.x);
    const u32 first = chunk.first, rows = chunk.rows;
    const Head head(args, blockIdx.y);
    gates.load(args, head, first, rows);
    gates.write(args, head, first, rows);
    load_normalized(args, head, first, rows, head.key_at, 1.0f, head.factors(args, first, INV_NORM_K), k);
    load_normalized(args, head, first, rows, head.query_at, rsqrtf((float)head.d),
                    head.factors(args, first, INV_NORM_Q), q);
    __syncthreads();
    // Rows 4 ty to + 3 and columns tx, tx + 16, ...
    const u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float kk[4][4] = {}, qk[4][4] = {};
#pragma unroll 2
    for (u32 i = 0; i < head.d; i += 4) {
        float4 column[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) column[j] = *(const float4*)(k + (tx + 16 * j) * HEAD_PITCH + i);
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            const float4 key = *(const float4*)(k + (4 * ty + r) * HEAD_PITCH + i);
            const float4 query = *(const float4*)(q + (4 * ty + r) * HEAD_PITCH + i);
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                kk[r][j] = dot4(key, column[j], kk[r][j]);
                qk[r][j] = dot4(query, column[j], qk[r][j]);
            }
        }
    }
    float* p = head.matrix(args, first, 1);
#pragma unroll
    for (u32 r = 0; r < 4; r++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 t = 4 * ty + r, s = tx + 16 * j;
            const float ratio = s <= t ? gates.ratio(t, s) : 0.0f;
            a[t * CHUNK_PITCH + s] = s < t ? gates.beta[t] * ratio * kk[r][j] : 0.0f;
            if (t < rows) p[t * CHUNK + s] = s <= t ? ratio * qk[r][j] : 0.0f;
        }
    __syncthreads();
    invert(a, gates, rows, head.matrix(args, first, 0));
}

// ---- Scan -------------------------------------------------------------------------------------------------

// The shared memory of a block of the scan.
struct ScanMemory {
    float k[CHUNK][HEAD_PITCH], q[CHUNK][HEAD_PITCH];
    float t[CHUNK][CHUNK_PITCH], p[CHUNK][CHUNK_PITCH];
    float w[CHUNK][COLUMN_PITCH], u[CHUNK][COLUMN_PITCH];
    float state[MAX_HEAD][COLUMN_PITCH];
    float from_start[CHUNK], to_end[CHUNK];
};

// Loads q, k and the matrices of a chunk.
DEVICE void load_chunk(const DeltaChunksArgs& args, const Head& head, u32 first, u32 rows,
                       ScanMemory& shared) {
    const u32 lane = threadIdx.x % 32;
    const float *of_key = head.factors(args, first, INV_NORM_K),
                *of_query = head.factors(args, first, INV_NORM_Q);
#pragma unroll 4
    for (u32 t = threadIdx.x / 32; t < CHUNK; t += WARPS) {
        float4 key = make_float4(0, 0, 0, 0), query = key;
        if (lane * 4 >= head.d) continue;
        if (t < rows) {
            const float* row = args.x + (u64)(first + t) * head.width + lane * 4;
            key = ldcg4(row + head.key_at) * __ldcg(of_key + t);
            query = ldcg4(row + head.query_at) * __ldcg(of_query + t);
        }
        *(float4*)&shared.k[t][lane * 4] = key;
        *(float4*)&shared.q[t][lane * 4] = query;
    }
    const float *t = head.matrix(args, first, 0), *p = head.matrix(args, first, 1);
#pragma unroll 4
    for (u32 at = threadIdx.x * 4; at < CHUNK * CHUNK; at += THREADS * 4) {
        const bool inside = at / CHUNK < rows;
        *(float4*)&shared.t[at / CHUNK][at % CHUNK] = inside ? ldcg4(t + at) : make_float4(0, 0, 0, 0);
        *(float4*)&shared.p[at / CHUNK][at % CHUNK] = inside ? ldcg4(p + at) : make_float4(0, 0, 0, 0);
    }
    if (threadIdx.x < CHUNK) {
        // Rows behind the last one have its product of gates.
        const u32 row = min(threadIdx.x, rows - 1);
        shared.from_start[threadIdx.x] = __ldcg(head.factors(args, first, DECAY_FROM_START) + row);
        shared.to_end[threadIdx.x] = __ldcg(head.factors(args, first, DECAY_TO_END) + row);
    }
}

// The state behind a chunk: G_C S + the sum of (G_C / G_s) k_s u_s^T. A thread has 4 x 4 elements.
DEVICE void update_state(const Head& head, ScanMemory& shared) {
    const u32 column = threadIdx.x % 8 * 4, row = threadIdx.x / 8 * 4;
    if (row >= head.d) return;
    const float factor = shared.from_start[CHUNK - 1];
    float4 sums[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float4 old = *(const float4*)&shared.state[row + i][column];
        sums[i] = factor > 0.0f ? old * factor : make_float4(0, 0, 0, 0);
    }
#pragma unroll 4
    for (u32 s = 0; s < CHUNK; s++) {
        const float4 key = *(const float4*)&shared.k[s][row];
        const float4 u = *(const float4*)&shared.u[s][column] * shared.to_end[s];
        sums[0] = fma4(key.x, u, sums[0]), sums[1] = fma4(key.y, u, sums[1]);
        sums[2] = fma4(key.z, u, sums[2]), sums[3] = fma4(key.w, u, sums[3]);
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) *(float4*)&shared.state[row + i][column] = sums[i];
}

// W = V - diag(G) K S_0, and diag(G) Q S_0 of rows `row` and `row + 32`, which it returns.
struct FromState {
    float4 of_query[2];

    DEVICE FromState(const DeltaChunksArgs& args, const Head& head, u32 first, u32 rows, u32 first_column,
                     ScanMemory& shared) {
        const u32 column = threadIdx.x % 8 * 4, row = threadIdx.x / 8;
        float4 of_key[2];
#pragma unroll
        for (u32 r = 0; r < 2; r++) of_key[r] = of_query[r] = make_float4(0, 0, 0, 0);
#pragma unroll 2
        for (u32 i = 0; i < head.d; i += 4)
#pragma unroll
            for (u32 r = 0; r < 2; r++) {
                const float* state = &shared.state[i][column];
                of_key[r] =
                    fma4x4(*(const float4*)&shared.k[row + 32 * r][i], state, COLUMN_PITCH, of_key[r]);
                of_query[r] =
                    fma4x4(*(const float4*)&shared.q[row + 32 * r][i], state, COLUMN_PITCH, of_query[r]);
            }
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const u32 t = row + 32 * r;
            const float factor = shared.from_start[t];
            float4 v = make_float4(0, 0, 0, 0);
            if (t < rows)
                v = ldcg4(args.x + (u64)(first + t) * head.width + head.value_at + first_column + column);
            // A state that has no influence may be anything.
            if (factor > 0.0f) v = fma4(-factor, of_key[r], v);
            of_query[r] = factor > 0.0f ? of_query[r] * factor : make_float4(0, 0, 0, 0);
            *(float4*)&shared.w[t][column] = v;
        }
    }
};

// The rows of a chunk: U, Y, and the state behind it.
DEVICE void scan_chunk(const DeltaChunksArgs& args, const Head& head, u32 first, u32 rows, u32 first_column,
                       ScanMemory& shared) {
    const u32 column = threadIdx.x % 8 * 4, row = threadIdx.x / 8;
    load_chunk(args, head, first, rows, shared);
    __syncthreads();
    const FromState from_state(args, head, first, rows, first_column, shared);
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float4 u = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (u32 s = 0; s < CHUNK; s += 4)
            u = fma4x4(*(const float4*)&shared.t[row + 32 * r][s], &shared.w[s][column], COLUMN_PITCH, u);
        *(float4*)&shared.u[row + 32 * r][column] = u;
    }
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        float4 y = from_state.of_query[r];
#pragma unroll 4
        for (u32 s = 0; s < CHUNK; s += 4)
            y = fma4x4(*(const float4*)&shared.p[row + 32 * r][s], &shared.u[s][column], COLUMN_PITCH, y);
        const u32 t = row + 32 * r;
        if (t < rows)
            *(float4*)(args.y + ((u64)(first + t) * args.heads.n_v_heads + head.value) * head.d +
                       first_column + column) = y;
    }
    update_state(head, shared);
    __syncthreads();
}

// One block has the shared memory of an SM: without the 1, ptxas spills for the sake of a second one.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gated_delta_scan(const __grid_constant__ DeltaChunksArgs args) {
    extern __shared__ __align__(128) u8 memory[];
    ScanMemory& shared = *(ScanMemory*)memory;
    pdl_begin();
    const u32 column = threadIdx.x % 8 * 4, row = threadIdx.x / 8;
    const u32 columns = args.heads.head_dim / COLUMNS, each = columns * args.heads.n_v_heads;
    const u32 items = args.chunks.n_ranges() * each;
#pragma unroll 1
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        const RowRange range = args.chunks.range(item / each);
        if (range.rows == 0) continue;
        const Head head(args, item % each / columns);
        const u32 first_column = item % columns * COLUMNS;
        float* slot = args.state +
                      ((u64)range.sequence * args.heads.n_v_heads + head.value) * head.d * head.d +
                      first_column + column;
        // The threads that write an element of the state, here and at the end, are also those that read it.
        for (u32 i = row; i < head.d; i += 32)
            *(float4*)&shared.state[i][column] = *(const float4*)(slot + (u64)i * head.d);
#pragma unroll 1
        for (u32 t = 0; t < range.rows; t += CHUNK)
            scan_chunk(args, head, range.first + t, min(CHUNK, range.rows - t), first_column, shared);
        for (u32 i = row; i < head.d; i += 32)
            *(float4*)(slot + (u64)i * head.d) = *(const float4*)&shared.state[i][column];
    }
}
