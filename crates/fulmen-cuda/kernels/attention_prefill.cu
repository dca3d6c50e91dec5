// Attention of many rows over an f16 cache on tensor cores, with heads of 64 or 128.
//
// A block takes some rows of the batch with all query heads of one key head, 16 of these pairs a warp: keys and values are
// fetched once for all of them, 64 positions at a time, through two stages of shared memory. Scores, weights and sums stay
// in registers, with a running softmax. Rows are told apart by position alone: where a block has rows of several
// sequences it goes through one sequence after the other, and each row takes no weight from those that are not its own.
#include "attention_prefill.cuh"

// A thread's rows are `lane / 4` and that plus 8 of its warp's 16.
template <int HEAD, int WARPS>
struct Prefill {
    static constexpr u32 ROWS = WARPS * 16, THREADS = WARPS * 32;
    static constexpr u32 KEYS = 64;  // positions at a time
    static constexpr u32 PIECES = HEAD / 8;  // of 16 bytes in a head
    static constexpr u32 TILE = KEYS * HEAD * 2, STAGE = 2 * TILE;

    // Bytes from a tile's start to a piece: swapped by the row's last bits, against bank conflicts.
    static DEVICE u32 piece_at(u32 row, u32 piece) {
        return (row * PIECES + (piece ^ (row % 8))) * 16;
    }

    static DEVICE void sync() { __syncthreads(); }

    static DEVICE void fetch(u32 to, const u8* from, u32 tile, u32 seen) {
#pragma unroll
        for (u32 i = 0; i < KEYS * PIECES; i += THREADS) {
            u32 row = (i + threadIdx.x) / PIECES, piece = (i + threadIdx.x) % PIECES;
            // Zeros behind the last position that counts: no weight, not even 0, may meet a NaN there.
            bool wanted = tile * KEYS + row < seen;
            u64 position = wanted ? tile * KEYS + row : 0;
            cp_async_16_zfill(to + piece_at(row, piece), from + (position * PIECES + piece) * 16, wanted);
        }
        cp_async_commit();
    }

    static DEVICE void run(const AttentionParams& p) {
        extern __shared__ __align__(128) u8 memory[];  // two stages of keys and values
        __shared__ u32 seen_of[ROWS], sequence_of_row[ROWS];
        __shared__ float factor_of[ROWS];
        __shared__ u32 next_sequence, most_seen, least_seen;
        pdl_begin();
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, stages = shared_address(memory);
        const u32 rows = ROWS / p.group;  // of the batch
        const u32 kv_head = blockIdx.x, first_row = (gridDim.y - 1 - blockIdx.y) * rows;

        // Pairs behind the last have no query, see all and are not written.
        for (u32 i = threadIdx.x; i < ROWS; i += THREADS) {
            u32 row = first_row + i / p.group;
            bool is_row = i < rows * p.group && row < p.slots.m;
            bool placed = is_row && has_place(p.slots, p.n_seqs, p.capacity, row, kv_head == 0 && i % p.group == 0);
            seen_of[i] = placed ? p.slots.positions[row] + 1 : 0;
            sequence_of_row[i] = placed ? sequence_of(p.slots, row) : ~0u;
        }
        if (threadIdx.x == 0) next_sequence = ~0u;
        const u32 queries = stages + STAGE;
        for (u32 i = warp * 16; i < warp * 16 + 16; i++) {
            u32 row = first_row + i / p.group;
            bool is_row = i < rows * p.group && row < p.slots.m;
            const float* q = p.q + ((u64)row * p.n_heads + kv_head * p.group + i % p.group) * HEAD;
            float x[HEAD / 32];
            load_query(x, is_row ? q : nullptr);
            u32 at = lane * (HEAD / 32);
            float factor = put_query(x, queries + piece_at(i, at / 8) + at % 8 * 2);
            if (lane == 0) factor_of[i] = factor * p.scale * 1.44269504088896341f;
        }
        __syncthreads();
        u32 query[HEAD / 16][4];
#pragma unroll
        for (u32 i = 0; i < HEAD / 16; i++)
            ldmatrix_x4(query[i], queries + piece_at(warp * 16 + lane % 16, 2 * i + lane / 16));
        const u32 mine = warp * 16 + lane / 4;
        const float factors[2] = {factor_of[mine], factor_of[mine + 8]};

        float sums[HEAD / 8][4] = {}, largest[2] = {-INFINITE, -INFINITE}, totals[2] = {};
        u32 sequence = 0;
        for (bool first = true;; first = false) {
            // The next sequence that rows are of, what its rows see at most and what they all see.
            for (u32 i = threadIdx.x; i < ROWS; i += THREADS) {
                u32 of = sequence_of_row[i];
                if (of != ~0u && (first || of > sequence)) atomicMin(&next_sequence, of);
            }
            __syncthreads();
            sequence = next_sequence;
            if (sequence == ~0u) break;
            if (threadIdx.x == 0) most_seen = 0, least_seen = ~0u;
            __syncthreads();
            for (u32 i = threadIdx.x; i < ROWS; i += THREADS) {
                bool counts = sequence_of_row[i] == sequence;
                if (counts) atomicMax(&most_seen, seen_of[i]);
                if (i < rows * p.group && first_row + i / p.group < p.slots.m) atomicMin(&least_seen, counts ? seen_of[i] : 0);
            }
            if (threadIdx.x == 0) next_sequence = ~0u;
            __syncthreads();
            const u32 most = most_seen, least = least_seen, tiles = (most + KEYS - 1) / KEYS;
            const u32 seen[2] = {sequence_of_row[mine] == sequence ? seen_of[mine] : 0,
                                 sequence_of_row[mine + 8] == sequence ? seen_of[mine + 8] : 0};
            const u8* k = p.k + sequence * p.seq_bytes + kv_head * p.head_bytes;
            const u8* v = p.v + sequence * p.seq_bytes + kv_head * p.head_bytes;
            fetch(stages, k, 0, most);
            fetch(stages + TILE, v, 0, most);

            for (u32 tile = 0; tile < tiles; tile++) {
                const u32 keys = stages + tile % 2 * STAGE, values = keys + TILE, from = tile * KEYS;
                cp_async_wait<1>();
                __syncthreads();
                if (tile + 1 < tiles) {
                    fetch(stages + (tile + 1) % 2 * STAGE, k, tile + 1, most);
                    fetch(stages + (tile + 1) % 2 * STAGE + TILE, v, tile + 1, most);
                }
                float scores[KEYS / 8][4] = {};
#pragma unroll
                for (u32 i = 0; i < HEAD / 16; i++)
#pragma unroll
                    for (u32 j = 0; j < KEYS / 16; j++) {
                        u32 b[4];
                        ldmatrix_x4(b, keys + piece_at(j * 16 + lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
                        MmaF16::mma(scores[2 * j], query[i], b[0], b[1]);
                        MmaF16::mma(scores[2 * j + 1], query[i], b[2], b[3]);
                    }
                const bool all_seen = from + KEYS <= least;
#pragma unroll
                for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) scores[i][j] *= factors[j / 2];
                if (!all_seen) {
#pragma unroll
                    for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                        for (u32 j = 0; j < 4; j++)
                            if (from + i * 8 + lane % 4 * 2 + j % 2 >= seen[j / 2]) scores[i][j] = -INFINITE;
                }
                float tops[2] = {largest[0], largest[1]};
#pragma unroll
                for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) tops[j / 2] = fmaxf(tops[j / 2], scores[i][j]);
                float bases[2], shrinks[2];
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    tops[j] = fmaxf(tops[j], __shfl_xor_sync(FULL_WARP, tops[j], 1));
                    tops[j] = fmaxf(tops[j], __shfl_xor_sync(FULL_WARP, tops[j], 2));
                    // Where nothing but -inf was seen, any finite number will do.
                    bases[j] = tops[j] == -INFINITE ? 0.0f : tops[j];
                    shrinks[j] = ex2_approx(largest[j] - bases[j]);
                    largest[j] = tops[j];
                    totals[j] *= shrinks[j];
                }
#pragma unroll
                for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        scores[i][j] = ex2_approx(scores[i][j] - bases[j / 2]);
                        totals[j / 2] += scores[i][j];
                    }
#pragma unroll
                for (u32 i = 0; i < HEAD / 8; i++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) sums[i][j] *= shrinks[j / 2];

                if (tile + 1 < tiles) cp_async_wait<2>();
                else cp_async_wait<0>();
                if (all_seen) {
                    __syncthreads();
                } else {
                    u8* at = memory + tile % 2 * STAGE + TILE;
                    __syncthreads();
                    bool finite = true;
                    for (u32 i = threadIdx.x * 4; i < TILE; i += THREADS * 4) finite &= are_finite(*(const u32*)(at + i));
                    if (__syncthreads_or(!finite)) take_out_infinities<Prefill>(at, from, seen, sums);
                }
#pragma unroll
                for (u32 i = 0; i < KEYS / 16; i++) {
                    u32 weights[4] = {MmaF16::pack(scores[2 * i][0], scores[2 * i][1]),
                                      MmaF16::pack(scores[2 * i][2], scores[2 * i][3]),
                                      MmaF16::pack(scores[2 * i + 1][0], scores[2 * i + 1][1]),
                                      MmaF16::pack(scores[2 * i + 1][2], scores[2 * i + 1][3])};
#pragma unroll
                    for (u32 j = 0; j < HEAD / 16; j++) {
                        u32 b[4];
                        ldmatrix_x4_trans(b, values + piece_at(i * 16 + lane % 16, 2 * j + lane / 16));
                        MmaF16::mma(sums[2 * j], weights, b[0], b[1]);
                        MmaF16::mma(sums[2 * j + 1], weights, b[2], b[3]);
                    }
                }
            }
            __syncthreads();
        }

#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            totals[j] += __shfl_xor_sync(FULL_WARP, totals[j], 1);
            totals[j] += __shfl_xor_sync(FULL_WARP, totals[j], 2);
            u32 pair = mine + 8 * j, row = first_row + pair / p.group;
            if (pair >= rows * p.group || row >= p.slots.m) continue;
            float share = totals[j] == 0.0f ? 0.0f : 1.0f / totals[j];
            float* out = p.out + ((u64)row * p.n_heads + kv_head * p.group + pair % p.group) * HEAD + lane % 4 * 2;
#pragma unroll
            for (u32 i = 0; i < HEAD / 8; i++)
                *(float2*)(out + i * 8) = make_float2(sums[i][2 * j] * share, sums[i][2 * j + 1] * share);
        }
    }
};

#define KERNEL(HEAD, WARPS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 8 / WARPS)                                               \
        attention_prefill_##HEAD##_##WARPS(const __grid_constant__ AttentionParams p) {                               \
        Prefill<HEAD, WARPS>::run(p);                                                                                 \
    }
KERNEL(64, 4)
KERNEL(64, 8)
KERNEL(128, 4)
KERNEL(128, 8)
