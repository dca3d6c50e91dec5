// Small-M GEMM (gemm_small_m.cu): how each weight format is dequantized to f16 A-fragments of mma.m16n8k16.
//
// A warp holds 16 rows of W and one K chunk of 256 columns. Lane 4 g + t dequantizes rows g and g + 8: of
// each the 64 columns of its four K slices (f16_fragments.cuh), in registers, from the quantized blocks in
// shared memory.
//
// - K-quants: the quants are used as f16 bit patterns as they are. Small integers are subnormal f16 numbers q
//   * 2^-24, so one multiplication by the integer scale of the sub-block gives an exact product up to 2048
//   (Q6_K: rounded to 11 bits above). The factor 2^24 (SCALE) and the f16 scale of the whole block are
//   applied to the accumulators.
// - The formats of 32 elements have no common scale for a chunk. Their quants become f16 numbers by setting
//   mantissa bits of 1024 (0x6400 | q is 1024 + q), and q * scale + minimum is evaluated in f16: weights must
//   fit f16 (65504), as those of models do by far.
//
// A format provides:
//   CHUNK_BYTES, ROW_VECTORS  bytes of a row's chunk, and 16-byte vectors of a stage that cover them
//   K_ORDER                   the column order of x that it needs
//   ALIGNED                   a chunk is whole 16-byte vectors: loaded by TMA tiles instead of cp.async
//   load_scales(row g, row g + 8, n, t)   for a chunk of which n blocks of 32 columns exist
//   PASSES times: load_quants(pass), then STEPS times: a_fragment(i), which belongs to k-step
//                             STEP(i) + pass * PASS_STEPS of x
//   HAS_OFFSETS               offset_fragment() multiplies the slice sums of x: minima or zero points
//   HAS_MINIMUM               in accumulators of their own, scaled by chunk_minimum(r)
//   chunk_scale(r), chunk_minimum(r)   f32 factors of the chunk's accumulators, for row g (0) and g + 8 (1)
//   SCALE                     the common factor of all accumulators
//   FEW_REGISTERS             gate and up can be dequantized at the same time
#pragma once

#include "f16_fragments.cuh"
#include "quant_loads.cuh"
#include "quant_tables.cuh"

// ---- f16x2 arithmetic -------------------------------------------------------------------------------------

// The masked bits of a word as the low mantissa bits of 1024, in both f16 of the word: 1024 + q. One LOP3.
DEVICE u32 f16x2_1024_plus(u32 word, u32 mask) { return lop3_and_or(word, mask, 0x64006400); }

// The low nibbles of a word as the low mantissa bits of 1024, of bytes 0 and 2, and of bytes 1 and 3; or the
// high nibbles, 16 times too large.
DEVICE void f16x2_1024_plus_nibbles(u32 word, bool high, u32 (&pairs)[2]) {
    const u32 mask = high ? 0x00f000f0 : 0x000f000f;
    pairs[0] = f16x2_1024_plus(word, mask), pairs[1] = f16x2_1024_plus(word >> 8, mask);
}

// Where the fifth bits of those quants go.
DEVICE u32 fifth_bits(bool high) { return high ? 0x01000100 : 0x00100010; }

// An integer constant as f16x2, twice.
template <int VALUE>
DEVICE u32 f16x2_constant();
#define F16X2_CONSTANT(VALUE, BITS)      \
    template <>                          \
    DEVICE u32 f16x2_constant<VALUE>() { \
        return BITS;                     \
    }
F16X2_CONSTANT(-1024, 0xe400e400)
F16X2_CONSTANT(-1032, 0xe408e408)
F16X2_CONSTANT(-1040, 0xe410e410)
F16X2_CONSTANT(-1056, 0xe420e420)
F16X2_CONSTANT(-1152, 0xe480e480)
F16X2_CONSTANT(-80, 0xd500d500)
F16X2_CONSTANT(-72, 0xd480d480)
F16X2_CONSTANT(-64, 0xd400d400)
#undef F16X2_CONSTANT
constexpr u32 F16X2_SIXTEENTH = 0x2c002c00;
constexpr u32 F16X2_MINUS_32_SUBNORMAL = 0x80208020;  // -32 * 2^-24

// 1024 + byte I, twice; 1024 + byte I and 1024 + byte J.
template <int I>
DEVICE u32 f16x2_1024_plus_byte(u32 word) {
    return __byte_perm(word, 0x64, 0x4040 | I << 8 | I);
}
template <int I, int J>
DEVICE u32 f16x2_1024_plus_bytes(u32 word) {
    return __byte_perm(word, 0x64, 0x4040 | J << 8 | I);
}
// Bytes I and J of a word of bytes with 128 added, as f16 numbers.
template <int I, int J>
DEVICE u32 f16x2_minus_128_bytes(u32 word) {
    return add_f16x2(f16x2_1024_plus_bytes<I, J>(word), f16x2_constant<-1152>());
}
// Bytes I and J as subnormal f16 numbers: times 2^-24.
template <int I, int J>
DEVICE u32 f16x2_subnormal_bytes(u32 word) {
    return __byte_perm(word, 0, 0x4040 | J << 8 | I);
}
DEVICE u32 f16x2_splat(u32 half) { return __byte_perm(half, 0, 0x1010); }

// ---- Formats ----------------------------------------------------------------------------------------------

// Q4_K and Q5_K (HIGH_BIT). Thread t has sub-blocks 2 t and 2 t + 1: the low and high nibbles of the same 32
// bytes. High nibbles are used in place, 16 times too large, with a sixteenth of the scale.
template <bool HIGH_BIT>
struct FormatQ45K {
    static constexpr u32 CHUNK_BYTES = HIGH_BIT ? 176 : 144, ROW_VECTORS = CHUNK_BYTES / 16, PASSES = 2,
                         STEPS = 8, PASS_STEPS = 4;
    static constexpr int K_ORDER = K_CONTIGUOUS;
    static constexpr bool ALIGNED = true, HAS_OFFSETS = true, HAS_MINIMUM = true, FEW_REGISTERS = !HIGH_BIT;
    static constexpr float SCALE = 16777216;
    static constexpr u32 STEP(u32 i) { return i % 2 * 8 + i / 2; }

    const u8* rows[2];
    u32 scale[2][2];  // of sub-blocks 2 t and 2 t + 1, f16x2
    u32 packed_scales[2],
        super_scales[2];  // bytes: two scales, two minima; f16 scale and minimum of the block
    u32 words[2][4], high_bits[2][4], t;

    DEVICE void load_scales(const u8* first, const u8* second, u32, u32 thread) {
        t = thread;
        // 6-bit scales and minima to bytes. Those of sub-blocks 0 to 3 are the low 6 bits of header words y
        // and z; those of 4 to 7 have their upper 2 bits there and their lower 4 bits in word w.
        const bool second_half = t >= 2;
        const u32 whole = t & 1 ? 0x7632 : 0x5410, shift = second_half ? 2 : 0;
        const u32 mask = second_half ? 0x30303030 : 0x3f3f3f3f, rest = second_half ? 0x0f0f0f0f : 0;
        rows[0] = first, rows[1] = second;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint4 header = lds16(rows[r]);
            const u32 low = __byte_perm(header.w, header.w >> 4, whole);
            packed_scales[r] = ((__byte_perm(header.y, header.z, whole) >> shift) & mask) | (low & rest);
            super_scales[r] = header.x;
            scale[r][0] = add_f16x2(f16x2_1024_plus_byte<0>(packed_scales[r]), f16x2_constant<-1024>());
            scale[r][1] =
                fma_f16x2(f16x2_1024_plus_byte<1>(packed_scales[r]), F16X2_SIXTEENTH, f16x2_constant<-64>());
            rows[r] += (HIGH_BIT ? 48 : 16) + t * 32;
        }
    }
    DEVICE void load_quants(u32 pass) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            *(uint4*)words[r] = lds16(rows[r] + pass * 16);
            if (HIGH_BIT) {
                *(uint4*)high_bits[r] = lds16(rows[r] - 32 - t * 32 + pass * 16);
#pragma unroll
                for (int i = 0; i < 4; i++) high_bits[r][i] >>= 2 * t;
            }
        }
    }
    DEVICE void a_fragment(u32 i, u32 (&a)[4]) const {
        const bool high = i % 2;
        const u32 mask = high ? 0x00f000f0 : 0x000f000f, top = fifth_bits(high);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 word = words[r][i / 2];
            u32 even = word & mask, odd = word >> 8 & mask;
            if (HIGH_BIT) {
                const u32 bits = high_bits[r][i / 2];
                even |= (high ? bits << 7 : bits << 4) & top, odd |= (high ? bits >> 1 : bits >> 4) & top;
            }
            a[r] = mul_f16x2(even, scale[r][high]), a[2 + r] = mul_f16x2(odd, scale[r][high]);
        }
    }
    DEVICE void offset_fragment(u32 (&a)[4]) const {
#pragma unroll
        for (int r = 0; r < 2; r++)
            a[r] = f16x2_subnormal_bytes<2, 2>(packed_scales[r]),
            a[2 + r] = f16x2_subnormal_bytes<3, 3>(packed_scales[r]);
    }
    DEVICE float chunk_scale(int r) const { return f16_to_f32((u16)super_scales[r]); }
    DEVICE float chunk_minimum(int r) const { return -f16_to_f32((u16)(super_scales[r] >> 16)); }
};

// Q6_K. Thread t has 16 columns of each of the four 32-column groups of half a block, which share the bytes
// of their upper 2 bits.
struct FormatQ6K {
    static constexpr u32 CHUNK_BYTES = 210, ROW_VECTORS = 14, PASSES = 2, STEPS = 8, PASS_STEPS = 2;
    static constexpr int K_ORDER = K_INTERLEAVED;
    static constexpr bool ALIGNED = false, HAS_OFFSETS = true, HAS_MINIMUM = false, FEW_REGISTERS = false;
    static constexpr float SCALE = 16777216;
    static constexpr u32 STEP(u32 i) { return i % 4 * 4 + i / 4; }

    EvenAddress rows[2];
    u32 scale[2][4], zero_point[2][2], super_scales[2];
    u32 low[2][2], high[2][2], top[2][2], h;

    DEVICE void load_scales(const u8* first, const u8* second, u32, u32 t) {
        h = t / 2;
        rows[0] = EvenAddress(first), rows[1] = EvenAddress(second);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 pairs[2];
            rows[r].load(pairs, 192 + h * 8);
            super_scales[r] = lds2((r == 0 ? first : second) + 208);
            // int8 scales with their sign bit flipped: unsigned, 128 too large.
            const u32 scales = __byte_perm(pairs[0], pairs[1], t & 1 ? 0x7531 : 0x6420) ^ 0x80808080;
            scale[r][0] = f16x2_minus_128_bytes<0, 0>(scales);
            scale[r][1] = f16x2_minus_128_bytes<1, 1>(scales);
            scale[r][2] = f16x2_minus_128_bytes<2, 2>(scales);
            scale[r][3] = f16x2_minus_128_bytes<3, 3>(scales);
            // Quants have a zero point of 32.
            zero_point[r][0] = mul_f16x2(f16x2_minus_128_bytes<0, 1>(scales), F16X2_MINUS_32_SUBNORMAL);
            zero_point[r][1] = mul_f16x2(f16x2_minus_128_bytes<2, 3>(scales), F16X2_MINUS_32_SUBNORMAL);
            rows[r].words += h * 64 + t % 2 * 16;
        }
    }
    DEVICE void load_quants(u32 pass) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const EvenAddress row = rows[r];
            row.load(low[r], pass * 8);
            row.load(high[r], 32 + pass * 8);
            row.load(top[r], 128 - h * 32 + pass * 8);
        }
    }
    // The four quants of row r for fragment i, bytes with a zero point of 32.
    DEVICE u32 quants(u32 i, u32 r) const {
        const u32 group = i % 4, k = i / 4, word = group % 2 ? high[r][k] : low[r][k], bits = top[r][k];
        const u32 upper = (group == 0   ? bits << 4
                           : group == 1 ? bits << 2
                           : group == 2 ? bits
                                        : bits >> 2) &
                          0x30303030;
        return ((group < 2 ? word : word >> 4) & LOW_NIBBLES) | upper;
    }
    DEVICE void a_fragment(u32 i, u32 (&a)[4]) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            a[r] = mul_f16x2(f16x2_subnormal_bytes<0, 2>(quants(i, r)), scale[r][i % 4]),
            a[2 + r] = mul_f16x2(f16x2_subnormal_bytes<1, 3>(quants(i, r)), scale[r][i % 4]);
        }
    }
    DEVICE void offset_fragment(u32 (&a)[4]) const {
#pragma unroll
        for (int r = 0; r < 2; r++) a[r] = zero_point[r][0], a[2 + r] = zero_point[r][1];
    }
    DEVICE float chunk_scale(int r) const { return f16_to_f32((u16)super_scales[r]); }
    DEVICE float chunk_minimum(int) const { return 0; }
};

// Formats of 32-element blocks, whose fragments are final: no sums of x, no factors of a chunk.
struct FinalFragments {
    static constexpr bool ALIGNED = false, HAS_OFFSETS = false, HAS_MINIMUM = false;
    static constexpr float SCALE = 1;
    DEVICE void offset_fragment(u32 (&)[4]) const {}
    DEVICE float chunk_scale(int) const { return 1; }
    DEVICE float chunk_minimum(int) const { return 0; }
};

// Q4_0, Q4_1, Q5_0, Q5_1. Thread t has blocks 2 t and 2 t + 1, one per pass. Blocks past the end of the row
// have scale 0.
template <bool HIGH_BIT, bool MINIMUM>
struct FormatQ45 : FinalFragments {
    static constexpr u32 BLOCK = 2 + (MINIMUM ? 2 : 0) + (HIGH_BIT ? 4 : 0) + 16, CHUNK_BYTES = 8 * BLOCK,
                         ROW_VECTORS = (CHUNK_BYTES + 29) / 16;
    static constexpr u32 PASSES = 2, STEPS = 8, PASS_STEPS = 8;
    static constexpr int K_ORDER = K_CONTIGUOUS;
    static constexpr bool FEW_REGISTERS = true;
    static constexpr u32 STEP(u32 i) { return i % 2 * 4 + i / 2; }
    static constexpr int ZERO_POINT = MINIMUM ? 0 : HIGH_BIT ? 16 : 8;

    const u8* rows[2];
    u32 blocks, t;
    u32 words[2][4], high_bits[2], scale[2], minimum_f16[2];

    DEVICE void load_scales(const u8* first, const u8* second, u32 blocks_left, u32 thread) {
        rows[0] = first, rows[1] = second, blocks = blocks_left, t = thread;
    }
    DEVICE void load_quants(u32 pass) {
        const u32 block = t * 2 + pass;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u8* at = rows[r] + block * BLOCK;
            const bool exists = block < blocks;
            scale[r] = f16x2_splat(exists ? lds2(at) : 0);
            if (MINIMUM) minimum_f16[r] = f16x2_splat(exists ? lds2(at + 2) : 0);
            at += MINIMUM ? 4 : 2;
            if (HIGH_BIT) {
                high_bits[r] = lds2(at) | lds2(at + 2) << 16;
                at += 4;
            }
            EvenAddress(at).load(words[r], 0);
        }
    }
    DEVICE void a_fragment(u32 i, u32 (&a)[4]) const {
        const bool high = i % 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 pairs[2];
            f16x2_1024_plus_nibbles(words[r][i / 2], high, pairs);
            if (HIGH_BIT) {
                // Bits 0 and 2 to the two f16 numbers of pairs[0]; bits 1 and 3, one position higher, to
                // those of pairs[1].
                const u32 bits = ((high_bits[r] >> (high * 16 + i / 2 * 4)) & 15) *
                                 (high ? 1u << 8 | 1u << 22 : 1u << 4 | 1u << 18);
                pairs[0] |= bits & fifth_bits(high), pairs[1] |= (bits >> 1) & fifth_bits(high);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const u32 quant =
                    high ? fma_f16x2(pairs[j], F16X2_SIXTEENTH, f16x2_constant<-64 - ZERO_POINT>())
                         : add_f16x2(pairs[j], f16x2_constant<-1024 - ZERO_POINT>());
                a[2 * j + r] =
                    MINIMUM ? fma_f16x2(quant, scale[r], minimum_f16[r]) : mul_f16x2(quant, scale[r]);
            }
        }
    }
};

// Bytes 0 and 2, and 1 and 3, of a word of signed quants, scaled.
DEVICE void signed_byte_pairs(u32 word, u32 scale, u32& even, u32& odd) {
    const u32 quants = word ^ 0x80808080;
    even = mul_f16x2(f16x2_minus_128_bytes<0, 2>(quants), scale);
    odd = mul_f16x2(f16x2_minus_128_bytes<1, 3>(quants), scale);
}

// MXFP4, IQ4_NL and IQ4_XS: indices of a table of signed bytes. Thread t has blocks 2 t and 2 t + 1 (of
// IQ4_XS groups of the block), one per pass. Blocks past the end of the row have scale 0. Scales of MXFP4
// below 2^-24 are 0 in f16. Its chunks may start at odd addresses: 15 + 136 bytes are within ROW_VECTORS.
enum { TABLE_MXFP4, TABLE_IQ4_NL, TABLE_IQ4_XS };
template <int KIND>
struct FormatTable : FinalFragments {
    static constexpr u32 BLOCK = KIND == TABLE_MXFP4 ? 17 : 18,
                         CHUNK_BYTES = KIND == TABLE_IQ4_XS ? 136 : 8 * BLOCK,
                         ROW_VECTORS = (CHUNK_BYTES + 29) / 16;
    static constexpr u32 PASSES = 2, STEPS = 8, PASS_STEPS = 8;
    static constexpr int K_ORDER = K_CONTIGUOUS;
    static constexpr bool FEW_REGISTERS = false;
    static constexpr u32 STEP(u32 i) { return i % 2 * 4 + i / 2; }

    const u8* rows[2];
    u32 blocks, t;
    u32 words[2][4], scale[2];

    DEVICE void load_scales(const u8* first, const u8* second, u32 blocks_left, u32 thread) {
        rows[0] = first, rows[1] = second, blocks = blocks_left, t = thread;
    }
    DEVICE void load_quants(u32 pass) {
        const u32 block = t * 2 + pass;
        const bool exists = block < blocks;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u8* at = rows[r] + block * BLOCK;
            if (KIND == TABLE_MXFP4) {
                scale[r] = f16x2_splat(exists ? e8m0_halved_f16(*at) : 0);
                *(uint4*)words[r] = lds16_any(at + 1);
            } else if (KIND == TABLE_IQ4_NL) {
                scale[r] = f16x2_splat(exists ? lds2(at) : 0);
                EvenAddress(at + 2).load(words[r], 0);
            } else {
                const int step = iq4_xs_scale(rows[r][4 + t], lds2(rows[r] + 2), block);
                scale[r] = f16x2_splat(f32_to_f16(f16_to_f32((u16)lds2(rows[r])) * (float)step));
                EvenAddress(rows[r] + 8).load(words[r], block * 16);
            }
        }
    }
    DEVICE void a_fragment(u32 i, u32 (&a)[4]) const {
        constexpr Table16 TABLE = KIND == TABLE_MXFP4 ? MXFP4_VALUES : IQ4_VALUES;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 low, high;
            look_up8(TABLE, words[r][i / 2], low, high);
            signed_byte_pairs(i % 2 ? high : low, scale[r], a[r], a[2 + r]);
        }
    }
};

// Q8_0. Thread t has the first or second 16 columns of four blocks, one per pass.
struct FormatQ8 : FinalFragments {
    static constexpr u32 BLOCK = 34, CHUNK_BYTES = 8 * BLOCK, ROW_VECTORS = (CHUNK_BYTES + 29) / 16,
                         PASSES = 4, STEPS = 4, PASS_STEPS = 4;
    static constexpr int K_ORDER = K_INTERLEAVED;
    static constexpr bool FEW_REGISTERS = true;
    static constexpr u32 STEP(u32 i) { return i; }

    const u8* rows[2];
    u32 blocks, t;
    u32 words[2][4], scale[2];

    DEVICE void load_scales(const u8* first, const u8* second, u32 blocks_left, u32 thread) {
        rows[0] = first, rows[1] = second, blocks = blocks_left, t = thread;
    }
    DEVICE void load_quants(u32 pass) {
        const u32 block = t / 2 * 4 + pass;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u8* at = rows[r] + block * BLOCK;
            scale[r] = f16x2_splat(block < blocks ? lds2(at) : 0);
            EvenAddress(at + 2).load(words[r], t % 2 * 16);
        }
    }
    DEVICE void a_fragment(u32 i, u32 (&a)[4]) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            signed_byte_pairs(words[r][i], scale[r], a[r], a[2 + r]);
        }
    }
};
