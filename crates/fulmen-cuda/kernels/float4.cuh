// Element-wise arithmetic on float4, and SwiGLU and GeGLU with the fast exponential and division of the
// decode kernels.
#pragma once
#include "types.cuh"

DEVICE float4 splat4(float v) { return make_float4(v, v, v, v); }
DEVICE float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
DEVICE float4 operator*(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
DEVICE float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
DEVICE float sum_of_squares(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

// Four f32 at a multiple of 16 bytes, past L1: for data that a previous kernel has written.
DEVICE float4 ldcg4(const float* from) { return __ldcg((const float4*)from); }

// What the logistic function of a gate is taken of: the gate for SiLU; for GELU twice the argument of its
// tanh approximation, as (1 + tanh(y)) / 2 = 1 / (1 + e^(-2 y)). The square is bounded, so that a huge gate
// gives no NaN.
DEVICE float gate_logit(float gate, u32 gelu) {
    return gelu ? gate * (1.5957691216f + 0.0713548163f * fminf(gate * gate, 1e30f)) : gate;
}

// SwiGLU, or GeGLU.
DEVICE float fast_gated(float gate, float up, u32 gelu) {
    return __fdividef(gate, 1.0f + __expf(-gate_logit(gate, gelu))) * up;
}
DEVICE float4 fast_gated4(float4 gate, float4 up, u32 gelu) {
    return make_float4(fast_gated(gate.x, up.x, gelu), fast_gated(gate.y, up.y, gelu),
                       fast_gated(gate.z, up.z, gelu), fast_gated(gate.w, up.w, gelu));
}
