// GEMV (gemv.cu): how each weight format is dequantized and multiplied with q8 activations by dp4a.
//
// A lane works on units of 64 columns: `load` puts the quants of a unit into registers as bytes, with its
// scales; `add_dot` adds its dot product with a unit of x to a sum in f32. Integer products and sums of 32 or
// 16 elements are exact; they are scaled by the integer scale of the sub-block, then in f32 by the scales of
// the block and of x. The arithmetic in f32 is written as intrinsics, so that results do not depend on what a
// compiler contracts.
//
// A format provides:
//   CHUNK_BYTES                  bytes of 256 columns of a row
//   load(row, unit, whole)       `whole`: both 32-column blocks of the unit exist
//   add_dot(sum, lane, x)        `x`: the q8 group (q8_activations.cuh) of the unit, which is lane % 8 there
#pragma once

#include "q8_activations.cuh"
#include "quant_loads.cuh"
#include "quant_tables.cuh"

DEVICE float2 f16x2_to_f32(u32 word) {
    return make_float2(f16_to_f32((u16)word), f16_to_f32((u16)(word >> 16)));
}

// factor * dot - minimum * sum.
DEVICE float scaled(float factor, float dot, float minimum, float sum) {
    return __fmaf_rn(factor, dot, -__fmul_rn(minimum, sum));
}
// sum + both blocks of a unit.
DEVICE float add_blocks(float sum, const Q8Unit& u, float first, float second) {
    return __fadd_rn(sum, __fmaf_rn(u.scale0, first, __fmul_rn(u.scale1, second)));
}

// sum + the dot product of 16 bytes of W, unsigned or signed, and 16 signed bytes of x.
DEVICE i32 dot16_u8(uint4 w, uint4 x, i32 sum) {
    sum = dp4a_u32_s32(w.x, x.x, sum);
    sum = dp4a_u32_s32(w.y, x.y, sum);
    sum = dp4a_u32_s32(w.z, x.z, sum);
    sum = dp4a_u32_s32(w.w, x.w, sum);
    return sum;
}
DEVICE i32 dot16_s8(uint4 w, uint4 x, i32 sum) {
    sum = __dp4a((i32)w.x, (i32)x.x, sum);
    sum = __dp4a((i32)w.y, (i32)x.y, sum);
    sum = __dp4a((i32)w.z, (i32)x.z, sum);
    return __dp4a((i32)w.w, (i32)x.w, sum);
}
DEVICE uint4 masked(uint4 v, u32 shift, u32 mask) {
    return make_uint4((v.x >> shift) & mask, (v.y >> shift) & mask, (v.z >> shift) & mask,
                      (v.w >> shift) & mask);
}
DEVICE uint4 shifted(uint4 v, u32 shift, u32 mask) {
    return make_uint4((v.x << shift) & mask, (v.y << shift) & mask, (v.z << shift) & mask,
                      (v.w << shift) & mask);
}
DEVICE uint4 operator|(uint4 a, uint4 b) { return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w); }

// Q4_K and Q5_K (HIGH_BIT). A unit is two sub-blocks, the low and high nibbles of 32 bytes. High nibbles of
// Q4_K are used in place, 16 times too large; the scale of the low ones is multiplied by 16 instead.
template <bool HIGH_BIT>
struct FormatQ45K {
    static constexpr u32 BLOCK_BYTES = HIGH_BIT ? 176 : 144, CHUNK_BYTES = BLOCK_BYTES;

    // Quants of the first sub-block in a and b, of the second in c and e.
    uint4 a, b, c, e;
    i32 scale0, scale1, minimum0, minimum1;
    float2 factor;

    DEVICE void load(const u8* row, u32 unit, bool whole) {
        u32 j = unit & 3;
        const u8 *block = row + (unit >> 2) * BLOCK_BYTES, *quants = block + (HIGH_BIT ? 48 : 16) + j * 32;
        uint4 header = lds16(block), low = lds16(quants), high = lds16(quants + 16);
        // The 6-bit scales and minima of sub-blocks 2j and 2j + 1.
        u32 shift = 16 * (j & 1);
        bool upper = j >= 2;
        u32 mask = upper ? 0x0f0f : 0x3f3f, top = upper ? 0x3030 : 0;
        u32 scales = (((upper ? header.w : header.y) >> shift) & mask) | ((header.y >> (shift + 2)) & top);
        u32 minima =
            (((upper ? header.w >> 4 : header.z) >> shift) & mask) | ((header.z >> (shift + 2)) & top);
        factor = f16x2_to_f32(header.x);
        scale0 = scales & 255, scale1 = scales >> 8, minimum0 = minima & 255, minimum1 = minima >> 8;
        a = masked(low, 0, LOW_NIBBLES), b = masked(high, 0, LOW_NIBBLES);
        if (!HIGH_BIT) {
            c = masked(low, 0, ~LOW_NIBBLES), e = masked(high, 0, ~LOW_NIBBLES);
            scale0 *= 16;
            factor.x *= 0.0625f;
        } else {
            c = masked(low, 4, LOW_NIBBLES), e = masked(high, 4, LOW_NIBBLES);
            uint4 high_bits0 = lds16(block + 16), high_bits1 = lds16(block + 32);
            a = a | shifted(masked(high_bits0, 2 * j, 0x01010101), 4, ~0u);
            b = b | shifted(masked(high_bits1, 2 * j, 0x01010101), 4, ~0u);
            c = c | shifted(masked(high_bits0, 2 * j + 1, 0x01010101), 4, ~0u);
            e = e | shifted(masked(high_bits1, 2 * j + 1, 0x01010101), 4, ~0u);
        }
    }
    DEVICE float add_dot(float sum, u32 lane, const u8* x) const {
        const uint4* quants = (const uint4*)(x + (lane & 7) * 16);
        Q8Unit u = *(const Q8Unit*)(x + 512 + (lane & 7) * 16);
        i32 dot0 = dot16_u8(b, quants[8], dot16_u8(a, quants[0], 0)),
            dot1 = dot16_u8(e, quants[24], dot16_u8(c, quants[16], 0));
        const float first = scaled(factor.x, (float)(dot0 * scale0), factor.y, (float)(u.sum0 * minimum0));
        const float second = scaled(factor.x, (float)(dot1 * scale1), factor.y, (float)(u.sum1 * minimum1));
        return add_blocks(sum, u, first, second);
    }
};

// Q6_K. A unit is 16 columns of each of the four 32-column groups of half a block, which share the bytes of
// their upper 2 bits. Odd lanes take the groups in the order 2 3 0 1, so that neighboring lanes read other
// banks of x.
struct FormatQ6K {
    static constexpr u32 CHUNK_BYTES = 210;
    uint4 w[4];
    i32 scale[4];
    float d;

    static DEVICE uint4 rotated(uint4 v, u32 by) {
        const uint4 t = make_uint4(__funnelshift_l(v.x, v.x, by), __funnelshift_l(v.y, v.y, by),
                                   __funnelshift_l(v.z, v.z, by), __funnelshift_l(v.w, v.w, by));
        return masked(t, 0, 0x30303030);
    }

    DEVICE void load(const u8* row, u32 unit, bool whole) {
        u32 half = (unit >> 1) & 1, q = unit & 1;
        const u8* block = row + (unit >> 2) * 210;
        uint4 low = lds16_even(block + half * 64 + q * 16),
              high = lds16_even(block + half * 64 + q * 16 + 32);
        uint4 top = lds16_even(block + 128 + half * 32 + q * 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            scale[i] = (i8)(lds2(block + 192 + half * 8 + ((i * 2) ^ (q * 4))) >> (8 * q));
        d = f16_to_f32((u16)lds2(block + 208));
        // Two bits of `top` are the upper bits of each nibble.
        const u32 first = q * 4, second = 4 - first, rotation = q ? 30 : 2;
        w[0] = masked(low, first, LOW_NIBBLES) | rotated(top, second),
        w[1] = masked(high, first, LOW_NIBBLES) | rotated(top, rotation);
        w[2] = masked(low, second, LOW_NIBBLES) | rotated(top, first),
        w[3] = masked(high, second, LOW_NIBBLES) | rotated(top, 32 - rotation);
    }
    // Slices q and q + 2 of two neighboring units of x.
    DEVICE float add_dot(float sum, u32 lane, const u8* x) const {
        const u32 q = lane & 1, unit = lane & 7, other = unit ^ 1;
        const uint4 *quants = (const uint4*)(x + q * 128 + unit * 16),
                    *more = (const uint4*)(x + q * 128 + other * 16);
        const float2 s = *(const float2*)(x + 512 + unit * 16), t = *(const float2*)(x + 512 + other * 16);
        const int2 sums = *(const int2*)(x + 640 + unit * 16 + q * 8),
                   others = *(const int2*)(x + 640 + other * 16 + q * 8);
        const i32 a = scale[0] * dot16_u8(w[0], quants[0], -32 * sums.x),
                  b = scale[1] * dot16_u8(w[1], quants[16], -32 * sums.y);
        const i32 c = scale[2] * dot16_u8(w[2], more[0], -32 * others.x),
                  e = scale[3] * dot16_u8(w[3], more[16], -32 * others.y);
        float all = __fmaf_rn(s.x, (float)a, __fmul_rn(s.y, (float)b));
        all = __fmaf_rn(t.y, (float)e, __fmaf_rn(t.x, (float)c, all));
        return __fmaf_rn(d, all, sum);
    }
};

// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: a unit is two blocks of 32, the second of which may be missing at the end of
// a row.
enum { QUANTS_4, QUANTS_4_MINIMUM, QUANTS_5, QUANTS_5_MINIMUM, QUANTS_8 };
template <int KIND>
struct Format32 {
    static constexpr bool QUANTS_ARE_BYTES = KIND == QUANTS_8,
                          HIGH_BIT = KIND == QUANTS_5 || KIND == QUANTS_5_MINIMUM;
    static constexpr bool MINIMUM = KIND == QUANTS_4_MINIMUM || KIND == QUANTS_5_MINIMUM;
    static constexpr u32 BLOCK_BYTES =
                             2 + (MINIMUM ? 2 : 0) + (HIGH_BIT ? 4 : 0) + (QUANTS_ARE_BYTES ? 32 : 16),
                         CHUNK_BYTES = 8 * BLOCK_BYTES;
    uint4 quants[4];
    float scale[2], minimum[2];

    // Each of 16 bits to bit 4 of a byte.
    static DEVICE uint4 spread(u32 bits) {
        auto four = [](u32 v) { return (((v & 15) * 0x00204081u) & 0x01010101u) << 4; };
        return make_uint4(four(bits), four(bits >> 4), four(bits >> 8), four(bits >> 12));
    }

    DEVICE void load(const u8* row, u32 unit, bool whole) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u8* at = row + (unit * 2 + (i == 1 && whole)) * BLOCK_BYTES;
            scale[i] = f16_to_f32((u16)lds2(at));
            constexpr float OFFSET = KIND == QUANTS_4 ? 8 : KIND == QUANTS_5 ? 16 : 0;
            minimum[i] = MINIMUM ? -f16_to_f32((u16)lds2(at + 2)) : OFFSET * scale[i];
            at += MINIMUM ? 4 : 2;
            u32 high_bits = 0;
            if (HIGH_BIT) {
                high_bits = lds2(at) | lds2(at + 2) << 16;
                at += 4;
            }
            uint4 first = lds16_even(at);
            if (QUANTS_ARE_BYTES) {
                quants[2 * i] = first, quants[2 * i + 1] = lds16_even(at + 16);
            } else {
                quants[2 * i] = masked(first, 0, LOW_NIBBLES),
                           quants[2 * i + 1] = masked(first, 4, LOW_NIBBLES);
                if (HIGH_BIT)
                    quants[2 * i] = quants[2 * i] | spread(high_bits & 0xffff),
                               quants[2 * i + 1] = quants[2 * i + 1] | spread(high_bits >> 16);
            }
        }
        // The first block was loaded twice.
        if (!whole) scale[1] = minimum[1] = 0;
    }
    DEVICE float add_dot(float sum, u32 lane, const u8* x) const {
        const uint4* from = (const uint4*)(x + (lane & 7) * 16);
        Q8Unit u = *(const Q8Unit*)(x + 512 + (lane & 7) * 16);
        if (QUANTS_ARE_BYTES) {
            i32 dot0 = dot16_s8(quants[1], from[8], dot16_s8(quants[0], from[0], 0)),
                dot1 = dot16_s8(quants[3], from[24], dot16_s8(quants[2], from[16], 0));
            return add_blocks(sum, u, __fmul_rn(scale[0], (float)dot0), __fmul_rn(scale[1], (float)dot1));
        }
        i32 dot0 = dot16_u8(quants[1], from[8], dot16_u8(quants[0], from[0], 0)),
            dot1 = dot16_u8(quants[3], from[24], dot16_u8(quants[2], from[16], 0));
        return add_blocks(sum, u, scaled(scale[0], (float)dot0, minimum[0], (float)u.sum0),
                          scaled(scale[1], (float)dot1, minimum[1], (float)u.sum1));
    }
};

// MXFP4, IQ4_NL, IQ4_XS: indices of a table of signed bytes. A unit is two blocks, or groups of a block, of
// 32, the second of which may be missing at the end of a row.
enum { TABLE_MXFP4, TABLE_IQ4_NL, TABLE_IQ4_XS };
template <int KIND>
struct FormatTable {
    static constexpr u32 BLOCK_BYTES = KIND == TABLE_MXFP4 ? 17 : 18,
                         CHUNK_BYTES = KIND == TABLE_IQ4_XS ? 136 : 8 * BLOCK_BYTES;
    uint4 quants[4];
    float scale[2];

    DEVICE void load(const u8* row, u32 unit, bool whole) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u8* at = row + (unit * 2 + (i == 1 && whole)) * BLOCK_BYTES;
            uint4 indices;
            if (KIND == TABLE_MXFP4) {
                scale[i] = e8m0_halved(*at);
                indices = lds16_any(at + 1);
            } else if (KIND == TABLE_IQ4_NL) {
                scale[i] = f16_to_f32((u16)lds2(at));
                indices = lds16_even(at + 2);
            } else {
                const u32 j = (unit & 3) * 2 + i;
                const u8* block = row + (unit >> 2) * CHUNK_BYTES;
                const int step = iq4_xs_scale(block[4 + (unit & 3)], lds2(block + 2), j);
                scale[i] = f16_to_f32((u16)lds2(block)) * (float)step;
                indices = lds16_even(block + 8 + j * 16);
            }
            constexpr Table16 TABLE = KIND == TABLE_MXFP4 ? MXFP4_VALUES : IQ4_VALUES;
            look_up8(TABLE, indices.x, quants[2 * i].x, quants[2 * i + 1].x);
            look_up8(TABLE, indices.y, quants[2 * i].y, quants[2 * i + 1].y);
            look_up8(TABLE, indices.z, quants[2 * i].z, quants[2 * i + 1].z);
            look_up8(TABLE, indices.w, quants[2 * i].w, quants[2 * i + 1].w);
        }
        // The first block was loaded twice.
        if (!whole) scale[1] = 0;
    }
    DEVICE float add_dot(float sum, u32 lane, const u8* x) const {
        const uint4* from = (const uint4*)(x + (lane & 7) * 16);
        Q8Unit u = *(const Q8Unit*)(x + 512 + (lane & 7) * 16);
        i32 dot0 = dot16_s8(quants[1], from[8], dot16_s8(quants[0], from[0], 0)),
            dot1 = dot16_s8(quants[3], from[24], dot16_s8(quants[2], from[16], 0));
        return add_blocks(sum, u, __fmul_rn(scale[0], (float)dot0), __fmul_rn(scale[1], (float)dot1));
    }
};

using q4_k = FormatQ45K<false>;
using q5_k = FormatQ45K<true>;
using q6_k = FormatQ6K;
using q4_0 = Format32<QUANTS_4>;
using q4_1 = Format32<QUANTS_4_MINIMUM>;
using q5_0 = Format32<QUANTS_5>;
using q5_1 = Format32<QUANTS_5_MINIMUM>;
using q8_0 = Format32<QUANTS_8>;
using mxfp4 = FormatTable<TABLE_MXFP4>;
using iq4_nl = FormatTable<TABLE_IQ4_NL>;
using iq4_xs = FormatTable<TABLE_IQ4_XS>;

// The formats that a GEMV has an entry for, by the names of their types.
#define FOR_EACH_GEMV_FORMAT(ENTRY) \
    ENTRY(q4_k)                     \
    ENTRY(q5_k)                     \
    ENTRY(q6_k)                     \
    ENTRY(q4_0) ENTRY(q4_1) ENTRY(q5_0) ENTRY(q5_1) ENTRY(q8_0) ENTRY(mxfp4) ENTRY(iq4_nl) ENTRY(iq4_xs)
