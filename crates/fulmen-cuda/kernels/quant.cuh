// The weight types of GGUF, and how eight consecutive elements of a row are dequantized to f32.
//
// Block formats have `W::dequantize8(block, chunk, out)`, which gives elements 8 * chunk to 8 * chunk + 7 of
// a block of W::BLOCK elements in W::BYTES bytes. Blocks start at multiples of the largest power of two that
// divides their size (rows are whole blocks, and a weight starts at a multiple of 16), and loads here are no
// wider than that: bytes for MXFP4. Names follow ggml: d and m (or min) are scale and minimum, qs the low
// bits of the quants, qh the high bits.
#pragma once
#include "common.cuh"
#include "quant_tables.cuh"

// Bytes at an even address.
DEVICE u32 load2(const u8* at) { return *(const u16*)at; }
DEVICE u32 load4_of_2(const u8* at) { return load2(at) | load2(at + 2) << 16; }
// Bytes at a multiple of four.
DEVICE u32 load4(const u8* at) { return *(const u32*)at; }

DEVICE u32 byte_of(u32 word, int i) { return word >> (8 * i) & 0xff; }
DEVICE float signed_byte(u32 word, int i) { return (float)(i8)byte_of(word, i); }

struct F32 {
    static constexpr int BLOCK = 1, BYTES = 4;
    static DEVICE float one(const u8* at) { return *(const float*)at; }
};

struct F16 {
    static constexpr int BLOCK = 1, BYTES = 2;
    static DEVICE float one(const u8* at) { return f16_to_f32(*(const u16*)at); }
};

struct BF16 {
    static constexpr int BLOCK = 1, BYTES = 2;
    static DEVICE float one(const u8* at) { return bf16_to_f32(*(const u16*)at); }
};

// 4-bit quants in 16 bytes: the low nibbles are elements 0 to 15, the high nibbles 16 to 31.
DEVICE void nibbles32(u32 low, u32 high, int chunk, u32 quants[8]) {
    int shift = chunk < 2 ? 0 : 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        quants[i] = byte_of(low, i) >> shift & 15;
        quants[4 + i] = byte_of(high, i) >> shift & 15;
    }
}

// f16 d, 16 bytes of 4-bit quants (offset -8).
struct Q4_0 {
    static constexpr int BLOCK = 32, BYTES = 18;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        float d = f16_to_f32(load2(block));
        const u8* qs = block + 2 + chunk % 2 * 8;
        u32 quants[8];
        nibbles32(load4_of_2(qs), load4_of_2(qs + 4), chunk, quants);
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = d * (float)((int)quants[i] - 8);
    }
};

// f16 d and m, 16 bytes of 4-bit quants.
struct Q4_1 {
    static constexpr int BLOCK = 32, BYTES = 20;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        u32 d_m = load4(block);
        float d = f16_to_f32(d_m), m = f16_to_f32(d_m >> 16);
        const u8* qs = block + 4 + chunk % 2 * 8;
        u32 quants[8];
        nibbles32(load4(qs), load4(qs + 4), chunk, quants);
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = d * (float)quants[i] + m;
    }
};

// f16 d, 4 bytes of fifth bits, 16 bytes of 4-bit quants (offset -16).
struct Q5_0 {
    static constexpr int BLOCK = 32, BYTES = 22;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        float d = f16_to_f32(load2(block));
        u32 qh = load4_of_2(block + 2) >> (8 * chunk);
        const u8* qs = block + 6 + chunk % 2 * 8;
        u32 quants[8];
        nibbles32(load4_of_2(qs), load4_of_2(qs + 4), chunk, quants);
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = d * (float)((int)(quants[i] | (qh >> i & 1) << 4) - 16);
    }
};

// f16 d and m, 4 bytes of fifth bits, 16 bytes of 4-bit quants.
struct Q5_1 {
    static constexpr int BLOCK = 32, BYTES = 24;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        u32 d_m = load4(block);
        float d = f16_to_f32(d_m), m = f16_to_f32(d_m >> 16);
        u32 qh = load4(block + 4) >> (8 * chunk);
        const u8* qs = block + 8 + chunk % 2 * 8;
        u32 quants[8];
        nibbles32(load4(qs), load4(qs + 4), chunk, quants);
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = d * (float)(quants[i] | (qh >> i & 1) << 4) + m;
    }
};

// f16 d, 32 signed bytes.
struct Q8_0 {
    static constexpr int BLOCK = 32, BYTES = 34;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        float d = f16_to_f32(load2(block));
        const u8* qs = block + 2 + chunk * 8;
        u32 low = load4_of_2(qs), high = load4_of_2(qs + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = d * signed_byte(low, i);
            out[4 + i] = d * signed_byte(high, i);
        }
    }
};

// K-quants: blocks of 256 elements. A byte holds bits of 8 / b elements that are 32 (or 64) apart, where b is
// the width of the bit field: bytes are read once and shifted.

// 16 bytes of scale (low 4 bits) and minimum (high) per 16 elements, 64 bytes of 2-bit quants, f16 d and
// dmin.
struct Q2_K {
    static constexpr int BLOCK = 256, BYTES = 84;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        u32 d_dmin = load4(block + 80), packed = block[chunk / 2];
        float scale = f16_to_f32(d_dmin) * (float)(packed & 15);
        float min = f16_to_f32(d_dmin >> 16) * (float)(packed >> 4);
        const u8* qs = block + 16 + chunk / 16 * 32 + chunk % 4 * 8;
        int shift = chunk / 4 % 4 * 2;
        u32 low = load4(qs) >> shift, high = load4(qs + 4) >> shift;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = scale * (float)(byte_of(low, i) & 3) - min;
            out[4 + i] = scale * (float)(byte_of(high, i) & 3) - min;
        }
    }
};

// 32 bytes of third bits, 64 bytes of 2-bit quants (offset -4), 12 bytes of 6-bit scales per 16 elements
// (offset -32), f16 d.
struct Q3_K {
    static constexpr int BLOCK = 256, BYTES = 110;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        int group = chunk / 2;
        const u8* scales = block + 96;
        u32 low4 = scales[group % 8] >> (group / 8 * 4) & 15;
        u32 high2 = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        float scale = f16_to_f32(load2(block + 108)) * (float)((int)(low4 | high2 << 4) - 32);
        const u8* qs = block + 32 + chunk / 16 * 32 + chunk % 4 * 8;
        const u8* qh = block + chunk % 4 * 8;
        int shift = chunk / 4 % 4 * 2, plane = chunk / 4;
        u32 low = load4_of_2(qs) >> shift, high = load4_of_2(qs + 4) >> shift;
        u32 low_qh = load4_of_2(qh) >> plane, high_qh = load4_of_2(qh + 4) >> plane;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int a = (byte_of(low, i) & 3) | (byte_of(low_qh, i) & 1) << 2;
            int b = (byte_of(high, i) & 3) | (byte_of(high_qh, i) & 1) << 2;
            out[i] = scale * (float)(a - 4);
            out[4 + i] = scale * (float)(b - 4);
        }
    }
};

// The 6-bit scale and minimum of group j of 32 elements, packed in 12 bytes.
DEVICE void scale_min(const u8* scales, int j, u32& scale, u32& min) {
    if (j < 4) {
        scale = scales[j] & 63;
        min = scales[j + 4] & 63;
    } else {
        scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        min = scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
    }
}

// f16 d and dmin, 12 bytes of scales and minimums, 128 bytes of 4-bit quants.
struct Q4_K {
    static constexpr int BLOCK = 256, BYTES = 144;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        u32 d_dmin = load4(block), s, m;
        int group = chunk / 4;
        scale_min(block + 4, group, s, m);
        float scale = f16_to_f32(d_dmin) * (float)s, min = f16_to_f32(d_dmin >> 16) * (float)m;
        const u8* qs = block + 16 + group / 2 * 32 + chunk % 4 * 8;
        int shift = group % 2 * 4;
        u32 low = load4(qs) >> shift, high = load4(qs + 4) >> shift;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = scale * (float)(byte_of(low, i) & 15) - min;
            out[4 + i] = scale * (float)(byte_of(high, i) & 15) - min;
        }
    }
};

// f16 d and dmin, 12 bytes of scales and minimums, 32 bytes of fifth bits, 128 bytes of 4-bit quants.
struct Q5_K {
    static constexpr int BLOCK = 256, BYTES = 176;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        u32 d_dmin = load4(block), s, m;
        int group = chunk / 4;
        scale_min(block + 4, group, s, m);
        float scale = f16_to_f32(d_dmin) * (float)s, min = f16_to_f32(d_dmin >> 16) * (float)m;
        const u8* qh = block + 16 + chunk % 4 * 8;
        const u8* qs = block + 48 + group / 2 * 32 + chunk % 4 * 8;
        int shift = group % 2 * 4;
        u32 low = load4(qs) >> shift, high = load4(qs + 4) >> shift;
        u32 low_qh = load4(qh) >> group, high_qh = load4(qh + 4) >> group;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 a = (byte_of(low, i) & 15) | (byte_of(low_qh, i) & 1) << 4;
            u32 b = (byte_of(high, i) & 15) | (byte_of(high_qh, i) & 1) << 4;
            out[i] = scale * (float)a - min;
            out[4 + i] = scale * (float)b - min;
        }
    }
};

// 128 bytes of low 4 bits (64 bytes per 128 elements), 64 bytes of upper 2 bits (32 bytes per 128 elements;
// offset -32), 16 signed 8-bit scales per 16 elements, f16 d.
struct Q6_K {
    static constexpr int BLOCK = 256, BYTES = 210;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        float scale = f16_to_f32(load2(block + 208)) * (float)(i8)block[192 + chunk / 2];
        const u8* ql = block + chunk / 16 * 64 + chunk % 8 * 8;
        const u8* qh = block + 128 + chunk / 16 * 32 + chunk % 4 * 8;
        int shift = chunk / 8 % 2 * 4, shift_high = chunk / 4 % 4 * 2;
        u32 low = load4_of_2(ql) >> shift, high = load4_of_2(ql + 4) >> shift;
        u32 low_qh = load4_of_2(qh) >> shift_high, high_qh = load4_of_2(qh + 4) >> shift_high;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int a = (byte_of(low, i) & 15) | (byte_of(low_qh, i) & 3) << 4;
            int b = (byte_of(high, i) & 15) | (byte_of(high_qh, i) & 3) << 4;
            out[i] = scale * (float)(a - 32);
            out[4 + i] = scale * (float)(b - 32);
        }
    }
};

// f32 d, 256 signed bytes, and their sums, which are not needed here.
struct Q8_K {
    static constexpr int BLOCK = 256, BYTES = 292;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        float d = *(const float*)block;
        u32 low = load4(block + 4 + chunk * 8), high = load4(block + 8 + chunk * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = d * signed_byte(low, i);
            out[4 + i] = d * signed_byte(high, i);
        }
    }
};

// Eight values of a table: low nibbles of eight bytes for chunks 0 and 1 of 32 elements, high nibbles for 2
// and 3.
DEVICE void look_up_chunk(Table16 table, float d, u32 first, u32 second, int chunk, float out[8]) {
    u32 low[2], high[2];
    look_up8(table, first, low[0], high[0]);
    look_up8(table, second, low[1], high[1]);
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = d * signed_byte(chunk < 2 ? low[i / 4] : high[i / 4], i % 4);
}

// Exponent of the scale (8 bits), 16 bytes of 4-bit indices.
struct MXFP4 {
    static constexpr int BLOCK = 32, BYTES = 17;
    static DEVICE u32 load4_of_1(const u8* at) { return at[0] | at[1] << 8 | at[2] << 16 | (u32)at[3] << 24; }
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        const u8* qs = block + 1 + chunk % 2 * 8;
        look_up_chunk(MXFP4_VALUES, e8m0_halved(block[0]), load4_of_1(qs), load4_of_1(qs + 4), chunk, out);
    }
};

// f16 d, 16 bytes of 4-bit indices.
struct IQ4_NL {
    static constexpr int BLOCK = 32, BYTES = 18;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        const u8* qs = block + 2 + chunk % 2 * 8;
        look_up_chunk(IQ4_VALUES, f16_to_f32(load2(block)), load4_of_2(qs), load4_of_2(qs + 4), chunk, out);
    }
};

// f16 d, 2 bytes of upper 2 bits and 4 bytes of lower 4 bits of the scales per 32 elements, 128 bytes of
// 4-bit indices, 16 per 32 elements.
struct IQ4_XS {
    static constexpr int BLOCK = 256, BYTES = 136;
    static DEVICE void dequantize8(const u8* block, int chunk, float out[8]) {
        const u32 d_high = load4(block), j = chunk / 4;
        float d = f16_to_f32(d_high) * (float)iq4_xs_scale(block[4 + j / 2], d_high >> 16, j);
        const u8* qs = block + 8 + j * 16 + chunk % 2 * 8;
        look_up_chunk(IQ4_VALUES, d, load4(qs), load4(qs + 4), chunk % 4, out);
    }
};

// Bytes of a row of `k` elements.
template <typename W>
DEVICE u64 row_bytes(u32 k) {
    return (u64)(k / W::BLOCK) * W::BYTES;
}

// Elements `at` to `at + 7` of a row of `k`, zeros past its end. `at` is a multiple of 8.
template <typename W>
DEVICE void dequantize_row8(const u8* row, u32 at, u32 k, float out[8]) {
    if constexpr (W::BLOCK == 1) {
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = at + i < k ? W::one(row + (u64)(at + i) * W::BYTES) : 0.0f;
    } else {
        if (at < k) {
            W::dequantize8(row + (u64)(at / W::BLOCK) * W::BYTES, at % W::BLOCK / 8, out);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = 0.0f;
        }
    }
}

// One expansion of `X(type, name)` for each weight type.
#define FOR_EACH_WEIGHT(X) \
    X(F32, f32)            \
    X(F16, f16)            \
    X(BF16, bf16)          \
    X(Q4_0, q4_0)          \
    X(Q4_1, q4_1)          \
    X(Q5_0, q5_0)          \
    X(Q5_1, q5_1)          \
    X(Q8_0, q8_0)          \
    X(Q2_K, q2_k)          \
    X(Q3_K, q3_k)          \
    X(Q4_K, q4_k)          \
    X(Q5_K, q5_k)          \
    X(Q6_K, q6_k)          \
    X(Q8_K, q8_k)          \
    X(MXFP4, mxfp4)        \
    X(IQ4_NL, iq4_nl)      \
    X(IQ4_XS, iq4_xs)
