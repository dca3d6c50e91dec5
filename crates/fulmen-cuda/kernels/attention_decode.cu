// Flash decoding for grouped-query attention over an f16 KV cache, fused with the q/k RMS norm, RoPE and the
// KV store of the new rows. Launched by src/kernels/attention_decode.rs for 1 to 16 rows of one sequence, or
// for a decode batch of up to 1024 rows (32 with the fused store); one new token per row.
//
// Grid: x = n_kv_heads * CLUSTER, y = rows; 256 threads (8 warps). A cluster computes all query heads of one
// KV head for one row, so K and V are read once per group. CLUSTER (1, 2, 4 or 8) shrinks with more rows; 1
// is no cluster. Before compute capability 9.0 a block has 128 threads, its rings half the bytes, and the
// blocks of what is a cluster otherwise leave their partial results in global memory, which a second kernel,
// `attention_decode_combine_<head_dim>`, combines.
//
// Split-KV: positions are cut into tiles of 16. Tile t belongs to block t % CLUSTER of the cluster and there
// to warp t / CLUSTER % 8. Each warp has a private ring of STAGES tiles (K and V) filled by cp.async; no
// block barrier is needed in the mainloop.
//   1. Tile loader: the first STAGES - 1 tiles are requested before griddepcontrol.wait, because all
//      positions but the new ones are in the cache already (PDL; with `fused_store` = 0 the kernel waits
//      first).
//   2. Prologue, one warp per head: q is normalized, rotated, scaled by a power of two and put into shared
//      memory as f16; the new k (normalized, rotated) and v go to the cache and into the tile if it was
//      loaded before.
//   3. Mainloop per warp: S = Q K^T, online softmax, O += P V by mma.m16n8k16 with the query heads as rows 0
//      to 7.
//   4. Combine: the warps' O, max and sum through shared memory; then every block of the cluster sends the
//      slice of O that another block finishes to it (distributed shared memory).
//   5. Epilogue: out = O / sum in f32, and optionally in the form in which the next matmul reads it (q8 for
//      one row, f16 MMA fragments for exactly 8 or 16).
//
// Several rows of one sequence (new tokens of one prompt) must see what the others store: each block then
// computes the new keys and values at positions up to its own whose tile belongs to this block, so a block
// reads only new rows that it stored itself. Blocks of several rows write the same bits to the cache. A block
// reads the cache only afterwards.
//
// Layouts: q, out [rows, n_heads, head_dim] f32; k, v [rows, n_kv_heads, head_dim] f32; caches in pages of
// f16 (kv.cuh). A tile lies in one page; lane l of a warp looks up the page of the warp's l-th tile, at the
// start and again every 32 tiles, so the mainloop does not wait for the table. A tile in shared memory is 16
// rows of head_dim f16; 16-byte chunk c of row r is stored at chunk c ^ (r % 8), which keeps ldmatrix free of
// bank conflicts.
// Preconditions: head_dim 64 or 128, all of it rotated; at most 8 query heads per KV head; caches 16-byte
// aligned; out overlaps nothing that is read; where out_q8 or out_f16 is set, a block's slice of O is a
// multiple of 32 elements; out_f16 only with exactly 8 or 16 rows; with fused_store, no running kernel writes
// this cache (Queue::kv_store_may_be_running).
// Numerics: norm, RoPE, softmax and all accumulators in f32 (angles in f64); q, k, v, P as f16 operands.
// Masked scores are -1e30 instead of -inf, so that a warp without a visible position has weight 0 and no NaN.
// Bound: memory bandwidth for long contexts and many rows: 70 % of it at 16 rows of 1000 positions on an H200
// (Qwen3-4B); at one row and 1000 positions latency decides: 4.7 us against 1.0 us for the bytes.

#include "common.cuh"
#include "f16_fragments.cuh"
#include "kv.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "q8_activations.cuh"
#include "rope.cuh"

// Whether blocks of a row and KV head are a thread block cluster.
constexpr bool HAS_CLUSTERS = __CUDA_ARCH__ >= 900;
constexpr int CLUSTER_WARPS = 8, AMPERE_WARPS = 4;
constexpr int WARPS = HAS_CLUSTERS ? CLUSTER_WARPS : AMPERE_WARPS;
constexpr int THREADS = WARPS * 32;
constexpr int TILE = 16;      // positions
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
    u16* k_cache;
    u16* v_cache;
    float* q_out;  // the rotated queries; may be `q`
    float* out;
    u8* out_q8;             // single row: the output as q8 activations, or null
    u8* out_f16[K_ORDERS];  // 8 or 16 rows: an eighth of the output as f16 fragments, in both orders,
    float* out_f16_scales;  // with scales of 8; or null
    Fault* fault;
    RopeArgs rope;
    float epsilon;
    float scale;  // of the scores
    u32 n_heads;
    u32 n_kv_heads;
    u32 capacity;
    u32 n_seqs;
    u32 fused_store;  // 0: q is rotated, and the new keys and values are in the cache
    u32 splits;       // blocks per row and KV head
    u32 n_pages;
    u32 unused;
    // Without clusters, if there are several splits:
    float* partials;  // [rows, n_kv_heads, splits, MAX_GROUP * (head_dim + 2)]: O, max and sum of each head
    float* rotated;   // [rows, n_heads, head_dim]: what becomes q_out when all blocks have read q
};
#include "layout/attention_decode.cuh"

// One head in the registers of a warp, as RoPE pairs: lane l holds pairs l + 32 j.
template <int HEAD_DIM>
struct WarpHead {
    static constexpr int PAIRS = HEAD_DIM / 64;
    float first[PAIRS], second[PAIRS];

    static DEVICE u32 pair(int j) { return (threadIdx.x & 31) + 32 * j; }
    static DEVICE u32 first_dim(int j, bool neox) { return rope_first_dim(pair(j), neox); }
    static DEVICE u32 second_dim(int j, bool neox) { return rope_second_dim(pair(j), HEAD_DIM, neox); }

    DEVICE void load(const float* head, bool neox) {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            first[j] = __ldcg(head + first_dim(j, neox));
            second[j] = __ldcg(head + second_dim(j, neox));
        }
    }

    DEVICE void store(float* head, bool neox) const {
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
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

    // The bits of the largest magnitude.
    DEVICE u32 max_abs_bits() const {
        u32 bits = 0;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) bits = max(bits, max(abs_bits(first[j]), abs_bits(second[j])));
        return __reduce_max_sync(FULL_WARP, bits);
    }
};

// Called from two places. The code of a kernel is cold at every launch, so code size costs time.
__device__ __noinline__ float2 rope_cos_sin_noinline(u32 position, u32 pair, u32 n_rot,
                                                     const float* freq_factors, float freq_scale,
                                                     float magnitude, double log2_base) {
    return rope_cos_sin(position, pair, n_rot, freq_factors, freq_scale, magnitude, log2_base);
}

// Stores an eighth of element `at` of a row of the output as f16 fragments. The element is an average of f16
// values, so it fits f16. A sum of 16 eighths may not, but fits the pair (sum, remainder) of
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
#pragma unroll
    for (u32 order = 0; order < K_ORDERS; order++)
        store_fragment_x4(args.out_f16[order], order, gridDim.y, row, at, four, sum);
    if (at == 0) args.out_f16_scales[row] = 8;
}

// ---- Block: what all stages of the kernel know ----

// STAGES: tiles in a warp's ring. SINGLE_ROW: the grid has one row, and the code is kept as short as
// possible.
template <int HEAD_DIM_, int CLUSTER_, int STAGES_, bool SINGLE_ROW_>
struct DecodeBlock {
    static constexpr int HEAD_DIM = HEAD_DIM_, CLUSTER = CLUSTER_, STAGES = STAGES_;
    static constexpr bool SINGLE_ROW = SINGLE_ROW_;
    static constexpr int TILES_PER_ROUND = CLUSTER * WARPS;
    static constexpr int CHUNKS = HEAD_DIM / 8;             // 16-byte chunks of a K or V row
    static constexpr int TILE_BYTES = TILE * HEAD_DIM * 2;  // of K, and of V
    static constexpr float MASKED = -1e30f;
    using Head = WarpHead<HEAD_DIM>;

    struct Shared {
        __align__(16) u16 q[MAX_GROUP][HEAD_DIM + 8];
        float q_scale[MAX_GROUP];
        float warp_max[WARPS][MAX_GROUP], warp_sum[WARPS][MAX_GROUP], block_max[MAX_GROUP];
        float2 cos_sin[SINGLE_ROW ? HEAD_DIM / 2 : 1];
    };

    // What the blocks of the cluster have accumulated for the slice of O that this block finishes.
    static constexpr int SENDERS = HAS_CLUSTERS ? CLUSTER : 1;
    struct ClusterPartials {
        float o[SENDERS][MAX_GROUP * HEAD_DIM / CLUSTER], max[SENDERS][MAX_GROUP], sum[SENDERS][MAX_GROUP];
    };

    const AttentionDecodeArgs& args;
    Shared& shared;
    ClusterPartials& partials;
    u8* const rings;  // of all warps
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const u32 rank = blockIdx.x % CLUSTER, kv_head = blockIdx.x / CLUSTER, row = blockIdx.y;
    const u32 group = args.n_heads / args.n_kv_heads;
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
    const u32 tiles = valid ? position / TILE + 1 : 0, last_tile = position / TILE,
              first_tile = rank + CLUSTER * warp;
    const u32 ring = shared_address(rings) + warp * STAGES * 2 * TILE_BYTES;

    // Elements from the start of a cache to this KV head of a page.
    DEVICE u64 page_offset(u32 page) const {
        return ((u64)page * args.n_kv_heads + kv_head) * (KV_PAGE * HEAD_DIM);
    }

    // Where the new key (or value) of a row at position `at` goes; null if its page is not in the pool, which
    // TileLoader reports.
    DEVICE u16* kv_slot(bool is_key, u32 from_row, u32 at) const {
        const u32 page = SINGLE_ROW || from_row == row ? own_page : pages[at / KV_PAGE];
        if (page >= args.n_pages) return nullptr;
        return (is_key ? args.k_cache : args.v_cache) + page_offset(page) + at % KV_PAGE * HEAD_DIM;
    }

    // Of a tile in shared memory: bytes to a 16-byte chunk.
    static DEVICE u32 chunk_offset(u32 row, u32 chunk) { return (row * CHUNKS + (chunk ^ (row & 7))) * 16; }

    DEVICE DecodeBlock(const AttentionDecodeArgs& args, Shared& shared, ClusterPartials& partials, u8* rings)
        : args(args), shared(shared), partials(partials), rings(rings) {}

    DEVICE void report_invalid_row() const {
        if (valid || blockIdx.x != 0 || threadIdx.x != 0) return;
        if (sequence >= args.n_seqs)
            report(args.fault, FAULT_SEQUENCE, row, sequence, args.n_seqs);
        else
            report(args.fault, FAULT_POSITION, row, position, args.capacity);
    }
};

// ---- Tile loader ----

template <typename Block>
struct TileLoader {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, CLUSTER = Block::CLUSTER, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;
    static constexpr int CHUNKS = Block::CHUNKS, TILE_BYTES = Block::TILE_BYTES;
    static constexpr int ROWS_PER_COPY = 32 / CHUNKS;  // rows that one cp.async of a warp covers

    const Block& block;
    // A lane's chunk in a copy of ROWS_PER_COPY rows: bytes in shared memory, elements in the cache. Copy i
    // has row i * ROWS_PER_COPY + copy_row of the tile. The two terms have no bits in common, so the swizzle
    // XORs the chunk with copy_row here and with i * ROWS_PER_COPY % 8, a constant, in load_tile.
    const u32 copy_row = block.lane / CHUNKS, copy_chunk = block.lane % CHUNKS;
    const u32 copy_to = copy_row * CHUNKS * 16 + ((copy_chunk ^ copy_row) * 16);
    const u32 copy_from = copy_row * HEAD_DIM + copy_chunk * 8;
    // The page of the warp's tile of round `lane` of the 32 that are being loaded.
    u32 lane_page;
    u32 invalid_page = 0;  // the last one that this lane has found, if it is none of the pool

    DEVICE explicit TileLoader(const Block& block) : block(block) { look_up_pages(0); }

    DEVICE u32 lane_tile(u32 first_round) const {
        return block.first_tile + (first_round + block.lane) * Block::TILES_PER_ROUND;
    }

    // Looks up the pages of 32 rounds.
    DEVICE void look_up_pages(u32 first_round) {
        lane_page = block.pages[min(lane_tile(first_round) / (KV_PAGE / TILE), block.max_page)];
    }

    // Notes a page of the 32 rounds that is not in the pool; the first page is read instead.
    DEVICE void check_pages(u32 first_round) {
        if (lane_page < block.args.n_pages) return;
        if (lane_tile(first_round) < block.tiles) invalid_page = lane_page;
        lane_page = 0;
    }

    // At the end of the kernel: a call in the mainloop would cost registers.
    DEVICE void report_invalid_page() const {
        if (invalid_page >= block.args.n_pages && block.kv_head == 0)
            report(block.args.fault, FAULT_PAGE, block.row, invalid_page, block.args.n_pages);
    }

    // Requests the tile of K and V of a round; positions from `limit` on are zero-filled, since P = 0 times a
    // stale NaN is NaN. Called by whole warps.
    DEVICE void load_tile(u32 round, u32 tile, u32 stage, u32 limit) const {
        const u32 to = block.ring + stage * 2 * TILE_BYTES;
        const u32 page = __shfl_sync(FULL_WARP, lane_page, round % 32);
        const u64 from = block.page_offset(page) + tile % (KV_PAGE / TILE) * (TILE * HEAD_DIM) + copy_from;
        const u16 *k = block.args.k_cache + from, *v = block.args.v_cache + from;
        if (!SINGLE_ROW && tile * TILE + TILE <= limit) {
#pragma unroll
            for (int i = 0; i < TILE / ROWS_PER_COPY; i++) {
                u32 at = to + i * ROWS_PER_COPY * CHUNKS * 16 + (copy_to ^ ((i * ROWS_PER_COPY) % 8 * 16));
                cp_async_16(at, k + i * ROWS_PER_COPY * HEAD_DIM);
                cp_async_16(at + TILE_BYTES, v + i * ROWS_PER_COPY * HEAD_DIM);
            }
        } else {
#pragma unroll(SINGLE_ROW ? TILE / ROWS_PER_COPY : 1)
            for (u32 i = 0; i < TILE / ROWS_PER_COPY; i++) {
                u32 at = to + i * ROWS_PER_COPY * CHUNKS * 16 + (copy_to ^ ((i * ROWS_PER_COPY) % 8 * 16));
                if (tile * TILE + i * ROWS_PER_COPY + copy_row < limit) {
                    cp_async_16(at, k + i * ROWS_PER_COPY * HEAD_DIM);
                    cp_async_16(at + TILE_BYTES, v + i * ROWS_PER_COPY * HEAD_DIM);
                } else {
                    st_shared_v4_zero(at);
                    st_shared_v4_zero(at + TILE_BYTES);
                }
            }
        }
    }

    // Fills the ring but for its last stage, one commit group per tile.
    DEVICE void load_first_tiles(u32 limit) {
        check_pages(0);
#pragma unroll 1
        for (u32 round = 0; round < STAGES - 1; round++) {
            u32 tile = block.first_tile + round * Block::TILES_PER_ROUND;
            if (tile < block.tiles) load_tile(round, tile, round, limit);
            cp_async_commit();
        }
    }
};

// ---- Prologue ----

template <typename Block>
struct Prologue {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, CLUSTER = Block::CLUSTER, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;
    static constexpr int TILE_BYTES = Block::TILE_BYTES;
    using Head = typename Block::Head;

    const Block& block;
    u32 new_rows = 0;      // bit r: this block stores the new key and value of row r
    bool only_row = true;  // no other row is of this one's sequence
    float2 cos_sin[Head::PAIRS];
    u32 cos_sin_position;
    Head query;  // the rotated query of head `warp` of the group

    DEVICE explicit Prologue(const Block& block) : block(block) {}

    // Sets `new_rows` and `only_row`: the rows of this one's sequence, up to its position, whose tile is this
    // block's.
    DEVICE void find_new_rows() {
        if (!block.args.fused_store || !block.valid) return;
        if (SINGLE_ROW) {
            new_rows = block.position / TILE % CLUSTER == block.rank;
            return;
        }
        u32 rows = gridDim.y, other_position = 0, other_sequence = 0;
        if (block.lane < rows) {
            other_position = block.args.positions[block.lane];
            if (block.args.sequences) other_sequence = block.args.sequences[block.lane];
        }
        u32 same_sequence_rows = __ballot_sync(~0u, block.lane < rows && other_sequence == block.sequence);
        only_row = same_sequence_rows == 1u << block.row;
        // Of rows with the same position the last wins.
        u32 later = __match_any_sync(~0u, other_position) & same_sequence_rows & (~1u << block.lane);
        bool stores = (same_sequence_rows >> block.lane & 1) && other_position <= block.position &&
                      later == 0 && other_position / TILE % CLUSTER == block.rank;
        new_rows = __ballot_sync(~0u, stores);
    }

    // cos and sin of this lane's pairs at the row's position, before the wait for the previous kernel. With a
    // single row each is computed once per block and read from shared memory after the next barrier.
    DEVICE void compute_rotation() {
        cos_sin_position = block.position;
        if (!block.args.fused_store) return;
        if (!SINGLE_ROW)
            rotation_at(block.position);
        else if (threadIdx.x < HEAD_DIM / 2)
            block.shared.cos_sin[threadIdx.x] = rope_cos_sin(
                block.position, threadIdx.x, HEAD_DIM, block.args.rope.freq_factors,
                block.args.rope.freq_scale, block.args.rope.magnitude, block.args.rope.log2_base);
    }

    DEVICE void rotation_at(u32 at) {
#pragma unroll
        for (int j = 0; j < Head::PAIRS; j++)
            cos_sin[j] = rope_cos_sin_noinline(at, block.lane + 32 * j, HEAD_DIM,
                                               block.args.rope.freq_factors, block.args.rope.freq_scale,
                                               block.args.rope.magnitude, block.args.rope.log2_base);
    }

    DEVICE void read_rotation() {
        if constexpr (SINGLE_ROW) {
            if (!block.args.fused_store) return;
#pragma unroll
            for (int j = 0; j < Head::PAIRS; j++) cos_sin[j] = block.shared.cos_sin[block.lane + 32 * j];
        }
    }

    // Query heads of the group that do not exist are zero.
    DEVICE void clear_queries() {
        for (u32 i = threadIdx.x; i < MAX_GROUP * (HEAD_DIM + 8) / 2; i += THREADS)
            ((u32*)block.shared.q)[i] = 0;
        if (threadIdx.x < MAX_GROUP) block.shared.q_scale[threadIdx.x] = 0;
    }

    // Query head `head` of the group, by one warp: norm, RoPE, and f16 scaled by a power of two so that any
    // query fits.
    DEVICE void prepare_query(u32 head) {
        query.load(block.args.q +
                       ((u64)block.row * block.args.n_heads + block.kv_head * block.group + head) * HEAD_DIM,
                   block.neox);
        if (block.args.fused_store) {
            if (block.args.q_gamma) query.rms_norm(block.args.q_gamma, block.neox, block.args.epsilon);
            query.rotate(cos_sin);
            // A warp may have several heads, so they are not kept for the epilogue.
            if (!HAS_CLUSTERS && block.rank == 0)
                query.store(
                    (CLUSTER == 1 ? block.args.q_out : block.args.rotated) +
                        ((u64)block.row * block.args.n_heads + block.kv_head * block.group + head) * HEAD_DIM,
                    block.neox);
        }
        const Pow2Scale scale = Pow2Scale::of<0>(query.max_abs_bits());
#pragma unroll
        for (int j = 0; j < Head::PAIRS; j++) {
            block.shared.q[head][Head::first_dim(j, block.neox)] = f32_to_f16(query.first[j] * scale.down);
            block.shared.q[head][Head::second_dim(j, block.neox)] = f32_to_f16(query.second[j] * scale.down);
        }
        if (block.lane == 0) block.shared.q_scale[head] = scale.up * block.args.scale * LOG2_E;
    }

    // Key (even `index`) or value (odd) of the new row `index / 2` of `new_rows`, by one warp.
    DEVICE void store_new_kv(u32 index) {
        const bool is_key = index % 2 == 0;
        u32 from_row = block.row, at = block.position;
        if (!SINGLE_ROW) {
            u32 left = new_rows;
            for (u32 skipped = index / 2; skipped > 0; skipped--) left &= left - 1;
            from_row = __ffs(left) - 1;
        }
        Head head;
        head.load((is_key ? block.args.k : block.args.v) +
                      ((u64)from_row * block.args.n_kv_heads + block.kv_head) * HEAD_DIM,
                  block.neox);
        if (!SINGLE_ROW && from_row != block.row) at = block.args.positions[from_row];
        if (is_key) {
            if (!SINGLE_ROW && at != cos_sin_position) rotation_at(at);  // the warp's query is done
            cos_sin_position = at;
            if (block.args.k_gamma) head.rms_norm(block.args.k_gamma, block.neox, block.args.epsilon);
            head.rotate(cos_sin);
        }
        u16* cache = block.kv_slot(is_key, from_row, at);
        // A tile that was requested before has zeros at this position and is read after the next barrier; a
        // later tile is loaded from the cache after that barrier.
        const bool loaded = only_row && block.last_tile < Block::TILES_PER_ROUND * (STAGES - 1);
        const u32 tile_row = at % TILE, owner_warp = block.last_tile / CLUSTER % WARPS,
                  stage = block.last_tile / Block::TILES_PER_ROUND;
        u8* tile = block.rings + (owner_warp * STAGES + stage) * 2 * TILE_BYTES + (is_key ? 0 : TILE_BYTES);
#pragma unroll
        for (int j = 0; j < Head::PAIRS; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 dim = half ? Head::second_dim(j, block.neox) : Head::first_dim(j, block.neox);
                u16 bits = f32_to_f16(half ? head.second[j] : head.first[j]);
                if (cache) cache[dim] = bits;
                if (loaded) *(u16*)(tile + Block::chunk_offset(tile_row, dim / 8) + dim % 8 * 2) = bits;
            }
        }
    }

    // One warp per job: the query heads, then keys and values of the new rows.
    DEVICE void run() {
        const u32 jobs = block.group + (SINGLE_ROW ? 2 : 2 * __popc(new_rows));
        for (u32 job = block.warp; job < jobs; job += WARPS) {
            if (job < block.group)
                prepare_query(job);
            else if (!SINGLE_ROW || new_rows)
                store_new_kv(job - block.group);
        }
    }
};

// ---- Mainloop ----

template <typename Block>
struct Mainloop {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, CLUSTER = Block::CLUSTER, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;
    static constexpr int TILE_BYTES = Block::TILE_BYTES, TILES_PER_ROUND = Block::TILES_PER_ROUND;

    const Block& block;
    // A warp's state of the online softmax: lane 4 g + t holds query head g and of O dims 8 i + 2 t and 8 i +
    // 2 t + 1.
    u32 q_fragments[HEAD_DIM / 16][2];
    float q_scale;
    float o[HEAD_DIM / 8][2];
    float row_max, row_sum;

    DEVICE explicit Mainloop(const Block& block) : block(block) {}

    DEVICE void begin() {
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            q_fragments[step][0] =
                *(const u32*)&block.shared.q[block.lane / 4][step * 16 + block.lane % 4 * 2];
            q_fragments[step][1] =
                *(const u32*)&block.shared.q[block.lane / 4][step * 16 + block.lane % 4 * 2 + 8];
        }
        q_scale = block.shared.q_scale[block.lane / 4];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) o[i][0] = o[i][1] = 0;
        row_max = Block::MASKED, row_sum = 0;
    }

    // S = Q K^T of a tile: s[i][j] is position 8 i + 2 t + j. Even and odd steps have accumulators of their
    // own, which makes for shorter chains (not in SINGLE_ROW, to save code).
    DEVICE void compute_scores(u32 k_tile, float (&s)[2][2], float (&s_odd)[2][2]) {
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            // Matrices: positions 0-7 and 8-15, first and second 8 dims.
            u32 b[4];
            ldmatrix_x4(b, k_tile + Block::chunk_offset((block.lane & 7) + (block.lane / 16) * 8,
                                                        step * 2 + (block.lane / 8) % 2));
            const u32(&q)[2] = q_fragments[step];
            mma_m16n8k16_f16_rows0_7(!SINGLE_ROW && step % 2 ? s_odd[0] : s[0], q[0], q[1], b[0], b[1]);
            mma_m16n8k16_f16_rows0_7(!SINGLE_ROW && step % 2 ? s_odd[1] : s[1], q[0], q[1], b[2], b[3]);
        }
    }

    // Turns scores into P = 2^(S - max) and returns the factor that rescales what was accumulated before.
    DEVICE float online_softmax(u32 tile, float (&s)[2][2], const float (&s_odd)[2][2]) {
        float new_max = row_max;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 p = tile * TILE + i * 8 + block.lane % 4 * 2 + j;
                s[i][j] = p <= block.position ? (SINGLE_ROW ? s[i][j] : s[i][j] + s_odd[i][j]) * q_scale
                                              : Block::MASKED;
                new_max = fmaxf(new_max, s[i][j]);
            }
        new_max = quad_max(new_max);
        const float rescale = exp2f(row_max - new_max);
        row_max = new_max;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 p = tile * TILE + i * 8 + block.lane % 4 * 2 + j;
                s[i][j] = p <= block.position ? exp2f(s[i][j] - new_max) : 0;
                sum += s[i][j];
            }
        row_sum = row_sum * rescale + sum;
        return rescale;
    }

    // O = rescale * O + P V.
    DEVICE void accumulate_values(u32 v_tile, const float (&p)[2][2], float rescale) {
        const u32 p0 = pack_f16x2(p[0][0], p[0][1]), p1 = pack_f16x2(p[1][0], p[1][1]);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            o[i][0] *= rescale;
            o[i][1] *= rescale;
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            // Matrices: positions 0-7 and 8-15 of the first 8 dims, then of the second.
            u32 b[4];
            ldmatrix_x4_trans(b, v_tile + Block::chunk_offset((block.lane & 7) + (block.lane / 8) % 2 * 8,
                                                              i * 2 + block.lane / 16));
            mma_m16n8k16_f16_rows0_7(o[2 * i], p0, p1, b[0], b[1]);
            mma_m16n8k16_f16_rows0_7(o[2 * i + 1], p0, p1, b[2], b[3]);
        }
    }

    DEVICE void run(TileLoader<Block>& loader) {
        begin();
        u32 stage = 0, next_round = STAGES - 1;
        for (u32 tile = block.first_tile; tile < block.tiles; tile += TILES_PER_ROUND, next_round++) {
            const u32 next = tile + (STAGES - 1) * TILES_PER_ROUND,
                      k_tile = block.ring + stage * 2 * TILE_BYTES;
            if (next_round % 32 == 0) {
                loader.look_up_pages(next_round);
                loader.check_pages(next_round);
            }
            // The previous stage is free. The newest position of a later round is in the cache, written by
            // this block.
            if (next < block.tiles)
                loader.load_tile(next_round, next, stage == 0 ? STAGES - 1 : stage - 1, block.position + 1);
            cp_async_commit();
            cp_async_wait<STAGES - 1>();
            __syncwarp();
            float s[2][2] = {}, s_odd[2][2] = {};
            compute_scores(k_tile, s, s_odd);
            const float rescale = online_softmax(tile, s, s_odd);
            accumulate_values(k_tile + TILE_BYTES, s, rescale);
            __syncwarp();
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        cp_async_wait<0>();
        row_sum = quad_sum(row_sum);
    }
};

// ---- Combine and epilogue ----

// Where the partial result of a split lies in `partials`.
template <int HEAD_DIM>
DEVICE u64 partial_offset(const AttentionDecodeArgs& args, u32 row, u32 kv_head, u32 split) {
    return (((u64)row * args.n_kv_heads + kv_head) * args.splits + split) * (MAX_GROUP * (HEAD_DIM + 2));
}

template <typename Block>
struct Epilogue {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, CLUSTER = Block::CLUSTER, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;

    const Block& block;
    const Mainloop<Block>& mainloop;

    DEVICE Epilogue(const Block& block, const Mainloop<Block>& mainloop) : block(block), mainloop(mainloop) {}

    // Brings the warps to one max per head and puts their O and sums into shared memory; O reuses that of the
    // rings.
    DEVICE void share_warp_partials() {
        if (block.lane % 4 == 0) block.shared.warp_max[block.warp][block.lane / 4] = mainloop.row_max;
        __syncthreads();
        float* warp_o = (float*)block.rings;  // [WARPS][MAX_GROUP][HEAD_DIM]
        if (block.lane / 4 < block.group) {
            float block_max = Block::MASKED;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                block_max = fmaxf(block_max, block.shared.warp_max[w][block.lane / 4]);
            const float weight = exp2f(mainloop.row_max - block_max);
            if (block.lane % 4 == 0) {
                block.shared.warp_sum[block.warp][block.lane / 4] = mainloop.row_sum * weight;
                if (block.warp == 0) block.shared.block_max[block.lane / 4] = block_max;
            }
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 8; i++)
                *(float2*)(warp_o + (block.warp * MAX_GROUP + block.lane / 4) * HEAD_DIM + i * 8 +
                           block.lane % 4 * 2) =
                    make_float2(mainloop.o[i][0] * weight, mainloop.o[i][1] * weight);
        }
        __syncthreads();
    }

    // Element `at` of the group's output, in all its forms.
    DEVICE void write_output(u32 at, float value) {
        block.args.out[((u64)block.row * block.args.n_heads + block.kv_head * block.group) * HEAD_DIM + at] =
            value;
        if (SINGLE_ROW && block.args.out_q8)
            quantize_q8_row_x1(block.args.out_q8, block.kv_head * block.group * HEAD_DIM + at, value);
        if (!SINGLE_ROW && block.args.out_f16_scales)
            store_f16_fragment(block.args, block.row, block.kv_head * block.group * HEAD_DIM + at, value);
    }

    // Adds up the warps' partials. A single block writes the output; in a cluster each element goes to the
    // block that finishes it, `slice` elements per block.
    DEVICE void combine_warps(u32 slice) {
        const float* warp_o = (const float*)block.rings;
        const float inverse = __fdividef(1.0f, (float)slice);
        if constexpr (HAS_CLUSTERS && CLUSTER > 1) cluster_wait();  // all blocks have started
        for (u32 at = threadIdx.x; at < block.group * HEAD_DIM; at += THREADS) {
            u32 head = at / HEAD_DIM;
            float o = 0, sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                o += warp_o[w * MAX_GROUP * HEAD_DIM + at];
                sum += block.shared.warp_sum[w][head];
            }
            if (CLUSTER == 1) {
                write_output(at, o / sum);
            } else if constexpr (!HAS_CLUSTERS) {
                float* to = block.args.partials +
                            partial_offset<HEAD_DIM>(block.args, block.row, block.kv_head, block.rank);
                to[at] = o;
                if (at % HEAD_DIM == 0) {
                    to[MAX_GROUP * HEAD_DIM + head] = block.shared.block_max[head];
                    to[MAX_GROUP * (HEAD_DIM + 1) + head] = sum;
                }
            } else {
                const u32 to = (u32)(((float)at + 0.5f) * inverse), index = at - to * slice;
                st_shared_cluster(&block.partials.o[block.rank][index], to, o);
                if (index == 0 || at % HEAD_DIM == 0) {
                    st_shared_cluster(&block.partials.max[block.rank][head], to,
                                      block.shared.block_max[head]);
                    st_shared_cluster(&block.partials.sum[block.rank][head], to, sum);
                }
            }
        }
    }

    // Combines the partials of all blocks for this block's slice and writes it.
    DEVICE void combine_cluster(u32 slice) {
        for (u32 index = threadIdx.x; index < slice; index += THREADS) {
            const u32 at = block.rank * slice + index, head = at / HEAD_DIM;
            float cluster_max = Block::MASKED, o = 0, sum = 0;
#pragma unroll
            for (int r = 0; r < CLUSTER; r++) cluster_max = fmaxf(cluster_max, block.partials.max[r][head]);
#pragma unroll
            for (int r = 0; r < CLUSTER; r++) {
                const float weight = exp2f(block.partials.max[r][head] - cluster_max);
                o += weight * block.partials.o[r][index];
                sum += weight * block.partials.sum[r][head];
            }
            write_output(at, o / sum);
        }
    }

    // `query`: the warp's rotated query.
    DEVICE void run(const typename Block::Head& query) {
        share_warp_partials();
        const u32 slice = block.group * HEAD_DIM / CLUSTER;
        combine_warps(slice);
        if constexpr (!HAS_CLUSTERS) return;
        if constexpr (CLUSTER > 1) {
            cluster_arrive();
            cluster_wait();
        }
        // q_out may be q: all blocks have read it.
        if (block.args.fused_store && block.rank == 0 && block.warp < block.group)
            query.store(block.args.q_out +
                            ((u64)block.row * block.args.n_heads + block.kv_head * block.group + block.warp) *
                                HEAD_DIM,
                        block.neox);
        if constexpr (HAS_CLUSTERS && CLUSTER > 1) combine_cluster(slice);
    }
};

// Without clusters: combines the splits of a row, one element of the output per thread.
template <int HEAD_DIM>
DEVICE void combine_splits(const AttentionDecodeArgs& args) {
    const u32 row = blockIdx.y, width = args.n_heads * HEAD_DIM, at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= width) return;
    const u32 group = args.n_heads / args.n_kv_heads, kv_head = at / (group * HEAD_DIM);
    const u32 index = at - kv_head * group * HEAD_DIM, head = index / HEAD_DIM;
    float max = -1e30f, o = 0, sum = 0;
#pragma unroll 4
    for (u32 split = 0; split < args.splits; split++) {
        const float* from = args.partials + partial_offset<HEAD_DIM>(args, row, kv_head, split);
        const float other = from[MAX_GROUP * HEAD_DIM + head], all = fmaxf(max, other);
        const float rescale = exp2f(max - all), weight = exp2f(other - all);
        o = o * rescale + weight * from[index];
        sum = sum * rescale + weight * from[MAX_GROUP * (HEAD_DIM + 1) + head];
        max = all;
    }
    const u64 element = (u64)row * width + at;
    args.out[element] = o / sum;
    if (args.out_q8) quantize_q8_row_x1(args.out_q8, at, o / sum);
    if (args.fused_store) args.q_out[element] = args.rotated[element];
}

template <typename Block>
DEVICE void attention_decode(const AttentionDecodeArgs& args) {
    extern __shared__ __align__(128) u8 rings[];
    __shared__ typename Block::Shared shared;
    __shared__ typename Block::ClusterPartials partials;
    pdl_launch_dependents();
    if constexpr (HAS_CLUSTERS && Block::CLUSTER > 1) cluster_arrive();
    // The step's weights have evicted the gammas from L2: prefetched before anything is waited for.
    if (HAS_CLUSTERS && threadIdx.x == 0 && blockIdx.x % Block::CLUSTER == 0) {
        if (args.q_gamma) cp_async_bulk_prefetch_l2_covering(args.q_gamma, Block::HEAD_DIM * 4);
        if (args.k_gamma) cp_async_bulk_prefetch_l2_covering(args.k_gamma, Block::HEAD_DIM * 4);
    }
    const Block block(args, shared, partials, rings);
    TileLoader<Block> loader(block);
    Prologue<Block> prologue(block);
    prologue.find_new_rows();
    if (!args.fused_store) pdl_wait();
    if (prologue.only_row) loader.load_first_tiles(block.cached);
    prologue.compute_rotation();
    prologue.clear_queries();
    __syncthreads();
    prologue.read_rotation();
    if (args.fused_store) pdl_wait();
    prologue.run();
    block.report_invalid_row();
    // What a warp has stored to the cache is read by cp.async of other warps after the barrier: the fence
    // orders these stores for the block explicitly.
    __threadfence_block();
    __syncthreads();
    if (!Block::SINGLE_ROW && !prologue.only_row) loader.load_first_tiles(block.position + 1);
    Mainloop<Block> mainloop(block);
    mainloop.run(loader);
    Epilogue<Block>(block, mainloop).run(prologue.query);
    loader.report_invalid_page();
}

#define KERNEL(NAME, HEAD_DIM, CLUSTER, STAGES, SINGLE_ROW)                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                        \
        attention_decode_##HEAD_DIM##_##NAME(const __grid_constant__ AttentionDecodeArgs args) { \
        attention_decode<DecodeBlock<HEAD_DIM, CLUSTER, STAGES, SINGLE_ROW>>(args);              \
    }
KERNEL(single_row, 64, 8, 2, true)
KERNEL(single_row, 128, 8, 2, true)
// Rings of 192 KiB with heads of 128 dims, of 128 KiB with heads of 64; without clusters of 64 KiB.
#define KERNELS(CLUSTER)                            \
    KERNEL(cluster##CLUSTER, 64, CLUSTER, 4, false) \
    KERNEL(cluster##CLUSTER, 128, CLUSTER, HAS_CLUSTERS ? 3 : 2, false)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)

#if __CUDA_ARCH__ < 900
#define COMBINE(HEAD_DIM)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                       \
        attention_decode_combine_##HEAD_DIM(const __grid_constant__ AttentionDecodeArgs args) { \
        combine_splits<HEAD_DIM>(args);                                                         \
    }
COMBINE(64)
COMBINE(128)
#endif
