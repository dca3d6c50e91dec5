// The angles of rotary position embedding.
#pragma once
#include "common.cuh"

struct RopeSpec {
    double log2_base;
    double freq_scale;
    const float* factors;  // n_rot / 2 frequency factors, or null
    u32 n_rot;
    u32 halves;  // pairs are i and i + n_rot/2 instead of 2i and 2i+1
    float magnitude;
    u32 unused;
};

// Cosine and sine of pair `i` at `position`, times the magnitude. The angle is taken in turns and in f64: at position
// 10^6 an f32 angle would have lost two digits of its four.
DEVICE float2 turn_of(const RopeSpec& rope, u32 position, u32 i) {
    double frequency = exp2(-2.0 * (double)i / (double)rope.n_rot * rope.log2_base);
    double factor = rope.factors ? (double)rope.factors[i] : 1.0;
    double turns = (double)position * rope.freq_scale * frequency / factor * 0.15915494309189533577;
    float part = (float)(turns - rint(turns)), sine, cosine;
    sincospif(2.0f * part, &sine, &cosine);
    return make_float2(cosine * rope.magnitude, sine * rope.magnitude);
}

// The elements of pair `i`.
DEVICE u32 first_of(const RopeSpec& rope, u32 i) { return rope.halves ? i : 2 * i; }
DEVICE u32 second_of(const RopeSpec& rope, u32 i) {
    return rope.halves ? i + rope.n_rot / 2 : 2 * i + 1;
}
