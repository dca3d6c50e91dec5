// Decode attention (attention_decode.cu): the loader of K and V tiles, and the prologue, which prepares the
// queries and, with the fused store, rotates and stores the new keys and values.
#pragma once

#include "attention_decode_block.cuh"

// ---- Tile loader ----

template <typename Block>
struct TileLoader {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, SPLITS = Block::SPLITS, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;

    const Block& block;
    const TileCopy<Block, Block::TYPE> copy{block.lane};
    // The page of the warp's tile of round `lane` of the 32 that are being loaded; once checked, the number
    // of this KV head of that page in the pool.
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
        if (lane_page >= block.args.n_pages) {
            if (lane_tile(first_round) < block.tiles) invalid_page = lane_page;
            lane_page = 0;
        }
        lane_page = lane_page * block.args.n_kv_heads + block.kv_head;
    }

    // Where the tile of a round lies. Called by whole warps, for one round after the other.
    DEVICE u32 head_page(u32 round) {
        if (round % 32 == 0) {
            if (round != 0) look_up_pages(round);
            check_pages(round);
        }
        return __shfl_sync(FULL_WARP, lane_page, round % 32);
    }

    // At the end of the kernel: a call in the mainloop would cost registers.
    DEVICE void report_invalid_page() const {
        if (invalid_page >= block.args.n_pages && block.kv_head == 0)
            report(block.args.fault, FAULT_PAGE, block.row, invalid_page, block.args.n_pages);
    }

    // Requests a tile of K and V; positions from `limit` on have no effect. Called by whole warps.
    DEVICE void load_tile(u32 head_page, u32 tile, u32 stage, u32 limit) const {
        const u32 to = block.ring + stage * Block::STAGE_BYTES;
        const u64 from = (u64)head_page * Block::Tile::PAGE_BYTES;
        copy.load(to, block.args.k_cache + from, block.args.v_cache + from, tile, limit);
    }

    // Fills the ring but for its last stage, one commit group per tile.
    DEVICE void load_first_tiles(u32 limit) {
#pragma unroll 1
        for (u32 round = 0; round < STAGES - 1; round++) {
            const u32 tile = block.first_tile + round * Block::TILES_PER_ROUND, page = head_page(round);
            if (tile < block.tiles) load_tile(page, tile, round, limit);
            cp_async_commit();
        }
    }
};

// ---- Prologue ----

// Which of rows `first` to `first + 31` the block `split` of `splits` of the row with this sequence and
// position stores to the cache: those of the sequence, up to the position, whose tile is the block's. Of rows
// with the same position the last wins. Called by whole warps; for batches of more than 32 rows in which
// several are of one sequence.
__device__ __noinline__ u32 rows_to_store(const u32* positions, const u32* sequences, u32 rows, u32 first,
                                          u32 sequence, u32 position, u32 split, u32 splits) {
    const u32 lane = threadIdx.x & 31;
    auto position_of = [&](u32 row) {
        const bool same = row < rows && (sequences ? sequences[row] : 0) == sequence;
        return same ? positions[row] : ~0u;
    };
    const u32 own = position_of(first + lane);
    bool stores = own <= position && own / TILE % splits == split;
#pragma unroll 1
    for (u32 start = first; start < rows; start += 32) {
        const u32 other = position_of(start + lane);
#pragma unroll 1
        for (u32 i = 0; i < 32; i++)
            if (__shfl_sync(FULL_WARP, other, i) == own && start + i > first + lane) stores = false;
    }
    return __ballot_sync(FULL_WARP, stores);
}

// With the fused store: whose keys and values a block stores.
template <typename Block>
struct NewRows {
    static constexpr int SPLITS = Block::SPLITS;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;

    const Block& block;
    // The rows whose new keys and values this block stores: bit r is row r. With many_rows(), which a mask
    // does not hold, their number.
    u32 new_rows = 0;
    bool only_row = true;  // no other row is of this one's sequence

    DEVICE explicit NewRows(const Block& block) : block(block) {}

    // Sets `new_rows` and `only_row`: the rows of this one's sequence, up to its position, whose tile is this
    // block's.
    DEVICE void find_new_rows() {
        if (!block.args.fused_store || !block.valid) return;
        if (SINGLE_ROW) {
            new_rows = block.position / TILE % SPLITS == block.split;
            return;
        }
        u32 rows = gridDim.y, other_position = 0, other_sequence = 0;
        if (many_rows()) return find_among_many_rows(rows);
        if (block.lane < rows) {
            other_position = block.args.positions[block.lane];
            if (block.args.sequences) other_sequence = block.args.sequences[block.lane];
        }
        u32 same_sequence_rows = __ballot_sync(~0u, block.lane < rows && other_sequence == block.sequence);
        only_row = same_sequence_rows == 1u << block.row;
        // Of rows with the same position the last wins.
        u32 later = __match_any_sync(~0u, other_position) & same_sequence_rows & (~1u << block.lane);
        bool stores = (same_sequence_rows >> block.lane & 1) && other_position <= block.position &&
                      later == 0 && other_position / TILE % SPLITS == block.split;
        new_rows = __ballot_sync(~0u, stores);
    }

    // More rows than one ballot holds: only with clusters, as without them registers would spill.
    static DEVICE bool many_rows() { return HAS_CLUSTERS && gridDim.y > 32; }

    DEVICE u32 to_store(u32 first) const {
        return rows_to_store(block.args.positions, block.args.sequences, gridDim.y, first, block.sequence,
                             block.position, block.split, SPLITS);
    }

    DEVICE void find_among_many_rows(u32 rows) {
        u32 same_sequence = 0;
#pragma unroll 4
        for (u32 row = block.lane; row < rows; row += 32)
            same_sequence += !block.args.sequences || block.args.sequences[row] == block.sequence;
        only_row = __reduce_add_sync(FULL_WARP, same_sequence) == 1;
        if (only_row) {
            new_rows = block.position / TILE % SPLITS == block.split;
        } else {
#pragma unroll 1
            for (u32 first = 0; first < rows; first += 32) new_rows += __popc(to_store(first));
        }
    }

    // The row of the new key and value number `index` of this block.
    DEVICE u32 new_row(u32 index) const {
        if (many_rows() && only_row) return block.row;
        u32 left = new_rows, first = 0;
        if (many_rows()) {
            left = to_store(0);
            while (index >= __popc(left)) index -= __popc(left), first += 32, left = to_store(first);
        }
        for (; index > 0; index--) left &= left - 1;
        return first + __ffs(left) - 1;
    }

    DEVICE u32 n_new_rows() const { return many_rows() ? new_rows : __popc(new_rows); }
};

template <typename Block>
struct Prologue : NewRows<Block> {
    static constexpr int HEAD_DIM = Block::HEAD_DIM, SPLITS = Block::SPLITS, STAGES = Block::STAGES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;
    using Head = typename Block::Head;
    using NewRows<Block>::block, NewRows<Block>::new_rows, NewRows<Block>::only_row;

    float2 cos_sin[Head::PAIRS];
    u32 cos_sin_position;
    Head query;  // the rotated query of head `warp` of the group

    DEVICE explicit Prologue(const Block& block) : NewRows<Block>(block) {}

    // The lane's pair j, or the last one of the head.
    static DEVICE u32 rotated_pair(int j) {
        return HEAD_DIM % 64 == 0 ? Head::pair(j) : min(Head::pair(j), HEAD_DIM / 2 - 1);
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
            cos_sin[j] = rope_cos_sin_noinline(at, rotated_pair(j), HEAD_DIM, block.args.rope.freq_factors,
                                               block.args.rope.freq_scale, block.args.rope.magnitude,
                                               block.args.rope.log2_base);
    }

    DEVICE void read_rotation() {
        if constexpr (SINGLE_ROW) {
            if (!block.args.fused_store) return;
#pragma unroll
            for (int j = 0; j < Head::PAIRS; j++) cos_sin[j] = block.shared.cos_sin[rotated_pair(j)];
        }
    }

    // Query heads of the group that do not exist are zero.
    DEVICE void clear_queries() {
        for (u32 i = threadIdx.x; i < sizeof(block.shared.q) / 4; i += Block::THREADS)
            ((u32*)&block.shared.q)[i] = 0;
        if (threadIdx.x < MAX_GROUP) block.shared.q_scale[threadIdx.x] = 0;
    }

    // The scale of the scores in base 2.
    DEVICE float score_scale() const {
        const float scale = block.args.scale;
        if constexpr (!Block::SCORE_MODS) return scale * LOG2_E;
        const ScoreArgs& scores = block.args.scores;
        return scale * scores.temperature(block.position) * scores.base2_scale();
    }

    // Query head `head` of the group, by one warp: norm, RoPE, and scaling by a power of two, so that any
    // query fits the operands of the MMA.
    DEVICE void prepare_query(u32 head) {
        query.load(
            block.args.q + ((u64)block.row * block.args.n_heads + block.part.first_head + head) * HEAD_DIM,
            block.neox);
        if (block.args.fused_store) {
            if (block.args.q_gamma) query.rms_norm(block.args.q_gamma, block.neox, block.args.epsilon);
            query.rotate(cos_sin);
            // A warp may have several heads, so they are not kept for the epilogue.
            if (!HAS_CLUSTERS && block.split == 0)
                query.store(
                    (SPLITS == 1 ? block.args.q_out : block.args.rotated) +
                        ((u64)block.row * block.args.n_heads + block.part.first_head + head) * HEAD_DIM,
                    block.neox);
        }
        const float up = block.shared.q.store(query, head, block.neox);
        if (block.lane == 0) block.shared.q_scale[head] = up * score_scale();
    }

    // Key (even `index`) or value (odd) of the new row `index / 2` of `new_rows`, by one warp.
    DEVICE void store_new_kv(u32 index) {
        const bool is_key = index % 2 == 0;
        u32 from_row = block.row, at = block.position;
        if (!SINGLE_ROW) from_row = this->new_row(index / 2);
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
        // If the row's own tile was requested before the wait, it lacks this position: write it into shared
        // memory, too. Later tiles are loaded from the cache after the barrier.
        const u32 owner_warp = block.last_tile / SPLITS % Block::WARPS,
                  round = block.round_of(block.last_tile, owner_warp);
        const bool loaded = only_row && round < STAGES - 1;
        u8* tile = block.rings + (owner_warp * STAGES + round) * Block::STAGE_BYTES;
        Block::Tile::store_new(head, block.neox, is_key, at, block.kv_page(is_key, from_row, at), tile,
                               loaded);
    }

    // One warp per job: the query heads, then keys and values of the new rows.
    DEVICE void run() {
        if (Block::SCORE_MODS && threadIdx.x < block.group)
            block.shared.sinks[threadIdx.x] = block.args.scores.sink_of(block.part.first_head + threadIdx.x);
        const u32 jobs = block.group + (SINGLE_ROW ? 2 : 2 * this->n_new_rows());
        for (u32 job = block.warp; job < jobs; job += Block::WARPS) {
            if (job < block.group)
                prepare_query(job);
            else if (!SINGLE_ROW || new_rows)
                store_new_kv(job - block.group);
        }
    }
};
