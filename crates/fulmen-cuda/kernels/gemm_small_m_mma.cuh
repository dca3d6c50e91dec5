// Small-M GEMM (gemm_small_m.cu): accumulators of an output tile, and the MMA loop over one K chunk.
#pragma once

#include "gemm_small_m_formats.cuh"
#include "ptx/mma.cuh"

// What a lane 4 g + t holds of a tile (16 rows of W x ROWS rows of x): v[n][i] is row g + i / 2 * 8 of W and
// row 8 n + 2 t + i % 2 of x.
template <int ROWS>
struct Accumulators {
    static constexpr int N_TILES = ROWS / 8, TILE_FLOATS = N_TILES * 128;
    float v[N_TILES][4];

    // One k-step; `x` points to the lane's B-fragments.
    DEVICE void mma(const u32 (&a)[4], const u8* x) {
        u32 b[2 * N_TILES];
        if (N_TILES == 1) *(uint2*)b = *(const uint2*)x;
#pragma unroll
        for (int n = 0; n + 1 < N_TILES; n += 2) *(uint4*)(b + 2 * n) = *(const uint4*)(x + n * 256);
#pragma unroll
        for (int n = 0; n < N_TILES; n++) mma_m16n8k16_f16(v[n], a, b[2 * n], b[2 * n + 1]);
    }

    // Stores to shared memory as [ROWS rows of x][16 rows of W], so that a float4 is four rows of W for one
    // row of x. The float4 of a row of x are permuted (swizzled by t) to keep bank conflicts low; see
    // `weight_row` for the inverse.
    DEVICE void store(float* to) const {
        const u32 lane = reload_tid_x() & 31, t = lane & 3;
        const u32 at = t * 32 + ((lane / 16 ^ t) * 4 | lane / 4 % 4);
#pragma unroll
        for (int i = 0; i < N_TILES * 4; i++)
            to[i / 4 * 128 + i % 2 * 16 + (i % 4 < 2 ? at : at ^ 8)] = v[i / 4][i % 4];
    }

    // The first row of W, in the tile, and the row of x of the float4 that `store` has put at float `at`.
    static DEVICE u32 weight_row(u32 at) { return ((at / 4 ^ at / 32) & 3) * 4; }
    static DEVICE u32 x_row(u32 at) { return at / 16; }
};

// Multiplies one K chunk and adds it to `total`: dequantizes WEIGHTS tiles of W (gate and up together) that
// share the B-fragments at `x`, this lane's first in the chunk. Passes are unrolled UNROLL times.
template <class F, int ROWS, int WEIGHTS, int UNROLL>
DEVICE void multiply_chunk(Accumulators<ROWS>* total, F (&weights)[WEIGHTS], const u8* x) {
    constexpr u32 STEP_BYTES = F16Fragments<ROWS>::STEP_BYTES;
    Accumulators<ROWS> sums[WEIGHTS] = {}, minima[WEIGHTS] = {};
#pragma unroll(UNROLL)
    for (u32 pass = 0; pass < F::PASSES; pass++) {
        const u8* pass_x = x + pass * F::PASS_STEPS * STEP_BYTES;
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++) weights[w].load_quants(pass);
#pragma unroll
        for (int i = 0; i < F::STEPS; i++) {
#pragma unroll
            for (int w = 0; w < WEIGHTS; w++) {
                u32 a[4];
                weights[w].a_fragment(i, a);
                sums[w].mma(a, pass_x + F::STEP(i) * STEP_BYTES);
            }
        }
    }
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++) {
        if (F::HAS_OFFSETS) {
            u32 a[4];
            weights[w].offset_fragment(a);
            Accumulators<ROWS>& to = F::HAS_MINIMUM ? minima[w] : sums[w];
            to.mma(a, x + F16Fragments<ROWS>::SLICE_SUMS);
            to.mma(a, x + F16Fragments<ROWS>::SLICE_SUM_REMAINDERS);
        }
        const float scale[2] = {weights[w].chunk_scale(0), weights[w].chunk_scale(1)};
        const float minimum[2] = {weights[w].chunk_minimum(0), weights[w].chunk_minimum(1)};
#pragma unroll
        for (int i = 0; i < Accumulators<ROWS>::N_TILES * 4; i++) {
            float& to = total[w].v[i / 4][i % 4];
            to += scale[i % 4 / 2] * sums[w].v[i / 4][i % 4];
            if (F::HAS_MINIMUM) to += minimum[i % 4 / 2] * minima[w].v[i / 4][i % 4];
        }
    }
}
