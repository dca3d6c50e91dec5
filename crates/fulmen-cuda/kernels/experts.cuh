// What the kernels of a mixture of experts share: gated activations, and the fault of an expert id that is
// out of range. A pair is a row of the batch and one of its experts: pair p is slot p % top_k of row p /
// top_k.
#pragma once
#include "common.cuh"
#include "silu.cuh"

constexpr u32 FAULT_EXPERT = 14;

// An expert that is not on this device: its pairs are skipped.
constexpr u32 NO_EXPERT = ~0u;

// Whether an id is wrong.
DEVICE bool is_invalid_expert(u32 id, u32 n_experts) { return id >= n_experts && id != NO_EXPERT; }

constexpr u32 SWIGLU = 0, GEGLU = 1, CLAMPED_SWIGLU = 2;

// The activation of gate and up projections; `alpha` and `limit` are those of the clamped SwiGLU.
struct GatedActivation {
    u32 kind;
    float alpha;
    float limit;
    u32 unused;

    DEVICE float operator()(float gate, float up) const {
        if (kind == SWIGLU) return silu_of(gate) * up;
        if (kind == GEGLU) {
            const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
            return 0.5f * gate * (1.0f + tanhf(inner)) * up;
        }
        // Comparisons that keep NaN.
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
        return gate * sigmoid(alpha * gate) * (up + 1.0f);
    }
};
#include "layout/experts.cuh"
