// Decode attention (attention_decode.cu): arguments, a head in the registers of a warp, and the state of a
// block that prologue, mainloop and epilogue share.
#pragma once

#include "attention_scores.cuh"
#include "common.cuh"
#include "f16_panels.cuh"
#include "kv.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "q8_activations.cuh"
#include "rope.cuh"

// Whether the blocks of a row and KV head are a thread block cluster.
constexpr bool HAS_CLUSTERS = __CUDA_ARCH__ >= 900;
constexpr int CLUSTER_WARPS = 8, AMPERE_WARPS = 4;
constexpr int TILE = 16;  // positions

// Warps of a block: half as many where tiles are the largest.
template <KvType TYPE, int HEAD_DIM>
constexpr int decode_warps() {
    constexpr bool LARGE = (TYPE == KV_F16 && HEAD_DIM == 256) || (TYPE == KV_F32 && HEAD_DIM == 128);
    return (HAS_CLUSTERS ? CLUSTER_WARPS : AMPERE_WARPS) / (LARGE ? 2 : 1);
}
constexpr int MAX_GROUP = 8;  // query heads per KV head: rows 0 to 7 of an MMA

// Mirrored by `AttentionDecodeArgs` in src/kernels/attention_decode.rs.
struct AttentionDecodeArgs {
    const float* q;
    const float* k;  // of the new rows; unused without `fused_store`, as v, the gammas, q_out and rope
    const float* v;
    const float* q_gamma;  // [head_dim], or null: no norm
    const float* k_gamma;  // [head_dim], or null: no norm
    const u32* positions;  // [rows]
    const u32* sequences;  // [rows], or null: all 0
    const u32* pages;      // [n_seqs, capacity / KV_PAGE]
    u8* k_cache;
    u8* v_cache;
    float* q_out;  // the rotated queries; may be `q`
    float* out;
    u8* out_q8;             // [1, n_heads * head_dim] as q8 activations, or null
    u8* out_f16[K_ORDERS];  // out / 8 as f16 fragments in both K orders, or as panels in [0]; or null
    float* out_f16_scales;  // [rows], all 8; or null
    Fault* fault;
    RopeArgs rope;
    float epsilon;
    float scale;  // of the scores
    u32 n_heads;
    u32 n_kv_heads;
    u32 capacity;
    u32 n_seqs;
    u32 fused_store;  // 0: q is rotated, and the new keys and values are in the cache
    u32 splits;       // blocks per row and part of a KV head's query heads
    u32 n_pages;
    u32 rows;
    // Without clusters, if there are several splits:
    float* partials;  // [rows, parts of KV heads, splits, MAX_GROUP * (head_dim + 2)]: O, max and sum
    float* rotated;   // [rows, n_heads, head_dim]: what becomes q_out when all blocks have read q
    const u32* work;  // of a mixed step: its first entry is the number of rows that decode
    u32 panel_rows;   // padded rows of the panels; 0 for fragments
    u32 panel_order;
    ScoreArgs scores;  // only read by kernels with SCORE_MODS and by those that combine splits
};
#include "layout/attention_decode_block.cuh"

// One head in the registers of a warp, as RoPE pairs: lane l holds pairs l + 32 j, zeros where there is none.
template <int HEAD_DIM>
struct WarpHead {
    static constexpr int PAIRS = (HEAD_DIM + 63) / 64;
    float first[PAIRS], second[PAIRS];

    // Whether the lane's pair j is one of the head.
    static DEVICE bool has(int j) { return HEAD_DIM % 64 == 0 || pair(j) < HEAD_DIM / 2; }

    static DEVICE u32 pair(int j) { return (threadIdx.x & 31) + 32 * j; }
    static DEVICE u32 first_dim(int j, bool neox) { return rope_first_dim(pair(j), neox); }
    static DEVICE u32 second_dim(int j, bool neox) { return rope_second_dim(pair(j), HEAD_DIM, neox); }

    DEVICE void load(const float* head, bool neox) {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            first[j] = has(j) ? __ldcg(head + first_dim(j, neox)) : 0;
            second[j] = has(j) ? __ldcg(head + second_dim(j, neox)) : 0;
        }
    }

    DEVICE void store(float* head, bool neox) const {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            if (!has(j)) continue;
            head[first_dim(j, neox)] = first[j];
            head[second_dim(j, neox)] = second[j];
        }
    }

    DEVICE void rms_norm(const float* gamma, bool neox, float epsilon) {
        WarpHead weight;
        weight.load(gamma, neox);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) sum += first[j] * first[j] + second[j] * second[j];
        float factor = rsqrtf(warp_sum(sum) / HEAD_DIM + epsilon);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            first[j] = first[j] * factor * weight.first[j];
            second[j] = second[j] * factor * weight.second[j];
        }
    }

    DEVICE void rotate(const float2 (&cos_sin)[PAIRS]) {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) rope_rotate(first[j], second[j], cos_sin[j]);
    }

    // The lane's value of the 32 dims from 32 `block` on, in the order of the dims.
    DEVICE float in_order(int block, bool neox) const {
        const u32 lane = threadIdx.x & 31;
        if (neox && HEAD_DIM % 64 == 0) return block < PAIRS ? first[block] : second[block - PAIRS];
        if (!neox) {
            const u32 from = block % 2 * 16 + lane / 2;
            const float even = __shfl_sync(FULL_WARP, first[block / 2], from);
            const float odd = __shfl_sync(FULL_WARP, second[block / 2], from);
            return lane % 2 ? odd : even;
        }
        const u32 dim = block * 32 + lane, pair = dim % (HEAD_DIM / 2);
        float value = 0;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const float one = __shfl_sync(FULL_WARP, first[j], pair % 32);
            const float other = __shfl_sync(FULL_WARP, second[j], pair % 32);
            if (pair / 32 == j) value = dim < HEAD_DIM / 2 ? one : other;
        }
        return value;
    }

    // The bits of the largest magnitude.
    DEVICE u32 max_abs_bits() const {
        u32 bits = 0;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) bits = max(bits, max(abs_bits(first[j]), abs_bits(second[j])));
        return __reduce_max_sync(FULL_WARP, bits);
    }
};

// The query heads of one KV head that a block computes: all of them, or with more than MAX_GROUP an even
// part.
struct HeadPart {
    u32 kv_head, first_head, heads;

    static DEVICE u32 parts(const AttentionDecodeArgs& args) {
        return (args.n_heads / args.n_kv_heads + MAX_GROUP - 1) / MAX_GROUP;
    }

    // Part `index` of all KV heads. WHOLE: there is one for each.
    template <bool WHOLE>
    static DEVICE HeadPart of(const AttentionDecodeArgs& args, u32 index) {
        const u32 group = args.n_heads / args.n_kv_heads, parts = WHOLE ? 1 : HeadPart::parts(args);
        if (parts == 1) return {index, index * group, group};
        const u32 kv_head = index / parts, each = (group + parts - 1) / parts;
        const u32 first = min((index - kv_head * parts) * each, group);
        return {kv_head, kv_head * group + first, min(each, group - first)};
    }
};

// Called from two places. The code of a kernel is cold at every launch, so code size costs time.
__device__ __noinline__ float2 rope_cos_sin_noinline(u32 position, u32 pair, u32 n_rot,
                                                     const float* freq_factors, float freq_scale,
                                                     float magnitude, double log2_base) {
    return rope_cos_sin(position, pair, n_rot, freq_factors, freq_scale, magnitude, log2_base);
}

// Stores an eighth of element `at` of a row of the output as f16 fragments or panels. The element is an
// average of f16 values, so it fits f16. A sum of 16 eighths may not, but fits the pair (sum, remainder) of
// store_fragment_x4, which holds up to 2 * 65504. Called by whole warps with neighboring elements.
DEVICE void store_f16_fragment(const AttentionDecodeArgs& args, u32 row, u32 at, float value) {
    value *= 0.125f;
    const float second = __shfl_down_sync(FULL_WARP, value, 1), third = __shfl_down_sync(FULL_WARP, value, 2);
    const float fourth = __shfl_down_sync(FULL_WARP, value, 3);
    const uint2 four = make_uint2(f16_pair(value, third), f16_pair(second, fourth));
    float sum = f16_pair_sum(four.x) + f16_pair_sum(four.y);
    sum += __shfl_xor_sync(FULL_WARP, sum, 4);
    sum += __shfl_xor_sync(FULL_WARP, sum, 8);
    if (at % 4 > 0) return;
    if (at == 0) args.out_f16_scales[row] = 8;
    if (args.panel_rows) {
        store_panel_x4(args.out_f16[0], args.panel_order, args.panel_rows, row, at, four);
        return;
    }
#pragma unroll
    for (u32 order = 0; order < K_ORDERS; order++)
        store_fragment_x4(args.out_f16[order], order, padded_rows(args.rows), row, at, four, sum);
}

// ---- Block: state shared by prologue, mainloop and epilogue ----

// What depends on the type of the cache; attention_decode_{f16,f32,q8_0}.cuh specialize them. KvTile: the
// layout of a tile in global and shared memory, the queries of a block in shared memory, and stores to both.
// TileCopy: requests a tile. TileMath: S = Q K^T and O += P V of a warp.
template <KvType TYPE, int HEAD_DIM>
struct KvTile;
template <typename Block, KvType TYPE>
struct TileCopy;
template <typename Block, KvType TYPE>
struct TileMath;

// SPLITS: blocks among which the context of a row is split (split-KV): a cluster where HAS_CLUSTERS, blocks
// that leave their results in global memory otherwise. STAGES: tiles in a warp's ring. SINGLE_ROW: the grid
// has one row, and the code is kept as short as possible. SCORE_MODS: there may be score modifiers
// (attention_scores.cuh).
template <KvType TYPE_, int HEAD_DIM_, int SPLITS_, int STAGES_, bool SINGLE_ROW_, bool SCORE_MODS_>
struct DecodeBlock {
    static constexpr KvType TYPE = TYPE_;
    static constexpr int HEAD_DIM = HEAD_DIM_, SPLITS = SPLITS_, STAGES = STAGES_;
    static constexpr bool SINGLE_ROW = SINGLE_ROW_, SCORE_MODS = SCORE_MODS_;
    static constexpr int WARPS = decode_warps<TYPE, HEAD_DIM>(), THREADS = WARPS * 32;
    static constexpr int TILES_PER_ROUND = SPLITS * WARPS;
    static constexpr float MASKED = -1e30f;
    using Head = WarpHead<HEAD_DIM>;
    using Tile = KvTile<TYPE, HEAD_DIM>;
    static constexpr int STAGE_BYTES = Tile::STAGE_BYTES;

    struct Shared {
        typename Tile::Queries q;
        float q_scale[MAX_GROUP];
        float warp_max[WARPS][MAX_GROUP], warp_sum[WARPS][MAX_GROUP], block_max[MAX_GROUP];
        float2 cos_sin[SINGLE_ROW ? HEAD_DIM / 2 : 1];
        float sinks[SCORE_MODS ? MAX_GROUP : 1];  // in base 2
    };

    // What the blocks of the cluster have accumulated for the slice of O that this block finishes.
    static constexpr int SENDERS = HAS_CLUSTERS ? SPLITS : 1;
    struct ClusterPartials {
        float o[SENDERS][MAX_GROUP * HEAD_DIM / SPLITS], max[SENDERS][MAX_GROUP], sum[SENDERS][MAX_GROUP];
    };

    const AttentionDecodeArgs& args;
    Shared& shared;
    ClusterPartials& partials;
    u8* const rings;  // of all warps
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const u32 split = blockIdx.x % SPLITS;  // also the block's rank in its cluster
    const u32 row;
    const HeadPart part = HeadPart::of<SINGLE_ROW>(args, blockIdx.x / SPLITS);
    const u32 kv_head = part.kv_head, group = part.heads;
    const bool neox = args.rope.neox;

    const u32 position = args.positions[row], sequence = args.sequences ? args.sequences[row] : 0;
    const bool valid = position < args.capacity && sequence < args.n_seqs;
    // The page table of the sequence. Indices are clamped, so that entries can be loaded before the position
    // is there.
    const u32 max_page = args.capacity / KV_PAGE - 1;
    const u32* const pages = args.pages + (u64)(sequence < args.n_seqs ? sequence : 0) * (max_page + 1);
    // The page of the row's own position.
    const u32 own_page = pages[min(position / KV_PAGE, max_page)];
    // Positions below this are in the cache when the kernel starts.
    const u32 cached = valid ? position + (args.fused_store ? 0 : 1) : 0;
    // The first position that the row sees.
    const u32 first_visible = SCORE_MODS ? args.scores.first_visible(position) : 0;
    const u32 tiles = valid ? position / TILE + 1 : 0, last_tile = position / TILE,
              first_tile = first_tile_of(warp);
    const u32 ring = shared_address(rings) + warp * STAGES * STAGE_BYTES;

    // The first tile of a warp, which has every TILES_PER_ROUND-th: the first that the row sees some of.
    DEVICE u32 first_tile_of(u32 warp) const {
        const u32 first = split + SPLITS * warp;
        if (!SCORE_MODS) return first;
        const u32 behind = first_visible / TILE - min(first_visible / TILE, first);
        return first + (behind + TILES_PER_ROUND - 1) / TILES_PER_ROUND * TILES_PER_ROUND;
    }

    // The round in which a warp has a tile.
    DEVICE u32 round_of(u32 tile, u32 warp) const {
        return (SCORE_MODS ? tile - first_tile_of(warp) : tile) / TILES_PER_ROUND;
    }

    DEVICE bool sees(u32 at) const { return at <= position && (!SCORE_MODS || at >= first_visible); }

    // Bytes from the start of a cache to this KV head of a page.
    DEVICE u64 page_offset(u32 page) const {
        return ((u64)page * args.n_kv_heads + kv_head) * Tile::PAGE_BYTES;
    }

    // This KV head of the page where the new key (or value) of a row at position `at` goes; null if the page
    // is not in the pool, which TileLoader reports.
    DEVICE u8* kv_page(bool is_key, u32 from_row, u32 at) const {
        const u32 page = SINGLE_ROW || from_row == row ? own_page : pages[at / KV_PAGE];
        if (page >= args.n_pages) return nullptr;
        return (is_key ? args.k_cache : args.v_cache) + page_offset(page);
    }

    DEVICE DecodeBlock(const AttentionDecodeArgs& args, Shared& shared, ClusterPartials& partials, u8* rings,
                       u32 row)
        : args(args), shared(shared), partials(partials), rings(rings), row(row) {}

    // The output of an inactive row.
    DEVICE void clear_output() const {
        if (split != 0) return;
        float* out = args.out + ((u64)row * args.n_heads + part.first_head) * HEAD_DIM;
#pragma unroll 1
        for (u32 at = threadIdx.x; at < group * HEAD_DIM; at += THREADS) out[at] = 0;
    }

    DEVICE void report_invalid_row() const {
        if (valid || blockIdx.x != 0 || threadIdx.x != 0) return;
        if (sequence == NO_SEQUENCE) return;
        if (sequence >= args.n_seqs)
            report(args.fault, FAULT_SEQUENCE, row, sequence, args.n_seqs);
        else
            report(args.fault, FAULT_POSITION, row, position, args.capacity);
    }
};
