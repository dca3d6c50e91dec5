// Small-M GEMM (gemm_small_m.cu): the epilogue. SwiGLU of gate and up, or bias and residual; the f32 result;
// the f16 fragments that are forwarded to the next GEMM.
#pragma once

#include "gemm_small_m_mma.cuh"
#include "gemm_small_m_schedule.cuh"

// Finishes one float4 of a tile, four rows of W for one row of x: the one that `Accumulators::store` puts at
// float `at`. `up` is that of the second matrix of gate and up. A warp finishes 128 consecutive floats, 8
// rows of x, together.
template <int ROWS, bool GATE_UP>
DEVICE void epilogue(const GemmSmallMArgs& args, const OutputTile& tile, u32 at, float4 v, float4 up) {
    const u32 x_row = Accumulators<ROWS>::x_row(at), index = Accumulators<ROWS>::weight_row(at);
    if (index >= tile.rows || x_row >= args.m) return;
    const SmallMWeight& weight = args.weights[tile.weight];
    const u32 row = tile.row + index, to = x_row * weight.rows + row;
    if (GATE_UP)
        v = make_float4(fast_swiglu(v.x, up.x), fast_swiglu(v.y, up.y), fast_swiglu(v.z, up.z),
                        fast_swiglu(v.w, up.w));
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
    const bool forwards = args.forwarded_out.fragments[0];
    float4 gamma;
    if (!GATE_UP && forwards) gamma = *(const float4*)(args.forwarded_out.gamma + row);
    if (!GATE_UP && weight.bias) v = v + *(const float4*)(weight.bias + row);
    if (!GATE_UP && weight.residual) v = v + *(const float4*)(weight.residual + to);
    *(float4*)(weight.out + to) = v;
    // Forwarding implies m == ROWS and whole tiles: no lane has returned.
    if (forwards)
        store_forwarded<ROWS, !GATE_UP>(args.forwarded_out, tile.row / TILE, weight.rows / TILE, x_row, index,
                                        v, gamma);
}
