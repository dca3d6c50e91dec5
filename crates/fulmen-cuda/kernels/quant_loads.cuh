// Loads of block-quantized weights from shared memory, where they lie as in a GGUF file: blocks of Q6_K (210
// bytes) and of the 32-element formats start at even addresses, not at multiples of 4, and those of MXFP4 (17
// bytes) anywhere.
#pragma once
#include "types.cuh"

constexpr u32 LOW_NIBBLES = 0x0f0f0f0f;

DEVICE uint4 lds16(const u8* from) { return *(const uint4*)from; }
DEVICE u32 lds2(const u8* from) { return *(const u16*)from; }

// Words of bytes at an even address: aligned words are loaded and shifted together.
struct EvenAddress {
    const u8* words;  // the aligned word that contains the first byte
    u32 shift;        // 0 or 16 bits

    DEVICE EvenAddress() {}
    DEVICE EvenAddress(const u8* from)
        : words(from - ((u32)(u64)from & 2)), shift(((u32)(u64)from & 2) * 8) {}

    // N words from byte `offset` on, a multiple of 4.
    template <int N>
    DEVICE void load(u32 (&to)[N], u32 offset) const {
        const u32* from = (const u32*)(words + offset);
        u32 word = from[0];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const u32 next = from[i + 1];
            to[i] = __funnelshift_r(word, next, shift);
            word = next;
        }
    }
};

// 16 bytes at any address.
DEVICE uint4 lds16_any(const u8* from) {
    u32 odd = (u32)(u64)from & 3, shift = odd * 8;
    const u32* words = (const u32*)(from - odd);
    u32 a = words[0], b = words[1], c = words[2], d = words[3], e = words[4];
    return make_uint4(__funnelshift_r(a, b, shift), __funnelshift_r(b, c, shift),
                      __funnelshift_r(c, d, shift), __funnelshift_r(d, e, shift));
}

// 16 bytes at an even address.
DEVICE uint4 lds16_even(const u8* from) {
    u32 odd = (u32)(u64)from & 2, shift = odd * 8;
    const u32* words = (const u32*)(from - odd);
    u32 a = words[0], b = words[1], c = words[2], d = words[3], e = words[4];
    return make_uint4(__funnelshift_r(a, b, shift), __funnelshift_r(b, c, shift),
                      __funnelshift_r(c, d, shift), __funnelshift_r(d, e, shift));
}
