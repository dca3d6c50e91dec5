// Decode attention (attention_decode.cu) over a Q8_0 cache: half the bytes of f16, loaded as they are.
//
// S = Q K^T on integer tensor cores: elements of a query are signed 15-bit integers (|q| <= 2^14) times a
// power of two, stored as hi * 256 + lo. These two bytes are rows g and g + 8 of the A operand, so one
// m16n8k32 MMA covers the eight query heads, eight positions and the 32 dims of a scale. The sums are exact;
// they are multiplied by the scale in f32. O += P V in f16: P is multiplied by the scale of a position and
// group of 32 dims, taken relative to a power of two, the reference, that is not below any scale so far, so
// that the factors neither overflow nor become subnormal; O is rescaled where the reference rises. V is not
// converted: v + 128 (one XOR) is used as the bits of an f16, the subnormal number (v + 128) * 2^-24; the
// term 128 * sum(P) is subtracted at the end.
//
// A tile in shared memory is 16 rows of K and of V in int8, then the scales of K and of V,
// [16][head_dim / 32] f16. Chunks are ordered so that neither ldmatrix of eight rows of K, nor a load of
// 4 bytes of V by eight lanes in each of rows 2 t, nor cp.async has slot conflicts.
#pragma once

#include "attention_decode_block.cuh"
#include "ptx/cp_async_if.cuh"
#include "ptx/f16x2_max.cuh"
#include "ptx/mma_s8.cuh"

template <int HEAD_DIM>
struct KvTile<KV_Q8_0, HEAD_DIM> {
    static constexpr int GROUPS = HEAD_DIM / 32;  // dims with one scale
    static constexpr int CHUNKS = HEAD_DIM / 16;  // 16-byte chunks of a row
    static constexpr int QUANT_BYTES = TILE * HEAD_DIM, SCALE_BYTES = TILE * GROUPS * 2;  // of K, and of V
    static constexpr int STAGE_BYTES = (2 * (QUANT_BYTES + SCALE_BYTES) + 127) / 128 * 128;
    static constexpr int PAGE_SCALES = KV_PAGE * HEAD_DIM;                 // bytes before them
    static constexpr int PAGE_BYTES = PAGE_SCALES + KV_PAGE * GROUPS * 2;  // of a head

    struct Queries {
        // The upper bytes, then the lower ones.
        __align__(16) u8 at[2][MAX_GROUP][HEAD_DIM + 16];

        DEVICE void store(u32 head, u32 dim, float value) {
            const i32 whole = __float2int_rn(value);
            const i32 low = (i8)whole;
            at[0][head][dim] = (u8)((whole - low) >> 8);
            at[1][head][dim] = (u8)low;
        }

        // Stores a query that a warp holds, times a power of two that scales its largest magnitude to at most
        // 2^14, and returns the inverse of that power; NaN where the query is not finite.
        DEVICE float store(const WarpHead<HEAD_DIM>& query, u32 head, bool neox) {
            const u32 largest = query.max_abs_bits();
            const Pow2Scale scale = Pow2Scale::of<13>(largest);
#pragma unroll
            for (int j = 0; j < query.PAIRS; j++) {
                if (!query.has(j)) continue;
                store(head, query.first_dim(j, neox), query.first[j] * scale.down);
                store(head, query.second_dim(j, neox), query.second[j] * scale.down);
            }
            return largest < 0x7f800000 ? scale.up : NOT_A_NUMBER;
        }
    };

    // Bytes from the start of K in shared memory to a 16-byte chunk, and of V to the 32 dims of a scale.
    // Offsets are separable: row and chunk bits are XORed within 128 bytes and added above, so per-lane and
    // per-step parts are combined with one XOR and one add.
    static constexpr DEVICE u32 key_offset(u32 row, u32 chunk) {
        const u32 slot = ((row & 7) ^ chunk ^ CHUNKS * (row & 1)) & 7;
        return ((row / 8 * CHUNKS + chunk) * 8 + slot) * 16;
    }
    static constexpr DEVICE u32 value_offset(u32 row, u32 group) {
        const u32 slot = (row / 2 ^ group ^ GROUPS * (row & 1)) & 3;
        return (((row / 8 * 2 + (row & 1)) * GROUPS + group) * 4 + slot) * 32;
    }

    // Bytes from the start of a tile in shared memory to the scales of a row of K or V.
    static DEVICE u32 scales_offset(bool is_key, u32 row) {
        return 2 * QUANT_BYTES + (is_key ? 0 : SCALE_BYTES) + row * (GROUPS * 2);
    }

    // Zeroes the scales of the values of the first `rows` positions of a tile in shared memory, by one warp.
    static DEVICE void clear_values(u32 lane, u32 tile, u32 rows) {
        u16* scales = (u16*)__cvta_shared_to_generic(tile + scales_offset(false, 0));
#pragma unroll 1
        for (u32 i = lane; i < rows * GROUPS; i += 32) scales[i] = 0;
    }

    // Stores the new key or value at a position, by one warp: in its page, if that is not null, and in the
    // tile in shared memory, if it was loaded.
    static DEVICE void store_new(const WarpHead<HEAD_DIM>& head, bool neox, bool is_key, u32 position,
                                 u8* page, u8* tile, bool loaded) {
        const u32 lane = threadIdx.x & 31, in_page = position % KV_PAGE, row = position % TILE;
        // Lane i computes the scale of group i.
        float x[GROUPS];
        u32 largest = 0;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            x[group] = q8_0_clamp(head.in_order(group, neox));
            const u32 bits = __reduce_max_sync(FULL_WARP, abs_bits(x[group]));
            if (lane == group) largest = bits;
        }
        const u16 own_scale = q8_0_scale(__uint_as_float(largest));
        const float own_inverse = q8_0_inverse(own_scale);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const u16 scale = (u16)__shfl_sync(FULL_WARP, (u32)own_scale, group);
            const u8 quant = q8_0_quant(x[group], __shfl_sync(FULL_WARP, own_inverse, group));
            if (page) {
                page[in_page * HEAD_DIM + group * 32 + lane] = quant;
                if (lane == 0) ((u16*)(page + PAGE_SCALES))[in_page * GROUPS + group] = scale;
            }
            if (loaded) {
                tile[is_key ? key_offset(row, group * 2 + lane / 16) + lane % 16
                            : QUANT_BYTES + value_offset(row, group) + lane] = quant;
                if (lane == 0) ((u16*)(tile + scales_offset(is_key, row)))[group] = scale;
            }
        }
    }
};

template <typename Block>
struct TileCopy<Block, KV_Q8_0> {
    using Tile = typename Block::Tile;
    static constexpr int HEAD_DIM = Block::HEAD_DIM, GROUPS = Tile::GROUPS, CHUNKS = Tile::CHUNKS;

    static constexpr int ROWS_PER_COPY = 32 / CHUNKS;  // rows that one cp.async of a warp covers

    // A lane's chunk in the first copy; copy i has row i * ROWS_PER_COPY more, bits that no lane's row has.
    const u32 lane, copy_row, key_to, value_to;

    DEVICE explicit TileCopy(u32 lane)
        : lane(lane),
          copy_row(lane / CHUNKS),
          key_to(Tile::key_offset(lane / CHUNKS, lane % CHUNKS)),
          value_to(Tile::value_offset(lane / CHUNKS, lane % CHUNKS / 2) + lane % 2 * 16 + Tile::QUANT_BYTES) {
        static_assert(TILE * CHUNKS % 32 == 0 && (32 % CHUNKS != 0 || ROWS_PER_COPY % 2 == 0));
    }

    // Positions from `limit` on get scales of 0, as P = 0 times a stale NaN is NaN; stale integers do no
    // harm.
    DEVICE void load(u32 to, const u8* k_page, const u8* v_page, u32 tile, u32 limit) const {
        const u32 in_page = tile % (KV_PAGE / TILE) * TILE, left = limit - min(limit, tile * TILE);
        const u8 *k = k_page + (in_page * HEAD_DIM + lane * 16),
                 *v = v_page + (in_page * HEAD_DIM + lane * 16);
        copy_rows<0>(to, k, v, left);
        if constexpr (GROUPS % 2 != 0) {
            copy_odd_scales(to, k_page + in_page * (GROUPS * 2), v_page + in_page * (GROUPS * 2), left);
            return;
        }
        // A lane for the scales of each row of K and of V.
        const u32 row = lane % TILE, at = to + Tile::scales_offset(lane < TILE, row);
        const u8* scales =
            (lane < TILE ? k_page : v_page) + Tile::PAGE_SCALES + (in_page + row) * (GROUPS * 2);
        cp_async_if<GROUPS % 2 ? 4 : GROUPS * 2, 0>(row < left, at, scales);
        if (row >= left) zero_scales(at);
    }

    // Copy I and those after it.
    template <int I>
    DEVICE void copy_rows(u32 to, const u8* k, const u8* v, u32 left) const {
        if constexpr (I < TILE * CHUNKS / 32 && 32 % CHUNKS != 0) {
            const u32 row = (I * 32 + lane) / CHUNKS, chunk = (I * 32 + lane) % CHUNKS;
            const u32 value = Tile::QUANT_BYTES + Tile::value_offset(row, chunk / 2) + chunk % 2 * 16;
            cp_async_if<16, I * 512>(row < left, to + Tile::key_offset(row, chunk), k);
            cp_async_if<16, I * 512>(row < left, to + value, v);
            copy_rows<I + 1>(to, k, v, left);
        } else if constexpr (I < TILE * CHUNKS / 32) {
            constexpr u32 ROW = I * ROWS_PER_COPY, KEY = Tile::key_offset(ROW, 0),
                          VALUE = Tile::value_offset(ROW, 0);
            const bool wanted = ROW + copy_row < left;
            cp_async_if<16, I * 512>(wanted, to + (key_to ^ KEY % 128) + KEY / 128 * 128, k);
            cp_async_if<16, I * 512>(wanted, to + (value_to ^ VALUE % 128) + VALUE / 128 * 128, v);
            copy_rows<I + 1>(to, k, v, left);
        }
    }

    // An odd number of scales per row: words of two, of which one may be of a row that is not wanted.
    DEVICE void copy_odd_scales(u32 to, const u8* k, const u8* v, u32 left) const {
        constexpr u32 WORDS = TILE * GROUPS / 2;
#pragma unroll
        for (u32 i = lane; i < 2 * WORDS; i += 32) {
            const u32 word = i % WORDS, at = to + Tile::scales_offset(i < WORDS, 0) + word * 4;
            const u8* from = (i < WORDS ? k : v) + Tile::PAGE_SCALES + word * 4;
            const u32 wanted = left * GROUPS - min(left * GROUPS, word * 2);
            cp_async_if<4, 0>(wanted >= 2, at, from);
            if (wanted < 2) st_shared_u32(at, wanted == 1 ? *(const u16*)from : 0);
        }
    }

    static DEVICE void zero_scales(u32 at) {
#pragma unroll
        for (int i = 0; i < GROUPS; i += 2) st_shared_u32(at + i * 2, 0);
    }
};

// Byte j of two words as f16x2 subnormals.
DEVICE u32 f16_of_byte(int j, u32 first, u32 second) {
    const u32 interleaved = __byte_perm(first, second, j < 2 ? 0x5140 : 0x7362);
    return __byte_perm(interleaved, 0, j % 2 ? 0x4342 : 0x4140);
}

// Lane 4 g + t holds query head g; of each group of 32 dims it holds O of dims 8 t to 8 t + 7, o[4 group + j]
// being dims 8 t + j and 8 t + 4 + j, in units of the reference.
template <typename Block>
struct TileMath<Block, KV_Q8_0> {
    using Tile = typename Block::Tile;
    static constexpr int HEAD_DIM = Block::HEAD_DIM, GROUPS = Tile::GROUPS;

    // The scales of a row.
    struct __align__(GROUPS % 2 ? 2 : GROUPS * 2) Scales { u16 at[GROUPS]; };

    u32 q_fragments[GROUPS][4];
    float o[HEAD_DIM / 8][2];
    float offset[GROUPS][2];  // sums of P times 128, equal in all lanes of a head; the first is kept
    u32 reference = 0;        // as the exponent field of an f16
    u32 inverse = 0;          // of the reference, as f16x2

    DEVICE void load_queries(const Block& block) {
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                q_fragments[group][i] =
                    *(const u32*)&block.shared.q
                         .at[i % 2][block.lane / 4][group * 32 + i / 2 * 16 + block.lane % 4 * 4];
    }

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) o[i][0] = o[i][1] = 0;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) offset[group][0] = offset[group][1] = 0;
    }

    // The scales of the lane's positions: i is position 8 (i / 2) + 2 t + i % 2.
    DEVICE void load_scales(u32 lane, u32 tile, bool is_key, Scales (&scales)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 row = i / 2 * 8 + lane % 4 * 2 + i % 2;
            scales[i] = *(const Scales*)__cvta_shared_to_generic(tile + Tile::scales_offset(is_key, row));
        }
    }

    // S = Q K^T of a tile: s[i][j] is position 8 i + 2 t + j.
    DEVICE void compute_scores(u32 lane, u32 tile, float (&s)[2][2], float (&)[2][2]) const {
        Scales scales[4];
        load_scales(lane, tile, true, scales);
        const u32 first = tile + Tile::key_offset((lane & 7) + (lane / 16) * 8, (lane / 8) % 2);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            // Matrices: first and second 16 dims of positions 0-7, then of 8-15.
            u32 b[4];
            const u32 chunk = Tile::key_offset(0, group * 2);
            ldmatrix_x4(b, (first ^ chunk % 128) + chunk / 128 * 128);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                i32 sums[4];
                mma_m16n8k32_s8(sums, q_fragments[group], b[2 * i], b[2 * i + 1], 0);
#pragma unroll
                for (int j = 0; j < 2; j++)
                    s[i][j] += f16_to_f32(scales[2 * i + j].at[group]) * (float)(sums[j] * 256 + sums[2 + j]);
            }
        }
    }

    DEVICE void multiply_output(float factor) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            o[i][0] *= factor;
            o[i][1] *= factor;
        }
#pragma unroll
        for (int group = 0; group < GROUPS; group++) offset[group][0] *= factor;
    }

    // Raises the reference to a power of two that is not below any scale of the tile.
    DEVICE void update_reference(const u32 (&scales)[GROUPS][2]) {
        u32 largest = scales[0][0];
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
            largest = max_f16x2(largest, max_f16x2(scales[group][0], scales[group][1]));
        largest = max(largest & 0xffff, largest >> 16);
        largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
        largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        if (largest <= reference << 10) return;  // the same in all lanes
        const u32 raised = (largest + 0x3ff) >> 10;
        multiply_output(__uint_as_float((127 + reference - raised) << 23));
        reference = raised;
        const float factor = __uint_as_float((127 + 15 - raised) << 23);
        inverse = pack_f16x2(factor, factor);
    }

    // O = rescale * O + P V.
    DEVICE void accumulate_values(u32 lane, u32 tile, const float (&p)[2][2], float rescale) {
        const u32 p0 = pack_f16x2(p[0][0], p[0][1]), p1 = pack_f16x2(p[1][0], p[1][1]);
        if (__any_sync(FULL_WARP, rescale != 1)) multiply_output(rescale);
        Scales rows[4];
        load_scales(lane, tile, false, rows);
        u32 scales[GROUPS][2];  // of two positions each
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                scales[group][i] = rows[2 * i].at[group] | (u32)rows[2 * i + 1].at[group] << 16;
        update_reference(scales);
        const u32 first = tile + Tile::QUANT_BYTES + Tile::value_offset(lane % 4 * 2, 0) + lane / 4 * 4;
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            const u32 a0 = mul_f16x2(p0, mul_f16x2(scales[group][0], inverse)),
                      a1 = mul_f16x2(p1, mul_f16x2(scales[group][1], inverse));
            // Four dims from 4 g on of the lane's four positions, as unsigned bytes.
            u32 bytes[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const u32 more = Tile::value_offset(i / 2 * 8 + i % 2, group);
                const u32 at = (first ^ more % 128) + more / 128 * 128;
                bytes[i] = *(const u32*)__cvta_shared_to_generic(at) ^ 0x80808080;
            }
            mma_m16n8k16_f16_rows0_7(offset[group], a0, a1, 0x00800080, 0x00800080);
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_m16n8k16_f16_rows0_7(o[group * 4 + j], a0, a1, f16_of_byte(j, bytes[0], bytes[1]),
                                         f16_of_byte(j, bytes[2], bytes[3]));
        }
    }

    DEVICE void finish() {
        const float unit = __uint_as_float((127 - 15 + 24 + reference) << 23);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            o[i][0] = (o[i][0] - offset[i / 4][0]) * unit;
            o[i][1] = (o[i][1] - offset[i / 4][0]) * unit;
        }
    }

    // The lane's part of O of its head, times `weight`. `t`: the lane's place in its quad.
    DEVICE void store(float* head_o, u32 t, float weight) const {
#pragma unroll
        for (int group = 0; group < GROUPS; group++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float four[4];
#pragma unroll
                for (int j = 0; j < 4; j++) four[j] = o[group * 4 + j][half] * weight;
                *(float4*)(head_o + group * 32 + t * 8 + half * 4) =
                    make_float4(four[0], four[1], four[2], four[3]);
            }
    }
};
