// What the kernels of attention of many rows share.
#pragma once
#include "attention.cuh"
#include "common.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"

// A lane's elements of a query head, zeros where there is none.
template <int EACH>
DEVICE void load_query(float (&x)[EACH], const float* q) {
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        float2 two = q ? *(const float2*)(q + threadIdx.x % 32 * EACH + i) : make_float2(0.0f, 0.0f);
        x[i] = two.x, x[i + 1] = two.y;
    }
}

// Writes a query head that a warp holds as f16, times a power of two that brings its largest number between 1 and 2, and
// times `sign`. Gives the inverse of the power. `at` is where the lane's elements go.
template <int EACH>
DEVICE float put_query(const float (&x)[EACH], u32 at, float sign = 1.0f) {
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffu);
    bits = __reduce_max_sync(FULL_WARP, bits);
    int exponent = min(max((int)(bits >> 23) - 127, -100), 120);
    float down = __uint_as_float((u32)(127 - exponent) << 23) * sign;
#pragma unroll
    for (int i = 0; i < EACH; i += 2)
        st_shared_u32(at + i * 2, MmaF16::pack(x[i] * down, x[i + 1] * down));
    return __uint_as_float((u32)(127 + exponent) << 23);
}

DEVICE bool is_finite(u16 bits) { return (bits & 0x7c00) != 0x7c00; }

// Both halves of the word.
DEVICE bool are_finite(u32 word) {
    return (word & 0x7c00u) != 0x7c00u && (word & 0x7c000000u) != 0x7c000000u;
}

// Where rows do not see all positions of a tile of values, a value that is not finite reaches those that see it here, and
// becomes zero for the product that follows. By all THREADS of `Tiles`, which says where the pieces of 16 bytes lie.
template <typename Tiles, int EIGHTS>
DEVICE void take_out_infinities(u8* values, u32 first, const u32 (&seen)[2], float (&sums)[EIGHTS][4]) {
#pragma unroll 1
    for (u32 key = 0; key < Tiles::KEYS; key++)
#pragma unroll
        for (u32 i = 0; i < EIGHTS; i++)
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
                u16 bits = *(const u16*)(values + Tiles::piece_at(key, i) + (threadIdx.x % 4 * 2 + j) * 2);
                if (is_finite(bits)) continue;
                if (first + key < seen[0]) sums[i][j] += f16_to_f32(bits);
                if (first + key < seen[1]) sums[i][2 + j] += f16_to_f32(bits);
            }
    Tiles::sync();
    for (u32 at = threadIdx.x; at < Tiles::KEYS * EIGHTS * 8; at += Tiles::THREADS)
        if (!is_finite(((u16*)values)[at])) ((u16*)values)[at] = 0;
    Tiles::sync();
}
