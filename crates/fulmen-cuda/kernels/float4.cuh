// Element-wise arithmetic on float4, and SwiGLU with the fast exponential and division of the decode kernels.
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

DEVICE float fast_swiglu(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }
