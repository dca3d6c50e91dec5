// The heads of a gated delta net (gated_delta_rule.cu, gated_delta_chunks.cu, delta_net_step.cu).
#pragma once

#include "types.cuh"

// Mirrored by `DeltaHeads` in src/kernels/delta_heads.rs.
struct DeltaHeads {
    u32 n_k_heads;
    u32 n_v_heads;  // a multiple of n_k_heads
    u32 head_dim;
    u32 key_head_modulo;  // value head h reads key head h % n_k_heads, not h / (n_v_heads / n_k_heads)

    DEVICE u32 key_head(u32 value_head) const {
        return key_head_modulo ? value_head % n_k_heads : value_head / (n_v_heads / n_k_heads);
    }
};
#include "layout/delta_heads.cuh"
