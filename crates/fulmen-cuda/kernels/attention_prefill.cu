// FlashAttention-2 for prefill: causal grouped-query attention of many rows over an f16 or Q8_0 KV cache with
// mma.sync, for every GPU from compute capability 8.0 on; Hopper takes attention_prefill_hopper.cu from 128
// rows on with f16 and heads of 64 or 128 dims. Launched by src/kernels/attention_prefill.rs.
//
// Tile: BLOCK_M = 16 query rows per warp (64 with 4 warps, 128 with 8 warps) by BLOCK_N = 64 positions, or 32
// with heads of 256 dims; K and V tiles go through two stages of shared memory by cp.async. Grid: x = KV
// heads, y = tiles of BLOCK_M / group batch rows, the longest first. A query row is a pair of a batch row and
// a query head of the KV head (attention_prefill.cuh). Every warp keeps its 16 rows of Q, S, P and O in
// registers: S = Q K^T, online softmax in base 2, O += P V.
//
// A tile of Q8_0 is loaded to registers while the previous one is computed, and becomes f16 in shared memory.
// Rows of several sequences in one tile: the block goes through one sequence after the other, and all
// positions of a sequence are masked for the rows of others.
// `*_scores_*`: with score modifiers (attention_scores.cuh): sliding window, logit soft-capping, attention
// temperature, sinks. Tiles that no row of the block sees are skipped; only tiles at an edge of the
// window of some row are masked. Sinks are added where O is divided by its sum.
// Layouts: q, out [m, n_heads, head_dim] f32; K, V in pages of f16 (kv.cuh), a tile in half a page. A tile in
// shared memory is BLOCK_N rows of head_dim f16, the 16-byte chunk c of row r at chunk c ^ (r % 8) against
// bank conflicts.
// Preconditions: head_dim 64 or 128, or 256 with f16; group <= BLOCK_M; caches 16-byte aligned, q and out
// 8-byte aligned.
// Numerics: q scaled by a power of two to f16, f32 accumulators and softmax, P as f16.
// Bound: tensor cores. On an H200, 32 query heads of 128 per 8 KV heads: 196 us for 2048 rows: 175 TFLOP/s,
// 18 % of the dense f16 peak and half the speed of wgmma.
#include "attention_prefill.cuh"

// The slots of a tile's query rows in shared memory, and its sequences one after the other.
template <typename Tile, u32 BLOCK_M, u32 THREADS, bool SCORE_MODS>
struct SequenceScan {
    static constexpr u32 NONE = ~0u;

    // A sequence that query rows belong to, the longest and shortest causal length in the tile (0 where a
    // row belongs to another sequence), and the shortest of its own rows.
    struct Sequence {
        u32 id, max_kv_len, min_kv_len, own_min_kv_len;
    };

    u32 kv_len[BLOCK_M], sequence[BLOCK_M];  // of the query rows; 0 and NONE where there is none
    u32 next_sequence, max_kv_len, min_kv_len, own_min_kv_len;

    DEVICE void load(const AttentionArgs& args, const Tile& tile) {
        for (u32 i = threadIdx.x; i < BLOCK_M; i += THREADS) {
            u32 row = tile.first_row + i / args.group;
            bool reports = tile.kv_head == 0 && i % args.group == 0;
            bool valid = tile.has(i) && slot_is_valid(args.slots, args.n_seqs, args.capacity, row, reports);
            kv_len[i] = valid ? args.slots.positions[row] + 1 : 0;
            sequence[i] = valid ? sequence_of(args.slots, row) : NONE;
        }
        if (threadIdx.x == 0) next_sequence = NONE;
    }

    // Finds the next sequence in ascending order; its id is NONE after the last.
    DEVICE Sequence next(const Tile& tile, bool first, u32 previous) {
        for (u32 i = threadIdx.x; i < BLOCK_M; i += THREADS) {
            u32 id = sequence[i];
            if (id != NONE && (first || id > previous)) atomicMin(&next_sequence, id);
        }
        __syncthreads();
        const u32 id = next_sequence;
        if (id == NONE) return {id, 0, 0, 0};
        if (threadIdx.x == 0) max_kv_len = 0, min_kv_len = own_min_kv_len = ~0u;
        __syncthreads();
        for (u32 i = threadIdx.x; i < BLOCK_M; i += THREADS) {
            bool same = sequence[i] == id;
            if (same) atomicMax(&max_kv_len, kv_len[i]);
            if (SCORE_MODS && same) atomicMin(&own_min_kv_len, kv_len[i]);
            if (tile.has(i)) atomicMin(&min_kv_len, same ? kv_len[i] : 0);
        }
        if (threadIdx.x == 0) next_sequence = NONE;
        __syncthreads();
        return {id, max_kv_len, min_kv_len, own_min_kv_len};
    }

    // The positions of a sequence that query rows `q_row` and `q_row + 8` see.
    DEVICE VisibleKeys<SCORE_MODS> visible_keys(const AttentionArgs& args, const Sequence& of,
                                                u32 q_row) const {
        VisibleKeys<SCORE_MODS> visible = {};
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const u32 row = q_row + 8 * j;
            visible.end[j] = sequence[row] == of.id ? kv_len[row] : 0;
            if (SCORE_MODS && visible.end[j])
                visible.begin[j] = args.scores.first_visible(visible.end[j] - 1);
        }
        return visible;
    }

    // The first position that some row of the sequence sees.
    static DEVICE u32 first_visible(const AttentionArgs& args, const Sequence& of) {
        return SCORE_MODS ? args.scores.first_visible(of.own_min_kv_len - 1) : 0;
    }

    // Whether some row does not see all positions of a tile.
    template <u32 BLOCK_N>
    static DEVICE bool is_masked(const AttentionArgs& args, const Sequence& of, u32 first_position) {
        return first_position + BLOCK_N > of.min_kv_len ||
               (SCORE_MODS && first_position < args.scores.first_visible(of.max_kv_len - 1));
    }
};

// The running max and sum of a thread's two query rows.
template <u32 BLOCK_N, bool SCORE_MODS>
struct OnlineSoftmax {
    float row_max[2] = {-INFINITE, -INFINITE}, row_sum[2] = {}, rescale[2];

    // Scales and masks S, turns it into P = 2^(S - max) and sets the factors that rescale O.
    DEVICE void update(const AttentionArgs& args, float (&s)[BLOCK_N / 8][4], const float (&q_scale)[2],
                       u32 first_position, bool masked, const VisibleKeys<SCORE_MODS>& visible) {
        const u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                s[i][j] *= q_scale[j / 2];
                if (SCORE_MODS) s[i][j] = args.scores.capped(s[i][j]);
            }
        if (masked) {
#pragma unroll
            for (u32 i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    if (!visible.has(j / 2, first_position + i * 8 + lane % 4 * 2 + j % 2))
                        s[i][j] = -INFINITE;
        }
        float new_max[2] = {row_max[0], row_max[1]};
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) new_max[j / 2] = fmaxf(new_max[j / 2], s[i][j]);
        float base[2];
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            new_max[j] = quad_max(new_max[j]);
            base[j] = softmax_base(new_max[j]);
            rescale[j] = ex2_approx(row_max[j] - base[j]);
            row_max[j] = new_max[j];
            row_sum[j] *= rescale[j];
        }
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                s[i][j] = ex2_approx(s[i][j] - base[j / 2]);
                row_sum[j / 2] += s[i][j];
            }
    }
};

// Requests a tile of K or V from its first position on. Rows from `limit` on are zero-filled: no weight, not
// even 0, may meet a NaN.
template <typename Kernel>
DEVICE void load_kv_tile(SharedAddress to, const u8* from, u32 limit) {
    constexpr u32 CHUNKS = Kernel::CHUNKS;
#pragma unroll
    for (u32 i = 0; i < Kernel::BLOCK_N * CHUNKS; i += Kernel::THREADS) {
        const u32 row = (i + threadIdx.x) / CHUNKS, chunk = (i + threadIdx.x) % CHUNKS;
        const bool valid = row < limit;
        cp_async_16_zfill(to + Kernel::chunk_offset(row, chunk),
                          from + ((valid ? row : 0) * CHUNKS + chunk) * 16, valid);
    }
    cp_async_commit();
}

// A thread's part of a tile of K or V in Q8_0, on its way to f16 in shared memory: chunks of 16 elements.
template <typename Kernel, int HEAD_DIM>
struct Q8Tile {
    static constexpr u32 CHUNKS = HEAD_DIM / 16, PER_THREAD = Kernel::BLOCK_N * CHUNKS / Kernel::THREADS;
    uint4 values[PER_THREAD];
    u32 scales[PER_THREAD];  // f16x2

    // Requests the tile from row `first` of a page on; rows from `limit` on are zero.
    DEVICE void load(const u8* page, u32 first, u32 limit) {
#pragma unroll
        for (u32 i = 0; i < PER_THREAD; i++) {
            const u32 row = (i * Kernel::THREADS + threadIdx.x) / CHUNKS, chunk = threadIdx.x % CHUNKS;
            values[i] = make_uint4(0, 0, 0, 0), scales[i] = 0;
            if (row >= limit) continue;
            values[i] = *(const uint4*)(page + (first + row) * HEAD_DIM + chunk * 16);
            const u16* row_scales = (const u16*)(page + KV_PAGE * HEAD_DIM) + (first + row) * (HEAD_DIM / 32);
            scales[i] = row_scales[chunk / 2] * 0x10001u;
        }
    }

    // Two int8 as f16x2, times the scale: 1024 + byte has the byte as its lowest bits.
    static DEVICE u32 f16_pair_of(u32 word, u32 selector, u32 scale) {
        return mul_f16x2(add_f16x2(__byte_perm(word ^ 0x80808080, 0x64646464, selector), 0xe480e480), scale);
    }

    DEVICE void store(u8* to) const {
#pragma unroll
        for (u32 i = 0; i < PER_THREAD; i++) {
            const u32 row = (i * Kernel::THREADS + threadIdx.x) / CHUNKS, chunk = threadIdx.x % CHUNKS;
            const u32 words[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                *(uint4*)(to + Kernel::chunk_offset(row, chunk * 2 + half)) =
                    make_uint4(f16_pair_of(words[2 * half], 0x4140, scales[i]),
                               f16_pair_of(words[2 * half], 0x4342, scales[i]),
                               f16_pair_of(words[2 * half + 1], 0x4140, scales[i]),
                               f16_pair_of(words[2 * half + 1], 0x4342, scales[i]));
        }
    }
};

// Requests the tile of K and V of a Q8_0 cache.
template <int HEAD_DIM, typename Kernel>
DEVICE void load_q8(const Kernel& block, Q8Tile<Kernel, HEAD_DIM>& k, Q8Tile<Kernel, HEAD_DIM>& v,
                    u32 sequence, u32 index, u32 max_kv_len) {
    constexpr u32 BLOCK_N = Kernel::BLOCK_N;
    const u64 from = page_offset(block.args, block.tile_page(sequence, index), block.tile.kv_head);
    const u32 first = index % (KV_PAGE / BLOCK_N) * BLOCK_N, limit = max_kv_len - index * BLOCK_N;
    k.load(block.args.k + from, first, limit);
    v.load(block.args.v + from, first, limit);
}

// All positions of one sequence of a Q8_0 cache. The next tile is in registers while one is computed.
template <int HEAD_DIM, typename Kernel, typename Sequence>
DEVICE void mainloop_q8(Kernel& block, const Sequence& sequence, const typename Kernel::Visible& visible) {
    constexpr u32 BLOCK_N = Kernel::BLOCK_N;
    const u32 first_tile = Kernel::Scan::first_visible(block.args, sequence) / BLOCK_N;
    const u32 tiles = (sequence.max_kv_len + BLOCK_N - 1) / BLOCK_N;
    Q8Tile<Kernel, HEAD_DIM> k, v;
    load_q8<HEAD_DIM>(block, k, v, sequence.id, first_tile, sequence.max_kv_len);
    for (u32 index = first_tile; index < tiles; index++) {
        u8* stage = block.memory + index % 2 * Kernel::STAGE_BYTES;
        const u32 first_position = index * BLOCK_N;
        const bool masked = Kernel::Scan::template is_masked<BLOCK_N>(block.args, sequence, first_position);
        // All warps are done with the tile before the previous one.
        k.store(stage);
        v.store(stage + Kernel::TILE_BYTES);
        __syncthreads();
        if (index + 1 < tiles) load_q8<HEAD_DIM>(block, k, v, sequence.id, index + 1, sequence.max_kv_len);
        float s[BLOCK_N / 8][4] = {};
        block.compute_scores(shared_address(stage), s);
        block.softmax.update(block.args, s, block.q_scale, first_position, masked, visible);
        block.rescale_output();
        block.finish_value_tile(stage + Kernel::TILE_BYTES, first_position, masked, visible);
        block.accumulate_values(shared_address(stage) + Kernel::TILE_BYTES, s);
    }
    __syncthreads();
}

// The same of an f16 cache. The next tile is on its way while one is computed.
template <typename Kernel, typename Sequence>
DEVICE void mainloop_f16(Kernel& block, const Sequence& sequence, const typename Kernel::Visible& visible) {
    constexpr u32 BLOCK_N = Kernel::BLOCK_N;
    const u32 first_tile = Kernel::Scan::first_visible(block.args, sequence) / BLOCK_N;
    const u32 tiles = (sequence.max_kv_len + BLOCK_N - 1) / BLOCK_N;
    block.load_stage(block.tile_page(sequence.id, first_tile), first_tile, sequence.max_kv_len);
    // Looked up a tile ahead.
    u32 next_page = block.tile_page(sequence.id, first_tile + 1);
    for (u32 index = first_tile; index < tiles; index++) {
        u8* stage = block.memory + index % 2 * Kernel::STAGE_BYTES;
        const u32 first_position = index * BLOCK_N;
        const bool masked = Kernel::Scan::template is_masked<BLOCK_N>(block.args, sequence, first_position);
        cp_async_wait<1>();
        __syncthreads();
        if (index + 1 < tiles) {
            block.load_stage(next_page, index + 1, sequence.max_kv_len);
            next_page = block.tile_page(sequence.id, index + 2);
        }
        float s[BLOCK_N / 8][4] = {};
        block.compute_scores(shared_address(stage), s);
        block.softmax.update(block.args, s, block.q_scale, first_position, masked, visible);
        block.rescale_output();
        if (index + 1 < tiles)
            cp_async_wait<2>();
        else
            cp_async_wait<0>();
        block.finish_value_tile(stage + Kernel::TILE_BYTES, first_position, masked, visible);
        block.accumulate_values(shared_address(stage) + Kernel::TILE_BYTES, s);
    }
    __syncthreads();
}

// All positions of one sequence that some row sees.
template <KvType TYPE, int HEAD_DIM, typename Kernel, typename Sequence>
DEVICE void mainloop(Kernel& block, const Sequence& sequence) {
    const auto visible = block.shared.scan.visible_keys(block.args, sequence, block.q_row);
    if (block.tile.kv_head == 0)
        report_invalid_pages(block.args, block.tile.first_row, sequence.id,
                             Kernel::Scan::first_visible(block.args, sequence), sequence.max_kv_len,
                             threadIdx.x, Kernel::THREADS);
    if constexpr (TYPE == KV_Q8_0)
        mainloop_q8<HEAD_DIM>(block, sequence, visible);
    else
        mainloop_f16(block, sequence, visible);
}

// Lane 4 g + t holds query rows g and g + 8 of its warp's 16.
template <KvType TYPE_, int HEAD_DIM_, int WARPS, bool SCORE_MODS_>
struct Prefill {
    static constexpr KvType TYPE = TYPE_;
    static constexpr int HEAD_DIM = HEAD_DIM_;
    static constexpr bool SCORE_MODS = SCORE_MODS_;
    static constexpr u32 BLOCK_M = WARPS * 16, BLOCK_N = HEAD_DIM == 256 ? 32 : 64, THREADS = WARPS * 32;
    static constexpr u32 CHUNKS = HEAD_DIM / 8;  // 16-byte chunks of a head
    static constexpr u32 TILE_BYTES = BLOCK_N * HEAD_DIM * 2, STAGE_BYTES = 2 * TILE_BYTES;
    using Tile = QueryTile<HEAD_DIM, BLOCK_M>;
    // Q stays in shared memory behind the stages where registers do not hold it; else it is packed in the
    // second stage.
    static constexpr bool SHARED_Q = HEAD_DIM == 256;
    static_assert(SHARED_Q || BLOCK_M * HEAD_DIM * 2 <= STAGE_BYTES);
    using Scan = SequenceScan<Tile, BLOCK_M, THREADS, SCORE_MODS>;
    using Visible = VisibleKeys<SCORE_MODS>;

    struct Shared {
        Scan scan;
        float q_scale[BLOCK_M];
    };

    const AttentionArgs& args;
    Shared& shared;
    u8* const memory;  // two stages of K and V
    const Tile tile;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, q_row = warp * 16 + lane / 4;

    u32 q[SHARED_Q ? 1 : HEAD_DIM / 16][4];
    float q_scale[2];
    float o[HEAD_DIM / 8][4] = {};
    OnlineSoftmax<BLOCK_N, SCORE_MODS> softmax;

    static DEVICE u32 chunk_offset(u32 row, u32 chunk) { return (row * CHUNKS + (chunk ^ (row % 8))) * 16; }
    static DEVICE void sync() { __syncthreads(); }

    // ---- Loads ----

    // `page`: the entry of the page table for the tile.
    DEVICE void load_stage(u32 page, u32 index, u32 max_kv_len) {
        const SharedAddress to = shared_address(memory) + index % 2 * STAGE_BYTES;
        const u64 from =
            page_offset(args, page, tile.kv_head) + index % (KV_PAGE / BLOCK_N) * (u64)TILE_BYTES;
        const u32 limit = max_kv_len - index * BLOCK_N;
        load_kv_tile<Prefill>(to, args.k + from, limit);
        load_kv_tile<Prefill>(to + TILE_BYTES, args.v + from, limit);
    }

    DEVICE u32 tile_page(u32 sequence, u32 index) const {
        return page_entry(args, sequence, index / (KV_PAGE / BLOCK_N));
    }

    DEVICE SharedAddress queries() const { return shared_address(memory) + (SHARED_Q ? 2 : 1) * STAGE_BYTES; }

    // The fragment of 16 dims of Q.
    DEVICE void load_query_fragment(u32 (&fragment)[4], u32 step) const {
        ldmatrix_x4(fragment, queries() + chunk_offset(warp * 16 + lane % 16, 2 * step + lane / 16));
    }

    // Q as f16, then as fragments.
    DEVICE void load_queries() {
        const SharedAddress queries = this->queries();
        for (u32 i = warp * 16; i < warp * 16 + 16; i++) {
            float x[HEAD_DIM / 32];
            load_query(x, tile.has(i) ? args.q + tile.head_offset(i) : nullptr);
            u32 at = lane * (HEAD_DIM / 32);
            float scale = store_query_f16(x, queries + chunk_offset(i, at / 8) + at % 8 * 2);
            const u32 row = tile.first_row + (tile.has(i) ? i / args.group : 0);
            if (lane == 0) shared.q_scale[i] = scale * score_scale<SCORE_MODS>(args, row);
        }
        __syncthreads();
        if (!SHARED_Q) {
#pragma unroll
            for (u32 i = 0; i < HEAD_DIM / 16; i++) load_query_fragment(q[i], i);
        }
        q_scale[0] = shared.q_scale[q_row], q_scale[1] = shared.q_scale[q_row + 8];
    }

    // ---- Mainloop ----

    // S = Q K^T.
    DEVICE void compute_scores(SharedAddress k_tile, float (&s)[BLOCK_N / 8][4]) {
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 16; i++) {
            u32(&fragment)[4] = q[SHARED_Q ? 0 : i];
            if (SHARED_Q) load_query_fragment(fragment, i);
#pragma unroll
            for (u32 j = 0; j < BLOCK_N / 16; j++) {
                u32 b[4];
                ldmatrix_x4(b,
                            k_tile + chunk_offset(j * 16 + lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2));
                MmaF16::mma(s[2 * j], fragment, b[0], b[1]);
                MmaF16::mma(s[2 * j + 1], fragment, b[2], b[3]);
            }
        }
    }

    DEVICE void rescale_output() {
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) o[i][j] *= softmax.rescale[j / 2];
    }

    // Waits at the block barrier for V; if the tile is masked, takes values out of it that are not finite.
    DEVICE void finish_value_tile(u8* v_tile, u32 first_position, bool masked, const Visible& visible) {
        __syncthreads();
        if (!masked) return;
        bool finite = true;
        for (u32 i = threadIdx.x * 4; i < TILE_BYTES; i += THREADS * 4)
            finite &= is_finite_f16x2(*(const u32*)(v_tile + i));
        if (__syncthreads_or(!finite)) exclude_non_finite<Prefill>(v_tile, first_position, visible, o);
    }

    // O += P V.
    DEVICE void accumulate_values(SharedAddress v_tile, const float (&p)[BLOCK_N / 8][4]) {
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 16; i++) {
            u32 a[4] = {MmaF16::pack(p[2 * i][0], p[2 * i][1]), MmaF16::pack(p[2 * i][2], p[2 * i][3]),
                        MmaF16::pack(p[2 * i + 1][0], p[2 * i + 1][1]),
                        MmaF16::pack(p[2 * i + 1][2], p[2 * i + 1][3])};
#pragma unroll
            for (u32 j = 0; j < HEAD_DIM / 16; j++) {
                u32 b[4];
                ldmatrix_x4_trans(b, v_tile + chunk_offset(i * 16 + lane % 16, 2 * j + lane / 16));
                MmaF16::mma(o[2 * j], a, b[0], b[1]);
                MmaF16::mma(o[2 * j + 1], a, b[2], b[3]);
            }
        }
    }

    DEVICE Prefill(const AttentionArgs& args, Shared& shared, u8* memory)
        : args(args), shared(shared), memory(memory), tile(args) {}
};

template <typename Kernel>
DEVICE void attention_prefill(const AttentionArgs& args) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ typename Kernel::Shared shared;
    pdl_begin();
    Kernel block(args, shared, memory);
    if (block.tile.rows == 0) return;
    shared.scan.load(args, block.tile);
    block.load_queries();
    u32 previous = 0;
    for (bool first = true;; first = false) {
        const auto sequence = shared.scan.next(block.tile, first, previous);
        if (sequence.id == Kernel::Scan::NONE) break;
        mainloop<Kernel::TYPE, Kernel::HEAD_DIM>(block, sequence);
        previous = sequence.id;
    }
    write_output<Kernel::SCORE_MODS>(args, block.tile, block.q_row, block.o, block.softmax);
}

#define KERNEL(TYPE, NAME, HEAD_DIM, WARPS, SCORE_MODS)                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 8 / WARPS)           \
        NAME##_##HEAD_DIM##_##WARPS(const __grid_constant__ AttentionArgs args) { \
        attention_prefill<Prefill<TYPE, HEAD_DIM, WARPS, SCORE_MODS>>(args);      \
    }
#define KERNELS(TYPE, NAME, HEAD_DIM, WARPS)   \
    KERNEL(TYPE, NAME, HEAD_DIM, WARPS, false) \
    KERNEL(TYPE, NAME##_scores, HEAD_DIM, WARPS, true)
KERNELS(KV_F16, attention_prefill, 64, 4)
KERNELS(KV_F16, attention_prefill, 64, 8)
KERNELS(KV_F16, attention_prefill, 128, 4)
KERNELS(KV_F16, attention_prefill, 128, 8)
KERNELS(KV_F16, attention_prefill, 256, 4)
KERNELS(KV_Q8_0, attention_prefill_q8_0, 64, 8)
KERNELS(KV_Q8_0, attention_prefill_q8_0, 128, 8)
