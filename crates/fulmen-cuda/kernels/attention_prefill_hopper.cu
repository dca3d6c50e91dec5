// targets: 90a
// FlashAttention-3 style prefill for Hopper: warp-specialized causal grouped-query attention over an f16 KV
// cache with wgmma. Same arguments and results as attention_prefill.cu; launched by
// src/kernels/attention_prefill.rs from 128 rows on.
//
// Tile: 64 query rows per consumer warpgroup, two of them with head_dim 128 (BLOCK_M = 128) and three with
// head_dim 64 (BLOCK_M = 192), by BLOCK_N = 128 positions. Grid: x = KV heads, y = tiles of BLOCK_M / group
// batch rows, the longest first; one block per SM. A query row is a pair of a batch row and a query head of
// the KV head (attention_prefill.cuh).
//
// Warp roles: the last warpgroup is the producer: its 128 threads load K and V tiles alternately by cp.async
// (positions past the end must be zero-filled) into a ring of 5 (128 dims) or 8 stages (64), with a full and
// an empty mbarrier each. The consumer warpgroups compute S = Q K^T of the next tile while O += P V of the
// current one is still in flight; P stays in registers. setmaxnreg moves registers from the producer to the
// consumers.
//
// Rows of several sequences in one tile: the block goes through one sequence after the other, and all
// positions of a sequence are masked for the rows of others.
// `*_scores_*`: with score modifiers (attention_scores.cuh): sliding window, logit soft-capping, attention
// temperature, sinks. Tiles that no row of the block sees are skipped; only tiles at an edge of the
// window of some row are masked. Sinks are added where O is divided by its sum.
// Layouts: q, out [m, n_heads, head_dim] f32; K, V in pages of f16 (kv.cuh), a tile per page. In shared
// memory Q, K and V tiles are sub-tiles of 64 dims (128 bytes per row) with the 128-byte swizzle of wgmma
// descriptors.
// Preconditions: head_dim 64 or 128; group <= BLOCK_M; caches 16-byte aligned, q and out 8-byte aligned.
// Numerics: q scaled by a power of two to f16, f32 accumulators, softmax in base 2 with ex2.approx, P as f16.
// Bound: tensor cores and the exponentials between them. On an H200, 32 query heads of 128 per 8 KV heads:
// 379 TFLOP/s at 2048 rows, 530 at 2048 rows behind 6144 positions (54 % of the dense f16 peak).
#include "attention_prefill.cuh"
#include "pipeline.cuh"
#include "ptx/barrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "uniform_warp.cuh"

// A sequence that batch rows of the tile belong to: the longest and shortest causal length of its rows, and
// their number. Aligned so that it is read as one word, apart from what other warps write.
struct __align__(16) Sequence { u32 id, max_kv_len, min_kv_len, rows; };

// A sequence with the first position of the first tile that some row sees some of, and the first position
// that the last row sees; both 0 without a window.
struct VisibleSequence : Sequence {
    u32 begin, last_visible;

    // Whether some row does not see all positions of a tile.
    template <u32 BLOCK_N, bool SCORE_MODS>
    DEVICE bool is_masked(u32 first_position) const {
        return first_position + BLOCK_N > min_kv_len || (SCORE_MODS && first_position < last_visible);
    }
};

constexpr float LEAST_SCALE = 1.17549435e-38f;

// The running max and sum of a thread's two query rows. A row gets the same bits whatever else is in its
// tile: masked tiles differ from others in the scores that are hidden alone, and a tile of which it sees
// nothing changes nothing.
template <u32 BLOCK_N, bool SCORE_MODS>
struct OnlineSoftmax {
    float row_max[2] = {-INFINITE, -INFINITE}, row_sum[2] = {}, rescale[2];

    // Turns S into P = 2^(S * scale - max) and sets the factors that rescale what was accumulated before.
    DEVICE void update(const AttentionArgs& args, float (&s)[BLOCK_N / 8][4], const float (&q_scale)[2],
                       u32 first_position, const VisibleSequence& sequence,
                       const VisibleKeys<SCORE_MODS>& visible) {
        const u32 lane = threadIdx.x % 32;
        float scale[2] = {q_scale[0], q_scale[1]};
        if (SCORE_MODS && args.scores.softcap > 0.0f) {
#pragma unroll
            for (u32 i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) s[i][j] = args.scores.capped(s[i][j] * q_scale[j / 2]);
            scale[0] = scale[1] = 1.0f;
        }
        if (sequence.is_masked<BLOCK_N, SCORE_MODS>(first_position)) {
#pragma unroll
            for (u32 i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const bool seen = visible.has(j / 2, first_position + i * 8 + lane % 4 * 2 + j % 2);
                    if (!seen) s[i][j] = -INFINITE;
                }
        }
        float tile_max[4] = {s[0][0], s[0][1], s[0][2], s[0][3]};
#pragma unroll
        for (u32 i = 1; i < BLOCK_N / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) tile_max[j] = fmaxf(tile_max[j], s[i][j]);
        float base[2];
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            float new_max =
                quad_max(fmaxf(row_max[j], fmaxf(tile_max[2 * j], tile_max[2 * j + 1]) * scale[j]));
            // With a score of +inf the weights are undefined.
            base[j] = new_max == -INFINITE ? 0.0f : new_max == INFINITE ? NOT_A_NUMBER : new_max;
            rescale[j] = ex2_approx(row_max[j] - base[j]);
            row_max[j] = new_max;
            row_sum[j] *= rescale[j];
        }
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                s[i][j] = ex2_approx(fmaf(s[i][j], scale[j / 2], -base[j / 2]));
                row_sum[j / 2] += s[i][j];
            }
    }
};

// Lane 4 g + t of a consumer warp holds query rows g and g + 8 of the warp's 16.
template <int HEAD_DIM, int CONSUMERS, bool SCORE_MODS>
struct Prefill {
    static constexpr u32 BLOCK_M = CONSUMERS * 64, BLOCK_N = KV_PAGE;
    static constexpr u32 THREADS = CONSUMERS * 128, PRODUCER_THREADS = 128;
    static constexpr u32 CHUNKS = HEAD_DIM / 8;                // 16-byte chunks of a head
    static constexpr u32 TILE_BYTES = BLOCK_N * HEAD_DIM * 2;  // of a stage: K or V
    static constexpr u32 QUERY_BYTES = 64 * HEAD_DIM * 2;      // of a consumer
    static constexpr u32 STAGES_THAT_FIT = (218 * 1024 - CONSUMERS * QUERY_BYTES) / TILE_BYTES;
    static constexpr u32 STAGES = STAGES_THAT_FIT < 8 ? STAGES_THAT_FIT : 8;
    using Tile = QueryTile<HEAD_DIM, BLOCK_M>;

    // Bytes from the start of a tile of `rows` rows to a 16-byte chunk: sub-tiles of 64 dims, 128-byte
    // swizzle.
    static DEVICE u32 chunk_offset(u32 row, u32 chunk, u32 rows = BLOCK_N) {
        return (chunk / 8 * rows + row) * 128 + (chunk % 8 ^ row % 8) * 16;
    }

    // Of all consumers; makes their shared-memory writes visible to wgmma.
    static DEVICE void sync() {
        fence_proxy_async();
        bar_sync<1>(THREADS);
    }

    struct Shared {
        u64 full[STAGES], empty[STAGES];
        // The last tile in a stage, counted from 1, that is masked for some rows and has values that are not
        // finite.
        u32 non_finite[STAGES];
        u32 kv_len[BLOCK_M], sequence[BLOCK_M];  // of the batch rows
        float q_scale[BLOCK_M];                  // of the query rows
        Sequence sequences[BLOCK_M];             // at the index of the first row that belongs to it
        u32 first_rows[BLOCK_M], n_sequences;    // these indices
    };

    // Reads the slots of the tile's rows and collects their sequences. By all threads.
    static DEVICE void find_sequences(const AttentionArgs& args, const Tile& tile, Shared& shared) {
        const u32 i = threadIdx.x, row = tile.first_row + i;
        bool valid = false;
        if (i < tile.rows) {
            valid = slot_is_valid(args.slots, args.n_seqs, args.capacity, row, tile.kv_head == 0);
            shared.kv_len[i] = valid ? args.slots.positions[row] + 1 : 0;
            shared.sequence[i] = valid ? sequence_of(args.slots, row) : ~0u;
            shared.sequences[i] = {shared.sequence[i], 0, ~0u, 0};
        }
        __syncthreads();
        if (valid) {
            u32 first = 0;
            while (shared.sequence[first] != shared.sequence[i]) first++;
            atomicMax(&shared.sequences[first].max_kv_len, shared.kv_len[i]);
            atomicMin(&shared.sequences[first].min_kv_len, shared.kv_len[i]);
            atomicAdd(&shared.sequences[first].rows, 1);
            if (first == i) shared.first_rows[atomicAdd(&shared.n_sequences, 1)] = i;
        }
        __syncthreads();
    }

    // Reports pages that are not in the pool. By all threads.
    static DEVICE void report_pages(const AttentionArgs& args, const Tile& tile, const Shared& shared) {
        for (u32 index = 0; index < shared.n_sequences; index++) {
            const VisibleSequence sequence = sequence_at(args, tile, shared, index);
            report_invalid_pages(args, tile.first_row, sequence.id, sequence.begin, sequence.max_kv_len,
                                 threadIdx.x, blockDim.x);
        }
    }

    // Sequence `index` of the tile. Where rows of the tile belong to others too, no position is visible to
    // all rows.
    static DEVICE VisibleSequence sequence_at(const AttentionArgs& args, const Tile& tile,
                                              const Shared& shared, u32 index) {
        VisibleSequence sequence = {shared.sequences[shared.first_rows[index]], 0, 0};
        if (SCORE_MODS) {
            sequence.begin = args.scores.first_visible(sequence.min_kv_len - 1) / BLOCK_N * BLOCK_N;
            sequence.last_visible = args.scores.first_visible(sequence.max_kv_len - 1);
        }
        if (sequence.rows != tile.rows) sequence.min_kv_len = 0;
        return sequence;
    }

    // The 16 queries of a warp as f16, 8 at a time so that their loads overlap. The sign of the scale goes
    // into Q: the max of the scores is taken before they are multiplied by it.
    static DEVICE void store_queries(const AttentionArgs& args, const Tile& tile, Shared& shared,
                                     SharedAddress to) {
        constexpr u32 PER_LANE = HEAD_DIM / 32, AT_ONCE = 8;
        const u32 lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
#pragma unroll
        for (u32 done = 0; done < 16; done += AT_ONCE) {
            float x[AT_ONCE][PER_LANE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                u32 q_row = first + done + i;
                const float* head = args.q + tile.head_offset(q_row);
                load_query(x[i], tile.has(q_row) ? head : nullptr);
            }
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                u32 q_row = first + done + i;
                SharedAddress at =
                    to + chunk_offset(q_row % 64, lane * PER_LANE / 8, 64) + lane * PER_LANE % 8 * 2;
                float scale = store_query_f16(x[i], at, args.scale < 0.0f ? -1.0f : 1.0f);
                const u32 row = tile.first_row + (tile.has(q_row) ? q_row / args.group : 0);
                // Not 0, because hidden scores are -inf times it.
                const float q_scale = scale * fabsf(score_scale<SCORE_MODS>(args, row));
                if (lane == 0) shared.q_scale[q_row] = q_scale == 0.0f ? LEAST_SCALE : q_scale;
            }
        }
    }

    struct Producer;
    struct Consumer;

    static DEVICE void run(const AttentionArgs& args) {
        extern __shared__ __align__(1024) u8 memory[];
        __shared__ Shared shared;
        // The queries of each consumer, then the ring; 1024-byte aligned for the swizzle.
        u8* queries = memory + (1024 - shared_address(memory) % 1024) % 1024;
        u8* ring = queries + CONSUMERS * QUERY_BYTES;
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; stage++) {
                mbarrier_init(shared_address(shared.full + stage), PRODUCER_THREADS);
                mbarrier_init(shared_address(shared.empty + stage), CONSUMERS * 4);
                shared.non_finite[stage] = 0;
            }
            shared.n_sequences = 0;
            fence_mbarrier_init();
        }
        pdl_begin();
        const Tile tile(args);
        if (tile.rows == 0) return;
        find_sequences(args, tile, shared);
        if (tile.kv_head == 0) report_pages(args, tile, shared);
        if (uniform_warp_index() >= THREADS / 32) {
            setmaxnreg_dec<CONSUMERS == 2 ? 40 : 32>();
            Producer(args, tile, shared, ring).run();
        } else {
            setmaxnreg_inc<CONSUMERS == 2 ? 232 : 160>();
            Consumer(args, tile, shared, queries, ring).run();
        }
    }
};

// ---- Producer warpgroup ----

template <int HEAD_DIM, int CONSUMERS, bool SCORE_MODS>
struct Prefill<HEAD_DIM, CONSUMERS, SCORE_MODS>::Producer {
    static_assert(BLOCK_N == 128);
    // Rows per cp.async of the warpgroup: a multiple of 8, so that all chunks of a thread are swizzled alike.
    static constexpr u32 ROWS_PER_COPY = PRODUCER_THREADS / CHUNKS;
    static_assert(ROWS_PER_COPY % 8 == 0);

    const AttentionArgs& args;
    const Tile& tile;
    Shared& shared;
    u8* const ring;
    const u32 row = threadIdx.x % PRODUCER_THREADS / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const u32 offset = chunk_offset(row, chunk);
    PipelineState pipeline;
    u32 loaded = 0;  // tiles

    // Loads the page of BLOCK_N positions of K or V from `first` on, which lies at `head`, into the next
    // stage. Positions from `limit` on are zero-filled: no weight, not even 0, may meet a NaN.
    // `check_finite`: also records whether the tile has values that are not finite.
    DEVICE void load_tile(const u8* head, u32 first, u32 limit, bool check_finite) {
        const SharedAddress to = shared_address(ring) + pipeline.stage * TILE_BYTES + offset;
        const SharedAddress full = shared_address(shared.full) + 8 * pipeline.stage;
        const u8* from = head + row * HEAD_DIM * 2 + chunk * 16;
        mbarrier_wait_parity(shared_address(shared.empty) + 8 * pipeline.stage, pipeline.parity ^ 1);
        loaded++;
#pragma unroll
        for (u32 i = 0; i < BLOCK_N; i += ROWS_PER_COPY) {
            bool valid = first + row + i < limit;
            cp_async_16_zfill(to + i * 128, valid ? from + i * HEAD_DIM * 2 : head, valid);
        }
        if (check_finite) {
            cp_async_commit();
            cp_async_wait<0>();
            bool finite = true;
#pragma unroll 2
            for (u32 i = 0; i < BLOCK_N; i += ROWS_PER_COPY) {
                uint4 words = *(const uint4*)(ring + pipeline.stage * TILE_BYTES + offset + i * 128);
                finite &= is_finite_f16x2(words.x) && is_finite_f16x2(words.y) && is_finite_f16x2(words.z) &&
                          is_finite_f16x2(words.w);
            }
            if (!finite) shared.non_finite[pipeline.stage] = loaded;
            mbarrier_arrive(full);
        } else {
            cp_async_mbarrier_arrive_noinc(full);
        }
        pipeline.template advance<STAGES>();
    }

    // In the order in which consumers need them: K of tile 0, then K of tile i + 1 before V of tile i.
    DEVICE void run() {
        for (u32 index = 0; index < shared.n_sequences; index++) {
            const VisibleSequence sequence = sequence_at(args, tile, shared, index);
            // Entries of the page table for V, K and the next K.
            u32 v_page = 0, k_page = page_entry(args, sequence.id, sequence.begin / BLOCK_N);
            for (u32 first = sequence.begin; first < sequence.max_kv_len + BLOCK_N; first += BLOCK_N) {
                const u32 next_page = page_entry(args, sequence.id, first / BLOCK_N + 1);
                if (first < sequence.max_kv_len)
                    load_tile(args.k + page_offset(args, k_page, tile.kv_head), first, sequence.max_kv_len,
                              false);
                if (first != sequence.begin)
                    load_tile(args.v + page_offset(args, v_page, tile.kv_head), first - BLOCK_N,
                              sequence.max_kv_len,
                              sequence.template is_masked<BLOCK_N, SCORE_MODS>(first - BLOCK_N));
                v_page = k_page, k_page = next_page;
            }
        }
        cp_async_commit();
        cp_async_wait<0>();
    }

    DEVICE Producer(const AttentionArgs& args, const Tile& tile, Shared& shared, u8* ring)
        : args(args), tile(tile), shared(shared), ring(ring) {}
};

// ---- Consumer warpgroups ----

template <int HEAD_DIM, int CONSUMERS, bool SCORE_MODS>
struct Prefill<HEAD_DIM, CONSUMERS, SCORE_MODS>::Consumer {
    const AttentionArgs& args;
    const Tile& tile;
    Shared& shared;
    u8* const queries;
    u8* const ring;
    const u32 lane = threadIdx.x % 32, warpgroup = uniform_warp_index() / 4;
    const u32 q_row = threadIdx.x / 32 * 16 + lane / 4;

    float q_scale[2];
    u64 q_descriptor;
    float s[BLOCK_N / 8][4];  // S, then P
    u32 p[BLOCK_N / 16][4];   // P as A fragments
    float o[HEAD_DIM / 8][4] = {};
    OnlineSoftmax<BLOCK_N, SCORE_MODS> softmax;
    PipelineState pipeline;
    u32 consumed = 0;  // tiles

    // ---- Queries ----

    DEVICE void load_queries() {
        const SharedAddress own = shared_address(queries) + warpgroup * QUERY_BYTES;
        store_queries(args, tile, shared, own);
        fence_proxy_async();
        bar_sync(2 + warpgroup, 128);
        q_scale[0] = shared.q_scale[q_row], q_scale[1] = shared.q_scale[q_row + 8];
        q_descriptor = wgmma_descriptor(own);
    }

    // ---- Pipeline ----

    // Waits for the next tile and returns its stage.
    DEVICE u32 wait_full() {
        u32 stage = pipeline.stage;
        mbarrier_wait_parity(shared_address(shared.full) + 8 * stage, pipeline.parity);
        fence_proxy_async();
        pipeline.template advance<STAGES>();
        consumed++;
        return stage;
    }

    DEVICE void release(u32 stage) {
        if (lane == 0) mbarrier_arrive(shared_address(shared.empty) + 8 * stage);
    }

    // ---- S = Q K^T, online softmax, O += P V ----

    DEVICE void issue_scores(u32 stage) {
        constexpr u64 Q_SUBTILE = 64 * 128 / 16, K_SUBTILE = BLOCK_N * 128 / 16;
        u64 k_descriptor = wgmma_descriptor(shared_address(ring) + stage * TILE_BYTES);
        wgmma_fence_operand(s);
        wgmma_fence();
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 16; i++)
            wgmma_accumulate_if(s, q_descriptor + i / 4 * Q_SUBTILE + i % 4 * 2,
                                k_descriptor + i / 4 * K_SUBTILE + i % 4 * 2, i != 0);
        wgmma_commit();
    }

    // Rescales O and packs P as A fragments.
    DEVICE void rescale_and_pack() {
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) o[i][j] *= softmax.rescale[j / 2];
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 16; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                p[i][j] = MmaF16::pack(s[2 * i + j / 2][j % 2 * 2], s[2 * i + j / 2][j % 2 * 2 + 1]);
    }

    DEVICE void issue_values(u32 stage, u32 first_position, const VisibleKeys<SCORE_MODS>& visible) {
        u64 v_descriptor = wgmma_descriptor_trans(shared_address(ring) + stage * TILE_BYTES, BLOCK_N * 128);
        if (shared.non_finite[stage] == consumed)
            exclude_non_finite<Prefill>(ring + stage * TILE_BYTES, first_position, visible, o);
        wgmma_fence_operand(o);
        wgmma_fence_operand(p);
        wgmma_fence();
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 16; i++) wgmma_a_registers(o, p[i], v_descriptor + i * (16 * 128 / 16));
        wgmma_commit();
    }

    DEVICE void finish_values(u32 stage) {
        wgmma_wait<0>();
        wgmma_fence_operand(o);
        wgmma_fence_operand(p);
        release(stage);
    }

    DEVICE u32 kv_len_in(const Sequence& sequence, u32 q_row) {
        u32 row = q_row / args.group;
        return row < tile.rows && shared.sequence[row] == sequence.id ? shared.kv_len[row] : 0;
    }

    DEVICE VisibleKeys<SCORE_MODS> visible_keys(const Sequence& sequence) {
        VisibleKeys<SCORE_MODS> visible = {};
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            visible.end[j] = kv_len_in(sequence, q_row + 8 * j);
            if (SCORE_MODS && visible.end[j])
                visible.begin[j] = args.scores.first_visible(visible.end[j] - 1);
        }
        return visible;
    }

    // All positions of one sequence that some row sees: S of tile i + 1 is issued before O += P V of tile i.
    DEVICE void mainloop(const VisibleSequence& sequence) {
        const VisibleKeys<SCORE_MODS> visible = visible_keys(sequence);
        u32 k_stage = wait_full();
        issue_scores(k_stage);
        wgmma_wait<0>();
        release(k_stage);
        wgmma_fence_operand(s);
        softmax.update(args, s, q_scale, sequence.begin, sequence, visible);
        rescale_and_pack();
        u32 first = sequence.begin + BLOCK_N;
        for (; first < sequence.max_kv_len; first += BLOCK_N) {
            k_stage = wait_full();
            issue_scores(k_stage);
            u32 v_stage = wait_full();
            issue_values(v_stage, first - BLOCK_N, visible);
            wgmma_wait<1>();
            release(k_stage);
            wgmma_fence_operand(s);
            softmax.update(args, s, q_scale, first, sequence, visible);
            finish_values(v_stage);
            rescale_and_pack();
        }
        u32 v_stage = wait_full();
        issue_values(v_stage, first - BLOCK_N, visible);
        finish_values(v_stage);
    }

    DEVICE void run() {
        load_queries();
        for (u32 index = 0; index < shared.n_sequences; index++)
            mainloop(sequence_at(args, tile, shared, index));
        write_output<SCORE_MODS>(args, tile, q_row, o, softmax);
    }

    DEVICE Consumer(const AttentionArgs& args, const Tile& tile, Shared& shared, u8* queries, u8* ring)
        : args(args), tile(tile), shared(shared), queries(queries), ring(ring) {}
};

#define KERNEL(NAME, HEAD_DIM, CONSUMERS, SCORE_MODS)                      \
    extern "C" __global__ void __launch_bounds__((CONSUMERS + 1) * 128, 1) \
        NAME##_##HEAD_DIM(const __grid_constant__ AttentionArgs args) {    \
        Prefill<HEAD_DIM, CONSUMERS, SCORE_MODS>::run(args);               \
    }
KERNEL(attention_prefill_hopper, 128, 2, false)
KERNEL(attention_prefill_hopper, 64, 3, false)
KERNEL(attention_prefill_hopper_scores, 128, 2, true)
KERNEL(attention_prefill_hopper_scores, 64, 3, true)
