// Decode attention (attention_decode.cu): the loader of K and V tiles, and the prologue, which prepares the
// queries and, with the fused store, rotates and stores the new keys and values.
#pragma once

#include "attention_decode_block.cuh"

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
