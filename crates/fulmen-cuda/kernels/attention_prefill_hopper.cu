// targets: 90a
// Attention of many rows over an f16 cache by Hopper's matrix instructions: the same as attention_prefill.cu, with its
// parameters.
//
// A block takes some rows of the batch with all query heads of one key head, 64 of these pairs a group of four warps. One
// more group fetches keys and values once for all of them, tile by tile, into a ring of stages. The groups that multiply
// make the scores of the next tile while they still add up the values of the present one. What rows do not see is kept
// from them as in attention_prefill.cu.
#include "attention_prefill.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

// A sequence that rows of the block are of: what one of these sees at most and at least, and how many they are. It is read at
// once, and nothing beside it.
struct __align__(16) Sequence {
    u32 number, most, least, rows;
};

// A stage of the ring, and the parity of the phase in which it is filled.
struct Place {
    u32 stage = 0, parity = 0;
    template <u32 STAGES>
    DEVICE void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// A thread's rows are `lane / 4` and that plus 8 of its warp's 16.
template <int HEAD, int GROUPS>
struct Prefill {
    static constexpr u32 KEYS = 128;  // positions at a time
    static constexpr u32 PAIRS = GROUPS * 64, THREADS = GROUPS * 128, FETCHERS = 128;
    static constexpr u32 PIECES = HEAD / 8;  // of 16 bytes in a head
    static constexpr u32 TILE = KEYS * HEAD * 2, QUERIES = 64 * HEAD * 2;
    static constexpr u32 FIT = (218 * 1024 - GROUPS * QUERIES) / TILE, STAGES = FIT < 8 ? FIT : 8;

    // Bytes from a tile's start to a piece. The tile is in parts of 64 elements, swizzled as the instructions want it.
    static DEVICE u32 piece_at(u32 row, u32 piece, u32 rows = KEYS) {
        return (piece / 8 * rows + row) * 128 + (piece % 8 ^ row % 8) * 16;
    }

    // Of the threads that multiply.
    static DEVICE void sync() {
        fence_proxy_async();
        bar_sync(1, THREADS);
    }

    struct SharedAddress {
        u64 filled[STAGES], freed[STAGES];
        // The last tile in a stage, counted from 1, that has values that are not finite and that not all rows see.
        u32 infinite[STAGES];
        u32 seen_of[PAIRS], sequence_of_row[PAIRS];  // by rows of the block
        float factor_of[PAIRS];
        Sequence sequences[PAIRS];  // at the first row that is of it
        u32 firsts[PAIRS], n_sequences;
    };

    // What a block works on.
    struct Work {
        u32 kv_head, first_row, rows;
        DEVICE Work(const AttentionParams& p)
            : kv_head(blockIdx.x), first_row((gridDim.y - 1 - blockIdx.y) * (PAIRS / p.group)),
              rows(min(PAIRS / p.group, p.slots.m - first_row)) {}
    };

    // Which sequences there are. By all threads.
    static DEVICE void find_sequences(const AttentionParams& p, const Work& work, SharedAddress& shared) {
        const u32 i = threadIdx.x, row = work.first_row + i;
        bool placed = false;
        if (i < work.rows) {
            placed = has_place(p.slots, p.n_seqs, p.capacity, row, work.kv_head == 0);
            shared.seen_of[i] = placed ? p.slots.positions[row] + 1 : 0;
            shared.sequence_of_row[i] = placed ? sequence_of(p.slots, row) : ~0u;
            shared.sequences[i] = {shared.sequence_of_row[i], 0, ~0u, 0};
        }
        __syncthreads();
        if (placed) {
            u32 first = 0;
            while (shared.sequence_of_row[first] != shared.sequence_of_row[i]) first++;
            atomicMax(&shared.sequences[first].most, shared.seen_of[i]);
            atomicMin(&shared.sequences[first].least, shared.seen_of[i]);
            atomicAdd(&shared.sequences[first].rows, 1);
            if (first == i) shared.firsts[atomicAdd(&shared.n_sequences, 1)] = i;
        }
        __syncthreads();
    }

    // Calls with each sequence. Where rows are of others too, not all of the block's rows see any of its positions.
    template <typename Call>
    static DEVICE void for_sequences(const Work& work, const SharedAddress& shared, Call call) {
        for (u32 i = 0; i < shared.n_sequences; i++) {
            Sequence sequence = shared.sequences[shared.firsts[i]];
            if (sequence.rows != work.rows) sequence.least = 0;
            call(sequence);
        }
    }

    static DEVICE void fetch_all(const AttentionParams& p, const Work& work, SharedAddress& shared, u8* ring) {
        constexpr u32 AT_ONCE = FETCHERS / PIECES;  // rows: a multiple of 8, so that a thread's pieces are swizzled alike
        const u32 filled = shared_address(shared.filled), freed = shared_address(shared.freed);
        const u32 row = threadIdx.x % FETCHERS / PIECES, piece = threadIdx.x % PIECES, own = piece_at(row, piece);
        Place place;
        u32 count = 0;
        auto fetch = [&](const u8* head, u32 first, u32 most, bool looks) {
            const u32 to = shared_address(ring) + place.stage * TILE + own;
            const u8* from = head + (u64)(first + row) * HEAD * 2 + piece * 16;
            mbarrier_wait_parity(freed + 8 * place.stage, place.parity ^ 1);
            count++;
#pragma unroll
            for (u32 i = 0; i < KEYS; i += AT_ONCE) {
                // Zeros behind the last position that counts: no weight, not even 0, may meet a NaN there.
                bool wanted = first + row + i < most;
                cp_async_16_zfill(to + i * 128, wanted ? from + i * HEAD * 2 : head, wanted);
            }
            if (looks) {
                cp_async_commit();
                cp_async_wait<0>();
                bool finite = true;
#pragma unroll 2
                for (u32 i = 0; i < KEYS; i += AT_ONCE) {
                    uint4 words = *(const uint4*)(ring + place.stage * TILE + own + i * 128);
                    finite &= are_finite(words.x) && are_finite(words.y) && are_finite(words.z) && are_finite(words.w);
                }
                if (!finite) shared.infinite[place.stage] = count;
                mbarrier_arrive(filled + 8 * place.stage);
            } else {
                cp_async_mbarrier_arrive_noinc(filled + 8 * place.stage);
            }
            place.template advance<STAGES>();
        };
        for_sequences(work, shared, [&](const Sequence& sequence) {
            const u64 at = sequence.number * p.seq_bytes + work.kv_head * p.head_bytes;
            for (u32 first = 0; first < sequence.most + KEYS; first += KEYS) {
                if (first < sequence.most) fetch(p.k + at, first, sequence.most, false);
                if (first != 0) fetch(p.v + at, first - KEYS, sequence.most, first > sequence.least);
            }
        });
        cp_async_commit();
        cp_async_wait<0>();
    }

    // The 16 queries of a warp, as f16.
    static DEVICE void put_queries(const AttentionParams& p, const Work& work, SharedAddress& shared, u32 to) {
        constexpr u32 EACH = HEAD / 32, AT_ONCE = 8;
        const u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
#pragma unroll
        for (u32 done = 0; done < 16; done += AT_ONCE) {
            float x[AT_ONCE][EACH];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                u32 pair = first + done + i, row = pair / p.group;
                const float* q = p.q + ((u64)(work.first_row + row) * p.n_heads + work.kv_head * p.group + pair % p.group) * HEAD;
                load_query(x[i], row < work.rows ? q : nullptr);
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                u32 pair = first + done + i;
                u32 at = to + piece_at(pair % 64, lane * EACH / 8, 64) + lane * EACH % 8 * 2;
                float factor = put_query(x[i], at, p.scale < 0.0f ? -1.0f : 1.0f);
                if (lane == 0) shared.factor_of[pair] = factor * fabsf(p.scale) * 1.44269504088896341f;
            }
        }
    }

    static DEVICE void multiply_all(const AttentionParams& p, const Work& work, SharedAddress& shared,
                                                        u8* queries, u8* ring) {
        const u32 lane = threadIdx.x % 32, group = threadIdx.x / 128;
        const u32 filled = shared_address(shared.filled), freed = shared_address(shared.freed);
        put_queries(p, work, shared, shared_address(queries) + group * QUERIES);
        fence_proxy_async();
        bar_sync(2 + group, 128);

        const u32 mine = threadIdx.x / 32 * 16 + lane / 4;
        const float factors[2] = {shared.factor_of[mine], shared.factor_of[mine + 8]};
        const u64 query = wgmma_descriptor(shared_address(queries) + group * QUERIES);
        float sums[HEAD / 8][4] = {}, scores[KEYS / 8][4], largest[2] = {-INFINITE, -INFINITE}, totals[2] = {};
        float shrinks[2];
        u32 weights[KEYS / 16][4];
        Place place;
        u32 count = 0;

        // The stage of the next tile in the ring, when it is there.
        auto next_stage = [&] {
            u32 stage = place.stage;
            mbarrier_wait_parity(filled + 8 * stage, place.parity);
            fence_proxy_async();
            place.template advance<STAGES>();
            count++;
            return stage;
        };
        // Of a stage that this warp has done with.
        auto release = [&](u32 stage) {
            if (lane == 0) mbarrier_arrive(freed + 8 * stage);
        };
        auto begin_scores = [&](u32 stage) {
            u64 keys = wgmma_descriptor(shared_address(ring) + stage * TILE);
            wgmma_fence_operand(scores);
            wgmma_fence();
#pragma unroll
            for (u32 i = 0; i < HEAD / 16; i++)
                wgmma_accumulate_if(scores, query + i / 4 * (64 * 128 / 16) + i % 4 * 2, keys + i / 4 * (KEYS * 128 / 16) + i % 4 * 2,
                           i != 0);
            wgmma_commit();
        };
        // Turns scores into weights of a running softmax, and says by what earlier ones shrink.
        auto weigh = [&](u32 first, u32 least, const u32(&seen)[2]) {
            wgmma_fence_operand(scores);
            float steps[2] = {factors[0], factors[1]};
            if (first + KEYS > least) {
#pragma unroll
                for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        bool sees = first + i * 8 + lane % 4 * 2 + j % 2 < seen[j / 2];
                        scores[i][j] = sees ? scores[i][j] * factors[j / 2] : -INFINITE;
                    }
                steps[0] = steps[1] = 1.0f;
            }
            float tops[4] = {scores[0][0], scores[0][1], scores[0][2], scores[0][3]};
#pragma unroll
            for (u32 i = 1; i < KEYS / 8; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) tops[j] = fmaxf(tops[j], scores[i][j]);
            float bases[2];
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                float top = fmaxf(largest[j], fmaxf(tops[2 * j], tops[2 * j + 1]) * steps[j]);
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
                top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
                // Where nothing but -inf was seen, any finite number will do. From an infinite one no weight can be told.
                bases[j] = top == -INFINITE ? 0.0f : top == INFINITE ? NOT_A_NUMBER : top;
                shrinks[j] = ex2_approx(largest[j] - bases[j]);
                largest[j] = top;
                totals[j] *= shrinks[j];
            }
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    scores[i][j] = ex2_approx(fmaf(scores[i][j], steps[j / 2], -bases[j / 2]));
                    totals[j / 2] += scores[i][j];
                }
        };
        auto shrink_and_pack = [&] {
#pragma unroll
            for (u32 i = 0; i < HEAD / 8; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) sums[i][j] *= shrinks[j / 2];
#pragma unroll
            for (u32 i = 0; i < KEYS / 16; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    weights[i][j] = MmaF16::pack(scores[2 * i + j / 2][j % 2 * 2], scores[2 * i + j / 2][j % 2 * 2 + 1]);
        };
        auto begin_sums = [&](u32 stage, u32 first, const u32(&seen)[2]) {
            u64 values = wgmma_descriptor_trans(shared_address(ring) + stage * TILE, KEYS * 128);
            if (shared.infinite[stage] == count) take_out_infinities<Prefill>(ring + stage * TILE, first, seen, sums);
            wgmma_fence_operand(sums);
            wgmma_fence_operand(weights);
            wgmma_fence();
#pragma unroll
            for (u32 i = 0; i < KEYS / 16; i++) wgmma_a_registers(sums, weights[i], values + i * (16 * 128 / 16));
            wgmma_commit();
        };
        auto end_sums = [&](u32 stage) {
            wgmma_wait<0>();
            wgmma_fence_operand(sums);
            wgmma_fence_operand(weights);
            release(stage);
        };

        for_sequences(work, shared, [&](const Sequence& sequence) {
            auto seen_by = [&](u32 pair) {
                u32 row = pair / p.group;
                return row < work.rows && shared.sequence_of_row[row] == sequence.number ? shared.seen_of[row] : 0;
            };
            const u32 seen[2] = {seen_by(mine), seen_by(mine + 8)};
            u32 keys = next_stage();
            begin_scores(keys);
            wgmma_wait<0>();
            release(keys);
            weigh(0, sequence.least, seen);
            shrink_and_pack();
            u32 first = KEYS;
            for (; first < sequence.most; first += KEYS) {
                keys = next_stage();
                begin_scores(keys);
                u32 values = next_stage();
                begin_sums(values, first - KEYS, seen);
                wgmma_wait<1>();
                release(keys);
                weigh(first, sequence.least, seen);
                end_sums(values);
                shrink_and_pack();
            }
            u32 values = next_stage();
            begin_sums(values, first - KEYS, seen);
            end_sums(values);
        });

#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            totals[j] += __shfl_xor_sync(FULL_WARP, totals[j], 1);
            totals[j] += __shfl_xor_sync(FULL_WARP, totals[j], 2);
            u32 pair = mine + 8 * j, row = pair / p.group;
            if (row >= work.rows) continue;
            float share = totals[j] == 0.0f ? 0.0f : 1.0f / totals[j];
            float* out = p.out + ((u64)(work.first_row + row) * p.n_heads + work.kv_head * p.group + pair % p.group) * HEAD;
#pragma unroll
            for (u32 i = 0; i < HEAD / 8; i++)
                *(float2*)(out + i * 8 + lane % 4 * 2) = make_float2(sums[i][2 * j] * share, sums[i][2 * j + 1] * share);
        }
    }

    static DEVICE void run(const AttentionParams& p) {
        extern __shared__ __align__(1024) u8 memory[];
        __shared__ SharedAddress shared;
        // Tiles start at multiples of 1024, as the swizzle wants it: the queries of each group, then the ring.
        u8* queries = memory + (1024 - shared_address(memory) % 1024) % 1024;
        u8* ring = queries + GROUPS * QUERIES;
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; stage++) {
                mbarrier_init(shared_address(shared.filled + stage), FETCHERS);
                mbarrier_init(shared_address(shared.freed + stage), GROUPS * 4);
                shared.infinite[stage] = 0;
            }
            shared.n_sequences = 0;
            fence_mbarrier_init();
        }
        pdl_begin();
        const Work work(p);
        find_sequences(p, work, shared);
        if (threadIdx.x >= THREADS) {
            setmaxnreg_dec<GROUPS == 2 ? 40 : 32>();
            fetch_all(p, work, shared, ring);
        } else {
            setmaxnreg_inc<GROUPS == 2 ? 232 : 160>();
            multiply_all(p, work, shared, queries, ring);
        }
    }
};

#define KERNEL(HEAD, GROUPS)                                                                                          \
    extern "C" __global__ void __launch_bounds__((GROUPS + 1) * 128, 1)                                               \
        attention_prefill_hopper_##HEAD(const __grid_constant__ AttentionParams p) {                                  \
        Prefill<HEAD, GROUPS>::run(p);                                                                                \
    }
KERNEL(128, 2)
KERNEL(64, 3)
