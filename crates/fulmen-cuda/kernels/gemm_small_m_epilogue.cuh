// Small-M GEMM (gemm_small_m.cu): the epilogue. SwiGLU or GeGLU of gate and up, or bias and residual; the f32
// result; the f16 fragments that are forwarded to the next GEMM.
#pragma once

#include "gemm_small_m_mma.cuh"
#include "gemm_small_m_schedule.cuh"

// Finishes one float4 of a tile, four rows of W for one row of x: the one that `Accumulators::store` puts at
// float `at`. `up` is that of the second matrix of gate and up. A warp finishes 128 consecutive floats, 8
// rows of x, together.
template <int ROWS, bool GATE_UP>
DEVICE void epilogue(const GemmSmallMArgs& args, const OutputTile& tile, u32 at, float4 v, float4 up) {
    const u32 x_row = Accumulators<ROWS>::x_row(at), index = Accumulators<ROWS>::weight_row(at);
    const bool forwards = args.forwarded_out.fragments[0], exists = x_row < args.m;
    // Forwarding implies whole tiles. Padding rows are forwarded as zeros, so that their flags are clear.
    if (index >= tile.rows || !(exists || forwards)) return;
    const GemmWeight& weight = args.weights[tile.weight];
    const u32 row = tile.row + index, to = x_row * weight.rows + row;
    if (GATE_UP) v = fast_gated4(v, up, args.gelu);
    if (!weight.vectorized) {
#pragma unroll 1
        for (u32 i = 0; i < min(4u, tile.rows - index); i++) {
            if (!GATE_UP && weight.bias) v.x += weight.bias[row + i];
            if (!GATE_UP && weight.residual) v.x += weight.residual[to + i];
            weight.out[to + i] = v.x;
            v.x = v.y, v.y = v.z, v.z = v.w;
        }
        return;
    }
    float4 gamma;
    if (!GATE_UP && forwards) gamma = *(const float4*)(args.forwarded_out.gamma + row);
    if (!GATE_UP && weight.bias) v = v + *(const float4*)(weight.bias + row);
    if (!exists) {
        v = splat4(0);
    } else {
        if (!GATE_UP && weight.residual) v = v + *(const float4*)(weight.residual + to);
        *(float4*)(weight.out + to) = v;
    }
    if (forwards)
        store_forwarded<ROWS, !GATE_UP>(args.forwarded_out, tile.row / TILE, weight.rows / TILE, x_row, index,
                                        v, gamma);
}
