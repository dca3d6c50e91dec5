// Decode attention (attention_decode.cu) over an f32 cache: elements become f16 operands when they are read
// from shared memory. A tile there is 16 rows of K, then 16 of V; the order of its 16-byte chunks keeps loads
// of 16 bytes free of bank conflicts, of rows g by lanes 4 g + t in K and of rows 2 t in V.
#pragma once

#include "attention_decode_f16.cuh"

template <int HEAD_DIM>
struct KvTile<KV_F32, HEAD_DIM> : ChunkedValues<KvTile<KV_F32, HEAD_DIM>> {
    static constexpr int CHUNKS = HEAD_DIM / 4;             // 16-byte chunks of a K or V row
    static constexpr int TILE_BYTES = TILE * HEAD_DIM * 4;  // of K, and of V
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES;
    static constexpr int PAGE_BYTES = KV_PAGE * HEAD_DIM * 4;  // of a head
    using Queries = typename KvTile<KV_F16, HEAD_DIM>::Queries;

    // Bytes from the start of K, or of V, in shared memory to a 16-byte chunk.
    static DEVICE u32 key_offset(u32 row, u32 chunk) { return (row * CHUNKS + (chunk ^ (row & 1) * 4)) * 16; }
    static DEVICE u32 value_offset(u32 row, u32 chunk) { return (row * CHUNKS + (chunk ^ (row & 6))) * 16; }

    // Stores the new key or value at a position, by one warp: in its page, if that is not null, and in the
    // tile in shared memory, if it was loaded.
    static DEVICE void store_new(const WarpHead<HEAD_DIM>& head, bool neox, bool is_key, u32 position,
                                 u8* page, u8* tile, bool loaded) {
        const u32 row = position % TILE;
        if (page) head.store((float*)page + position % KV_PAGE * HEAD_DIM, neox);
        if (!loaded) return;
#pragma unroll
        for (int j = 0; j < head.PAIRS; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 dim = half ? head.second_dim(j, neox) : head.first_dim(j, neox);
                const u32 at = is_key ? key_offset(row, dim / 4) : TILE_BYTES + value_offset(row, dim / 4);
                *(float*)(tile + at + dim % 4 * 4) = half ? head.second[j] : head.first[j];
            }
        }
    }
};

template <typename Block>
struct TileCopy<Block, KV_F32> {
    using Tile = typename Block::Tile;
    static constexpr int CHUNKS = Tile::CHUNKS;

    const u32 lane;

    DEVICE explicit TileCopy(u32 lane) : lane(lane) {}

    // Positions from `limit` on are zero-filled, since P = 0 times a stale NaN is NaN.
    DEVICE void load(u32 to, const u8* k_page, const u8* v_page, u32 tile, u32 limit) const {
        const u32 from = tile % (KV_PAGE / TILE) * Tile::TILE_BYTES + lane * 16;
        const u8 *k = k_page + from, *v = v_page + from;
#pragma unroll
        for (int i = 0; i < TILE * CHUNKS / 32; i++) {
            const u32 row = (i * 32 + lane) / CHUNKS, chunk = (i * 32 + lane) % CHUNKS;
            if (tile * TILE + row < limit) {
                cp_async_16(to + Tile::key_offset(row, chunk), k + i * 512);
                cp_async_16(to + (Tile::TILE_BYTES + Tile::value_offset(row, chunk)), v + i * 512);
            } else {
                st_shared_v4_zero(to + Tile::key_offset(row, chunk));
                st_shared_v4_zero(to + (Tile::TILE_BYTES + Tile::value_offset(row, chunk)));
            }
        }
    }
};

// Lane 4 g + t holds query head g; of each 32 dims it holds O of dims 8 t to 8 t + 7, o[4 i + j] being dims
// 8 t + j and 8 t + 4 + j of the i-th 32.
template <typename Block>
struct TileMath<Block, KV_F32> {
    using Tile = typename Block::Tile;
    static constexpr int HEAD_DIM = Block::HEAD_DIM;

    u32 q_fragments[HEAD_DIM / 16][2];
    float o[HEAD_DIM / 8][2];

    // Of each 16 dims, dims 4 t and 4 t + 1 take the place of k = 2 t and 2 t + 1, the next two that of 8
    // more.
    DEVICE void load_queries(const Block& block) {
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++) {
            const u16* q = &block.shared.q.at[block.lane / 4][step * 16 + block.lane % 4 * 4];
            q_fragments[step][0] = *(const u32*)q;
            q_fragments[step][1] = *(const u32*)(q + 2);
        }
    }

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) o[i][0] = o[i][1] = 0;
    }

    static DEVICE float4 load(u32 at) { return *(const float4*)__cvta_shared_to_generic(at); }

    // S = Q K^T of a tile: s[i][j] is position 8 i + 2 t + j.
    DEVICE void compute_scores(u32 lane, u32 tile, float (&s)[2][2], float (&)[2][2]) const {
#pragma unroll
        for (int step = 0; step < HEAD_DIM / 16; step++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float4 k = load(tile + Tile::key_offset(lane / 4 + 8 * i, step * 4 + lane % 4));
                mma_m16n8k16_f16_rows0_7(s[i], q_fragments[step][0], q_fragments[step][1],
                                         pack_f16x2(k.x, k.y), pack_f16x2(k.z, k.w));
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
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; i++) {
            float4 v[4];  // of the lane's positions
#pragma unroll
            for (int at = 0; at < 4; at++)
                v[at] = load(tile + (Tile::TILE_BYTES + Tile::value_offset(at / 2 * 8 + lane % 4 * 2 + at % 2,
                                                                           i * 8 + lane / 4)));
            mma_m16n8k16_f16_rows0_7(o[4 * i], p0, p1, pack_f16x2(v[0].x, v[1].x),
                                     pack_f16x2(v[2].x, v[3].x));
            mma_m16n8k16_f16_rows0_7(o[4 * i + 1], p0, p1, pack_f16x2(v[0].y, v[1].y),
                                     pack_f16x2(v[2].y, v[3].y));
            mma_m16n8k16_f16_rows0_7(o[4 * i + 2], p0, p1, pack_f16x2(v[0].z, v[1].z),
                                     pack_f16x2(v[2].z, v[3].z));
            mma_m16n8k16_f16_rows0_7(o[4 * i + 3], p0, p1, pack_f16x2(v[0].w, v[1].w),
                                     pack_f16x2(v[2].w, v[3].w));
        }
    }

    DEVICE void finish() {}

    // The lane's part of O of its head, times `weight`. `t`: the lane's place in its quad.
    DEVICE void store(float* head_o, u32 t, float weight) const {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            head_o[i / 4 * 32 + t * 8 + i % 4] = o[i][0] * weight;
            head_o[i / 4 * 32 + t * 8 + i % 4 + 4] = o[i][1] * weight;
        }
    }
};
