// Decode attention (attention_decode.cu) over an f16 cache. A tile in shared memory is 16 rows of K, then 16
// of V; 16-byte chunk c of row r is stored at chunk c ^ (r % 8), which keeps ldmatrix free of bank conflicts.
// Rows of 80 and 96 dims are no multiple of 128 bytes, so chunks are stored chunk-major there: chunk c of
// rows 8 i to 8 i + 7 is one line of 128 bytes, whose rows are XOR-swizzled by c and the row's parity.
#pragma once

#include "attention_decode_block.cuh"

// What f16 and f32 tiles have in common: values in 16-byte chunks.
template <typename Tile>
struct ChunkedValues {
    // Zeroes the values of the first `rows` positions of a tile in shared memory, by one warp.
    static DEVICE void clear_values(u32 lane, u32 tile, u32 rows) {
#pragma unroll 1
        for (u32 i = lane; i < rows * Tile::CHUNKS; i += 32)
            st_shared_v4_zero(tile + Tile::TILE_BYTES +
                              Tile::value_offset(i / Tile::CHUNKS, i % Tile::CHUNKS));
    }
};

template <int HEAD_DIM>
struct KvTile<KV_F16, HEAD_DIM> : ChunkedValues<KvTile<KV_F16, HEAD_DIM>> {
    static constexpr int CHUNKS = HEAD_DIM / 8;             // 16-byte chunks of a K or V row
    static constexpr int TILE_BYTES = TILE * HEAD_DIM * 2;  // of K, and of V
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES;
    static constexpr int PAGE_BYTES = KV_PAGE * HEAD_DIM * 2;  // of a head

    struct Queries {
        __align__(16) u16 at[MAX_GROUP][HEAD_DIM + 8];

        // Stores a query that a warp holds, times a power of two, and returns the inverse of that power.
        DEVICE float store(const WarpHead<HEAD_DIM>& query, u32 head, bool neox) {
            const Pow2Scale scale = Pow2Scale::of<0>(query.max_abs_bits());
#pragma unroll
            for (int j = 0; j < query.PAIRS; j++) {
                if (!query.has(j)) continue;
                at[head][query.first_dim(j, neox)] = f32_to_f16(query.first[j] * scale.down);
                at[head][query.second_dim(j, neox)] = f32_to_f16(query.second[j] * scale.down);
            }
            return scale.up;
        }
    };

    // Of K or V in shared memory: bytes to a 16-byte chunk.
    static DEVICE u32 chunk_offset(u32 row, u32 chunk) {
        if constexpr (CHUNKS % 8 == 0) return (row * CHUNKS + (chunk ^ (row & 7))) * 16;
        // Eight rows of a chunk are 128 bytes.
        return ((row / 8 * CHUNKS + chunk) * 8 + ((row ^ chunk ^ CHUNKS * (row & 1)) & 7)) * 16;
    }
    static DEVICE u32 value_offset(u32 row, u32 chunk) { return chunk_offset(row, chunk); }

    // Stores the new key or value at a position, by one warp: in its page, if that is not null, and in the
    // tile in shared memory, if it was loaded.
    static DEVICE void store_new(const WarpHead<HEAD_DIM>& head, bool neox, bool is_key, u32 position,
                                 u8* page, u8* tile, bool loaded) {
        u16* cache = (u16*)page + position % KV_PAGE * HEAD_DIM;
        tile += is_key ? 0 : TILE_BYTES;
#pragma unroll
        for (int j = 0; j < head.PAIRS; j++) {
            if (!head.has(j)) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 dim = half ? head.second_dim(j, neox) : head.first_dim(j, neox);
                u16 bits = f32_to_f16(half ? head.second[j] : head.first[j]);
                if (page) cache[dim] = bits;
                if (loaded) *(u16*)(tile + chunk_offset(position % TILE, dim / 8) + dim % 8 * 2) = bits;
            }
        }
    }
};

template <typename Block>
struct TileCopy<Block, KV_F16> {
    using Tile = typename Block::Tile;
    static constexpr int HEAD_DIM = Block::HEAD_DIM, CHUNKS = Tile::CHUNKS, TILE_BYTES = Tile::TILE_BYTES;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;
    static constexpr int ROWS_PER_COPY = 32 / CHUNKS;  // rows that one cp.async of a warp covers
    static_assert(TILE * CHUNKS % 32 == 0);

    // A lane's chunk in a copy of ROWS_PER_COPY rows: bytes in shared memory, elements in the cache. Copy i
    // has row i * ROWS_PER_COPY + copy_row of the tile. The two terms have no bits in common, so the swizzle
    // XORs the chunk with copy_row here and with i * ROWS_PER_COPY % 8, a constant, in load.
    const u32 copy_row, copy_to, copy_from;

    DEVICE explicit TileCopy(u32 lane)
        : copy_row(lane / CHUNKS),
          copy_to(lane / CHUNKS * CHUNKS * 16 + ((lane % CHUNKS ^ lane / CHUNKS) * 16)),
          copy_from(lane / CHUNKS * HEAD_DIM + lane % CHUNKS * 8) {}

    // Positions from `limit` on are zero-filled, since P = 0 times a stale NaN is NaN.
    DEVICE void load(u32 to, const u8* k_page, const u8* v_page, u32 tile, u32 limit) const {
        if constexpr (32 % CHUNKS != 0) {
            load_partial_rows(to, k_page, v_page, tile, limit);
            return;
        }
        const u32 from = tile % (KV_PAGE / TILE) * (TILE * HEAD_DIM) + copy_from;
        const u16 *k = (const u16*)k_page + from, *v = (const u16*)v_page + from;
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

    // The same where a copy of the warp does not cover whole rows.
    static DEVICE void load_partial_rows(u32 to, const u8* k_page, const u8* v_page, u32 tile, u32 limit) {
        const u32 lane = threadIdx.x & 31, from = tile % (KV_PAGE / TILE) * TILE_BYTES;
        const u8 *k = k_page + from + lane * 16, *v = v_page + from + lane * 16;
#pragma unroll
        for (int i = 0; i < TILE * CHUNKS / 32; i++) {
            const u32 row = (i * 32 + lane) / CHUNKS, chunk = (i * 32 + lane) % CHUNKS;
            const u32 at = to + Tile::chunk_offset(row, chunk);
            if (tile * TILE + row < limit) {
                cp_async_16(at, k + i * 512);
                cp_async_16(at + TILE_BYTES, v + i * 512);
            } else {
                st_shared_v4_zero(at);
                st_shared_v4_zero(at + TILE_BYTES);
            }
        }
    }
};

// Lane 4 g + t holds query head g, and of O dims 8 i + 2 t and 8 i + 2 t + 1.
template <typename Block>
struct TileMath<Block, KV_F16> {
    using Tile = typename Block::Tile;
    static constexpr int HEAD_DIM = Block::HEAD_DIM;
    static constexpr bool SINGLE_ROW = Block::SINGLE_ROW;

    // With the largest heads Q stays in shared memory, as registers would spill.
    static constexpr bool SHARED_Q = HEAD_DIM == 256;

    const u16* lane_q;  // of the lane's query head, from its first dim of a fragment on
    u32 q_fragments[SHARED_Q ? 1 : HEAD_DIM / 16][2];
    float o[HEAD_DIM / 8][2];

    DEVICE void load_fragment(u32 (&fragment)[2], int step) const {
        fragment[0] = *(const u32*)(lane_q + step * 16);
        fragment[1] = *(const u32*)(lane_q + step * 16 + 8);
    }

    DEVICE void load_queries(const Block& block) {
        lane_q = &block.shared.q.at[block.lane / 4][block.lane % 4 * 2];
        if constexpr (!SHARED_Q) {
#pragma unroll
            for (int step = 0; step < HEAD_DIM / 16; step++) load_fragment(q_fragments[step], step);
        }
    }

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) o[i][0] = o[i][1] = 0;
    }

    // S = Q K^T of a tile: s[i][j] is position 8 i + 2 t + j. Even and odd steps have accumulators of their
    // own, which makes for shorter chains (not in SINGLE_ROW, to save code).
    DEVICE void compute_scores(u32 lane, u32 tile, float (&s)[2][2], float (&s_odd)[2][2]) const {
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            // Matrices: positions 0-7 and 8-15, first and second 8 dims.
            u32 b[4];
            ldmatrix_x4(b,
                        tile + Tile::chunk_offset((lane & 7) + (lane / 16) * 8, step * 2 + (lane / 8) % 2));
            u32 q[2];
            if constexpr (SHARED_Q)
                load_fragment(q, step);
            else
                q[0] = q_fragments[step][0], q[1] = q_fragments[step][1];
            mma_m16n8k16_f16_rows0_7(!SINGLE_ROW && step % 2 ? s_odd[0] : s[0], q[0], q[1], b[0], b[1]);
            mma_m16n8k16_f16_rows0_7(!SINGLE_ROW && step % 2 ? s_odd[1] : s[1], q[0], q[1], b[2], b[3]);
        }
    }

    // O = rescale * O + P V.
    DEVICE void accumulate_values(u32 lane, u32 tile, const float (&p)[2][2], float rescale) {
        const u32 p0 = pack_f16x2(p[0][0], p[0][1]), p1 = pack_f16x2(p[1][0], p[1][1]);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            o[i][0] *= rescale;
            o[i][1] *= rescale;
        }
        const u32 values = tile + Tile::TILE_BYTES;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            // Matrices: positions 0-7 and 8-15 of the first 8 dims, then of the second.
            u32 b[4];
            ldmatrix_x4_trans(
                b, values + Tile::chunk_offset((lane & 7) + (lane / 8) % 2 * 8, i * 2 + lane / 16));
            mma_m16n8k16_f16_rows0_7(o[2 * i], p0, p1, b[0], b[1]);
            mma_m16n8k16_f16_rows0_7(o[2 * i + 1], p0, p1, b[2], b[3]);
        }
    }

    DEVICE void finish() {}

    // The lane's part of O of its head, times `weight`. `t`: the lane's place in its quad.
    DEVICE void store(float* head_o, u32 t, float weight) const {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++)
            *(float2*)(head_o + i * 8 + t * 2) = make_float2(o[i][0] * weight, o[i][1] * weight);
    }
};
