// Int8 GEMM (gemm_q8.cu): how each weight format is unpacked to bytes in registers and multiplied with q8
// rows by integer MMA, and how the sums are scaled.
//
// A warp multiplies halves: 128 columns of TILES tiles of 16 rows of W with 8 rows of x. Integer sums over a
// block of 32 columns (Q6_K: a slice of 16) are exact. They are scaled and added up in f32 in the order and
// with the rounding of the GEMV (gemv_formats.cuh), unit by unit, so that a row of x gets the same bits as at
// batch 1. All f32 arithmetic here is written as intrinsics, which the compiler neither contracts nor splits.
//
// Products of integers with f16 factors are exact in f32 (11 + 6 bits), so that a factor is combined with the
// scale of its sub-block once per row of W instead of once per result.
//
// A format provides:
//   CHUNK_BYTES   bytes of 256 columns of a row
//   ALIGNED       rows start at multiples of 16 bytes
//   multiply(w, x, half, blocks, sums)
//       adds half `half` of the stage, times the units of x from `x` on, to sums[e][tile][c]: unit e of the
//       half, accumulator c of the MMA, which is row g + c / 2 * 8 of the tile and row 2 t + c % 2 of x;
//       `blocks`: blocks of 32 columns that the half has
#pragma once

#include "ptx/mma.cuh"
#include "ptx/mma_s8.cuh"
#include "q8_rows.cuh"
#include "quant_loads.cuh"

constexpr int TILES = 2;               // MMA tiles of a warp
constexpr int TASK_ROWS = TILES * 16;  // rows of W
typedef float UnitSums[2][TILES][4];   // sums of each unit of a half

// The rows of W in a stage, as a lane sees them.
struct StageRows {
    const u8* stage;         // a multiple of 16 bytes
    u32 pitch;               // bytes from one row to the next
    u32 first;               // where row g would begin if it were aligned
    u32 offset[TILES][2];    // where rows g and g + 8 begin in their 16-byte chunks
    SharedAddress matrices;  // row lane % 16 of a tile, byte lane / 16 * 16: of ldmatrix

    // Where row g, or g + 8, of a tile begins.
    DEVICE u32 row(int tile, int upper) const {
        return first + (tile * 16 + upper * 8) * pitch + offset[tile][upper];
    }
};

// Words at an even offset in a stage: aligned words are loaded and shifted together.
struct EvenWords {
    const u8* words;
    u32 shift;

    DEVICE EvenWords(const u8* stage, u32 offset) : words(stage + (offset & ~2u)), shift((offset & 2) * 8) {}
    DEVICE u32 load(u32 at) const {
        const u32* from = (const u32*)(words + at);
        return __funnelshift_r(from[0], from[1], shift);
    }
};

// A unit of x, as a lane sees it.
struct XUnit {
    const u8* base;
    u32 rows;

    DEVICE XUnit next(u32 by) const { return {base + by * (Q8_ROWS_UNIT_BYTES * rows), rows}; }
    DEVICE u32 t() const { return threadIdx.x & 3 & (rows / 2 - 1); }
    DEVICE uint4 quants() const { return lds16(base + ((threadIdx.x & 31) & (rows * 4 - 1)) * 16); }
    // Of rows 2 t and 2 t + 1: scales, then sums.
    DEVICE float4 block(int b) const { return *(const float4*)(base + (64 + b * 8) * rows + t() * 16); }
    DEVICE float2 scales(int b) const { return *(const float2*)(base + (64 + b * 8) * rows + t() * 16); }
    // Of rows 2 t and 2 t + 1: offsets of slice s of a block.
    DEVICE float2 offsets(int b, int s) const {
        return *(const float2*)(base + (80 + b * 8) * rows + t() * 16 + s * 8);
    }
};

// The dot product of an accumulator that started with ACCUMULATOR_BIAS.
DEVICE float dot_of(i32 accumulator) { return __fadd_rn(__int_as_float(accumulator), -ACCUMULATOR_BIAS_F32); }

// Byte `index` of a word as f32, plus 2^23.
DEVICE float byte_plus_2_23(u32 word, u32 index) {
    return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7440 + index));
}

// sum += both blocks of a unit, the second rounded first.
DEVICE void add_unit(float& sum, float scale0, float first, float scale1, float second) {
    sum = __fadd_rn(sum, __fmaf_rn(scale0, first, __fmul_rn(scale1, second)));
}

// Scale and minimum of a block of one row of W, multiplied by their factors.
struct BlockScale {
    float scale, minimum;
    // scale * dot - minimum * sum.
    template <bool MINIMUM>
    DEVICE float apply(i32 accumulator, float sum) const {
        const float dot = dot_of(accumulator);
        return MINIMUM ? __fmaf_rn(scale, dot, -__fmul_rn(minimum, sum)) : __fmul_rn(scale, dot);
    }
};

// Both blocks of a unit: accumulators dot0 and dot1 of a tile, `w[upper][block]`.
template <bool MINIMUM>
DEVICE void add_tile(float (&sums)[4], const i32 (&dot0)[4], const i32 (&dot1)[4],
                     const BlockScale (&w)[2][2], float4 x0, float4 x1) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const BlockScale(&row)[2] = w[c / 2];
        const bool odd = c & 1;
        const float first = row[0].apply<MINIMUM>(dot0[c], odd ? x0.w : x0.z);
        const float second = row[1].apply<MINIMUM>(dot1[c], odd ? x1.w : x1.z);
        add_unit(sums[c], odd ? x0.y : x0.x, first, odd ? x1.y : x1.x, second);
    }
}

// Q4_K and Q5_K (HIGH_BIT). Block 0 of a unit is the low nibbles of 32 bytes, block 1 the high ones. Those of
// Q4_K are used in place, 16 times too large.
template <bool HIGH_BIT>
struct MmaQ45K {
    static constexpr u32 CHUNK_BYTES = HIGH_BIT ? 176 : 144;
    static constexpr bool ALIGNED = true;

    // The scales of one half of a block of one row.
    struct Header {
        u32 scales, minima;  // 6 bits each, of four sub-blocks
        float factor, minimum_factor;

        DEVICE void load(const u8* block, bool upper) {
            const uint4 h = lds16(block);
            const u32 mask = upper ? 0x0f0f0f0f : 0x3f3f3f3f, top = upper ? 0x30303030 : 0;
            scales = ((upper ? h.w : h.y) & mask) | (h.y >> 2 & top);
            minima = ((upper ? h.w >> 4 : h.z) & mask) | (h.z >> 2 & top);
            factor = f16_to_f32((u16)h.x), minimum_factor = f16_to_f32((u16)(h.x >> 16));
        }
        // factor * integer: exact.
        static DEVICE float product(float factor, u32 word, u32 index) {
            return __fmaf_rn(factor, byte_plus_2_23(word, index), __fmul_rn(factor, -8388608.0f));
        }
        DEVICE BlockScale block(int index) const {
            const float f = !HIGH_BIT && index & 1 ? __fmul_rn(factor, 0.0625f) : factor;
            return {product(f, scales, index), product(minimum_factor, minima, index)};
        }
    };

    static DEVICE void unpack(u32 (&low)[4], u32 (&high)[4], const u32 (&quants)[4], const u32 (&bits)[4],
                              int e) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            low[i] = quants[i] & LOW_NIBBLES;
            high[i] = HIGH_BIT ? quants[i] >> 4 & LOW_NIBBLES : quants[i] & ~LOW_NIBBLES;
            if (!HIGH_BIT) continue;
            low[i] = lop3_and_or(bits[i] << (4 - 2 * e), 0x10101010, low[i]);
            high[i] = lop3_and_or(bits[i] << (3 - 2 * e), 0x10101010, high[i]);
        }
    }

    static DEVICE void multiply(const StageRows& w, const XUnit& first, u32 half, u32, UnitSums& sums) {
        const u32 block = half / 2 * CHUNK_BYTES, upper = half & 1;
        const SharedAddress matrices = w.matrices + block;
        Header headers[TILES][2];
        u32 bits[TILES][4] = {};
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            headers[tile][0].load(w.stage + w.row(tile, 0) + block, upper);
            headers[tile][1].load(w.stage + w.row(tile, 1) + block, upper);
            if (!HIGH_BIT) continue;
            ldmatrix_x4(bits[tile], matrices + tile * 16 * w.pitch + 16);
#pragma unroll
            for (int i = 0; i < 4; i++) bits[tile][i] >>= upper * 4;
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const XUnit unit = first.next(e);
            const uint4 b = unit.quants();
            const float4 x0 = unit.block(0), x1 = unit.block(1);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                u32 quants[4], low[4], high[4];
                ldmatrix_x4(quants,
                            matrices + tile * 16 * w.pitch + (HIGH_BIT ? 48 : 16) + (upper * 2 + e) * 32);
                unpack(low, high, quants, bits[tile], e);
                i32 dot0[4], dot1[4];
                mma_m16n8k32_u8(dot0, low, b.x, b.y, ACCUMULATOR_BIAS);
                mma_m16n8k32_u8(dot1, high, b.z, b.w, ACCUMULATOR_BIAS);
                const Header(&rows)[2] = headers[tile];
                const BlockScale scales[2][2] = {{rows[0].block(2 * e), rows[0].block(2 * e + 1)},
                                                 {rows[1].block(2 * e), rows[1].block(2 * e + 1)}};
                add_tile<true>(sums[e][tile], dot0, dot1, scales, x0, x1);
            }
        }
    }
};

// Q6_K. A unit of the GEMV is 16 columns of each of the four 32-column blocks of a half: slice e of each.
struct MmaQ6K {
    static constexpr u32 CHUNK_BYTES = 210;
    static constexpr bool ALIGNED = false;

    // One row of a half, bytes 4 t to 4 t + 3 of each slice.
    struct Row {
        u32 low[4], top[2], scales[2];  // low: slice 0, slice 1 of the lower 32 bytes, then of the upper
        float factor;

        // `stage` is that of the lane, 4 t bytes further; `own` is not.
        DEVICE Row(const u8* stage, const u8* own, u32 block, u32 upper) {
            const EvenWords nibbles(stage, block + upper * 64), bits(stage, block + upper * 32 + 128);
            const EvenWords header(own, block + upper * 8 + 192);
#pragma unroll
            for (int i = 0; i < 4; i++) low[i] = nibbles.load(i * 16);
            top[0] = bits.load(0), top[1] = bits.load(16);
            scales[0] = header.load(0) ^ 0x80808080, scales[1] = header.load(4) ^ 0x80808080;
            factor = f16_to_f32((u16)lds2(own + block + 208));
        }
        // Slice e of block b, as unsigned bytes that are 32 too large.
        DEVICE u32 quants(int b, int e) const {
            const u32 nibbles = low[b % 2 * 2 + e] >> (b / 2 * 4) & LOW_NIBBLES;
            const u32 bits = b == 0 ? top[e] << 4 : b == 1 ? top[e] << 2 : b == 2 ? top[e] : top[e] >> 2;
            return lop3_and_or(bits, 0x30303030, nibbles);
        }
        DEVICE float scale(int b, int e) const {
            return __fadd_rn(byte_plus_2_23(scales[b / 2], b % 2 * 2 + e), -(8388608.0f + 128.0f));
        }
    };

    static DEVICE void multiply(const StageRows& w, const XUnit& first, u32 half, u32, UnitSums& sums) {
        const u32 block = half / 2 * CHUNK_BYTES, upper = half & 1;
        const u8* mine = w.stage + (threadIdx.x & 3) * 4;
        const XUnit units[2] = {first, first.next(1)};
        const uint4 b0 = units[0].quants(), b1 = units[1].quants();
        const u32 b[4][2] = {{b0.x, b0.y}, {b0.z, b0.w}, {b1.x, b1.y}, {b1.z, b1.w}};
        float2 scales[4];
#pragma unroll
        for (int i = 0; i < 4; i++) scales[i] = units[i / 2].scales(i % 2);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const Row rows[2] = {Row(mine, w.stage, w.row(tile, 0) + block, upper),
                                 Row(mine, w.stage, w.row(tile, 1) + block, upper)};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                // The GEMV adds up blocks 1 0 2 3 of even units, 3 2 0 1 of odd ones.
                float sum[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int index = e ? (i < 2 ? 3 - i : i - 2) : (i < 2 ? 1 - i : i);
                    const float2 offsets = units[index / 2].offsets(index % 2, e);
                    i32 dots[4];
                    mma_m16n8k16_u8(dots, rows[0].quants(index, e), rows[1].quants(index, e), b[index][e],
                                    ACCUMULATOR_BIAS);
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        const float dot = __fadd_rn(__int_as_float(dots[c]), c & 1 ? offsets.y : offsets.x);
                        const float scaled = __fmul_rn(rows[c / 2].scale(index, e), dot);
                        const float scale = c & 1 ? scales[index].y : scales[index].x;
                        sum[c] = i == 0 ? __fmul_rn(scale, scaled) : __fmaf_rn(scale, scaled, sum[c]);
                    }
                }
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sums[e][tile][c] = __fmaf_rn(rows[c / 2].factor, sum[c], sums[e][tile][c]);
                __syncwarp();  // limits the registers of what the compiler overlaps
            }
        }
    }
};

// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: blocks of 32 columns. Where a half ends early, missing blocks count as zero.
enum { MMA_QUANTS_4, MMA_QUANTS_4_MINIMUM, MMA_QUANTS_5, MMA_QUANTS_5_MINIMUM, MMA_QUANTS_8 };
template <int KIND>
struct Mma32 {
    static constexpr bool BYTES = KIND == MMA_QUANTS_8,
                          HIGH_BIT = KIND == MMA_QUANTS_5 || KIND == MMA_QUANTS_5_MINIMUM,
                          MINIMUM = KIND == MMA_QUANTS_4_MINIMUM || KIND == MMA_QUANTS_5_MINIMUM;
    static constexpr u32 HEADER = MINIMUM ? 4 : 2,
                         BLOCK_BYTES = HEADER + (HIGH_BIT ? 4 : 0) + (BYTES ? 32 : 16),
                         CHUNK_BYTES = 8 * BLOCK_BYTES;
    static constexpr bool ALIGNED = false;

    // One block of one row: bytes 4 t to 4 t + 3 of both slices.
    struct Row {
        u32 quants[2];
        BlockScale scale;

        // Four bits of a word to bit 4 of each byte.
        static DEVICE u32 spread(u32 bits) { return ((bits & 15) * 0x00204081u & 0x01010101u) << 4; }

        DEVICE Row(const u8* stage, u32 block, bool exists) {
            const u32 t = threadIdx.x & 3;
            scale.scale = f16_to_f32((u16)lds2(stage + block));
            constexpr float OFFSET = KIND == MMA_QUANTS_4 ? 8 : KIND == MMA_QUANTS_5 ? 16 : 0;
            scale.minimum =
                MINIMUM ? -f16_to_f32((u16)lds2(stage + block + 2)) : __fmul_rn(OFFSET, scale.scale);
            if (!exists) scale.scale = scale.minimum = 0;
            const EvenWords bytes(stage + t * 4, block + HEADER + (HIGH_BIT ? 4 : 0));
            quants[0] = bytes.load(0);
            if (BYTES) {
                quants[1] = bytes.load(16);
            } else {
                quants[1] = quants[0] >> 4 & LOW_NIBBLES, quants[0] &= LOW_NIBBLES;
            }
            if (HIGH_BIT) {
                const u32 bits = EvenWords(stage, block + HEADER).load(0) >> t * 4;
                quants[0] |= spread(bits), quants[1] |= spread(bits >> 16);
            }
        }
    };

    static DEVICE void multiply(const StageRows& w, const XUnit& first, u32 half, u32 blocks,
                                UnitSums& sums) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const XUnit unit = first.next(e);
            const uint4 b = unit.quants();
            const float4 x0 = unit.block(0), x1 = unit.block(1);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                i32 dots[2][4];
                BlockScale scales[2][2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 at = (half * 4 + e * 2 + i) * BLOCK_BYTES;
                    const bool exists = (u32)(e * 2 + i) < blocks;
                    const Row r0(w.stage, w.row(tile, 0) + at, exists),
                        r1(w.stage, w.row(tile, 1) + at, exists);
                    const u32 a[4] = {r0.quants[0], r1.quants[0], r0.quants[1], r1.quants[1]};
                    if (BYTES)
                        mma_m16n8k32_s8(dots[i], a, i ? b.z : b.x, i ? b.w : b.y, ACCUMULATOR_BIAS);
                    else
                        mma_m16n8k32_u8(dots[i], a, i ? b.z : b.x, i ? b.w : b.y, ACCUMULATOR_BIAS);
                    scales[0][i] = r0.scale, scales[1][i] = r1.scale;
                }
                add_tile<!BYTES>(sums[e][tile], dots[0], dots[1], scales, x0, x1);
            }
        }
    }
};

using q4_k = MmaQ45K<false>;
using q5_k = MmaQ45K<true>;
using q6_k = MmaQ6K;
using q4_0 = Mma32<MMA_QUANTS_4>;
using q4_1 = Mma32<MMA_QUANTS_4_MINIMUM>;
using q5_0 = Mma32<MMA_QUANTS_5>;
using q5_1 = Mma32<MMA_QUANTS_5_MINIMUM>;
using q8_0 = Mma32<MMA_QUANTS_8>;
