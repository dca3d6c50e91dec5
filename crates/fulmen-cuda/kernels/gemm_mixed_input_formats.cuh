// Mixed-input GEMM (gemm_mixed_input.cu): how each weight format is dequantized to f16 A-fragments of wgmma.
//
// The A-fragment of a warp's 16 rows is that of mma.m16n8k16, so the formats are those of the small-M GEMM
// (gemm_small_m_formats.cuh). K-quants differ from there in one point: the scale and the minimum of a
// sub-block are multiplied with those of its block, so that an element is q * scale + minimum in f16, rounded
// once. Then accumulators need no factor per K chunk, and stay in registers over all of K. Weights must fit
// f16 (65504), as those of models do by far.
//
// PANEL_ORDER is the order in which a format makes its fragments.
#pragma once

#include "f16_panels.cuh"
#include "gemm_small_m_formats.cuh"

// Both f16 of a word: the lower one twice, the upper one twice.
DEVICE u32 f16x2_splat_low(u32 word) { return __byte_perm(word, 0, 0x1010); }
DEVICE u32 f16x2_splat_high(u32 word) { return __byte_perm(word, 0, 0x3232); }

template <bool HIGH_BIT>
struct DequantizedQ45K : FormatQ45K<HIGH_BIT> {
    typedef FormatQ45K<HIGH_BIT> Base;
    using Base::packed_scales, Base::super_scales, Base::words, Base::high_bits;
    static constexpr u32 PANEL_ORDER = PANEL_Q4_K;

    u32 scale[2][2], minimum[2][2];  // of sub-blocks 2 t and 2 t + 1, f16x2

    DEVICE void load_scales(const u8* first, const u8* second, u32 blocks_left, u32 thread) {
        Base::load_scales(first, second, blocks_left, thread);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 scales =
                add_f16x2(f16x2_1024_plus_bytes<0, 1>(packed_scales[r]), f16x2_constant<-1024>());
            const u32 minima =
                add_f16x2(f16x2_1024_plus_bytes<2, 3>(packed_scales[r]), f16x2_constant<-1024>());
            const u32 scaled = mul_f16x2(scales, f16x2_splat_low(super_scales[r]));
            const u32 lowered = mul_f16x2(minima, f16x2_splat_high(super_scales[r]) ^ 0x80008000);
            scale[r][0] = f16x2_splat_low(scaled), scale[r][1] = f16x2_splat_high(scaled);
            minimum[r][0] = f16x2_splat_low(lowered), minimum[r][1] = f16x2_splat_high(lowered);
        }
    }
    DEVICE void a_fragment(u32 i, u32 (&a)[4]) const {
        const bool high = i % 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 pairs[2];
            f16x2_1024_plus_nibbles(words[r][i / 2], high, pairs);
            if (HIGH_BIT) {
                const u32 bits = high_bits[r][i / 2];
                pairs[0] |= (high ? bits << 7 : bits << 4) & fifth_bits(high);
                pairs[1] |= (high ? bits >> 1 : bits >> 4) & fifth_bits(high);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const u32 quants = high ? fma_f16x2(pairs[j], F16X2_SIXTEENTH, f16x2_constant<-64>())
                                        : add_f16x2(pairs[j], f16x2_constant<-1024>());
                a[2 * j + r] = fma_f16x2(quants, scale[r][high], minimum[r][high]);
            }
        }
    }
};

struct DequantizedQ6K : FormatQ6K {
    static constexpr u32 PANEL_ORDER = PANEL_Q6_K;

    DEVICE void load_scales(const u8* first, const u8* second, u32 blocks_left, u32 thread) {
        FormatQ6K::load_scales(first, second, blocks_left, thread);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) scale[r][i] = mul_f16x2(scale[r][i], f16x2_splat(super_scales[r]));
    }
    DEVICE void a_fragment(u32 i, u32 (&a)[4]) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 word = quants(i, r), even = f16x2_1024_plus_bytes<0, 2>(word),
                      odd = f16x2_1024_plus_bytes<1, 3>(word);
            // Quants have a zero point of 32.
            a[r] = mul_f16x2(add_f16x2(even, f16x2_constant<-1056>()), scale[r][i % 4]);
            a[2 + r] = mul_f16x2(add_f16x2(odd, f16x2_constant<-1056>()), scale[r][i % 4]);
        }
    }
};

// The formats of 32 elements, whose fragments are complete in the small-M GEMM, too.
template <class F, u32 ORDER>
struct Dequantized32 : F {
    static constexpr u32 PANEL_ORDER = ORDER;
};

// Whether a format makes its fragments in the order of the panels.
template <class F>
constexpr bool follows_panel_order() {
    for (u32 u = 0; u < 16; u++)
        if (F::STEP(u % F::STEPS) + u / F::STEPS * F::PASS_STEPS != panel_k_step(F::PANEL_ORDER, u))
            return false;
    return F::PASSES * F::STEPS == 16 && panel_slices(F::PANEL_ORDER) == F::K_ORDER;
}

using q4_k = DequantizedQ45K<false>;
using q5_k = DequantizedQ45K<true>;
using q6_k = DequantizedQ6K;
using q4_0 = Dequantized32<FormatQ45<false, false>, PANEL_Q4_0>;
using q4_1 = Dequantized32<FormatQ45<false, true>, PANEL_Q4_0>;
using q5_0 = Dequantized32<FormatQ45<true, false>, PANEL_Q4_0>;
using q5_1 = Dequantized32<FormatQ45<true, true>, PANEL_Q4_0>;
using q8_0 = Dequantized32<FormatQ8, PANEL_Q8_0>;
