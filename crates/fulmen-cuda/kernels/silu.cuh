// SiLU, accurate for every argument.
#pragma once
#include "types.cuh"

// 1 / (1 + e^-x), to full precision on both sides of 0.
DEVICE float sigmoid(float x) {
    float t = expf(-fabsf(x));
    return (x >= 0.0f ? 1.0f : t) / (1.0f + t);
}

DEVICE float silu_of(float x) { return x == -INFINITE ? 0.0f : x * sigmoid(x); }
