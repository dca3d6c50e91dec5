// Rotary position embedding (RoPE): the rotation angles, and which dims of a head form a pair. Used by
// rope.cu, rope_store.cu and attention_decode.cu, so that all of them rotate by the same bits.
#pragma once
#include "common.cuh"

// Mirrored by `RopeArgs` in src/kernels/rope.rs.
struct RopeArgs {
    double log2_base;           // of the frequency base (theta)
    const float* freq_factors;  // [n_rot / 2] divisors of the frequencies, or null
    float freq_scale;
    float magnitude;  // multiplies the rotated dims (YaRN)
    u32 n_rot;        // dims that are rotated, the first of each head
    u32 neox;         // 1: NeoX pairing, dims i and i + n_rot / 2; 0: adjacent dims 2 i and 2 i + 1
};

// (cos, sin) of the angle of pair `pair` at `position`, times `magnitude`. The angle is in units of pi and
// reduced in f64: at position 10^6 an f32 angle has lost two of its four digits.
DEVICE float2 rope_cos_sin(u32 position, u32 pair, u32 n_rot, const float* freq_factors, float freq_scale,
                           float magnitude, double log2_base) {
    constexpr double INVERSE_PI = 0.31830988618379067154;
    double angle = (double)position * (double)freq_scale * exp2(-2.0 * pair / n_rot * log2_base) * INVERSE_PI;
    if (freq_factors) angle /= (double)freq_factors[pair];
    angle -= 2.0 * rint(angle * 0.5);
    float sine, cosine;
    sincospif((float)angle, &sine, &cosine);
    return make_float2(cosine * magnitude, sine * magnitude);
}

DEVICE float2 rope_cos_sin(const RopeArgs& rope, u32 position, u32 pair) {
    return rope_cos_sin(position, pair, rope.n_rot, rope.freq_factors, rope.freq_scale, rope.magnitude,
                        rope.log2_base);
}

// The two dims of a pair.
DEVICE u32 rope_first_dim(u32 pair, bool neox) { return neox ? pair : 2 * pair; }
DEVICE u32 rope_second_dim(u32 pair, u32 n_rot, bool neox) { return neox ? pair + n_rot / 2 : 2 * pair + 1; }

// Rotates a pair by (cos, sin).
DEVICE void rope_rotate(float& first, float& second, float2 cos_sin) {
    float a = first, b = second;
    first = a * cos_sin.x - b * cos_sin.y;
    second = a * cos_sin.y + b * cos_sin.x;
}
