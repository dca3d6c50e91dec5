// Products of many rows on tensor cores: what their kernels take, the order of tiles, and what becomes of the sums.
//
// Both operands are panels (see panels.cuh). The weights of one call that are of one kind lie below each other in one
// matrix, each from a multiple of 8 on, so that one launch makes all their outputs. For gate-up, eights of rows of gate and
// of up take turns: the thread that has a gate's sum also has that of its partner.
#pragma once
#include "panels.cuh"

constexpr u32 MOST_PARTS = 4;

struct GemmPart {
    float* out;             // [m, n]
    const float* bias;      // [n] or null
    const float* residual;  // [m, n] or null; may be the output
    u32 n;
    u32 first;  // row of the panels (of pairs of rows) that is the weight's first; before them for a later piece, mod 2^32
};

struct GemmParams {
    const u8* x;
    const u8* w;
    const float* factors;  // [m] or null: of each row's sums
    GemmPart parts[MOST_PARTS];
    u32 m;
    u32 x_rows;  // of the panels of x
    u32 w_rows;  // of the panels of all weights
    u32 panels;  // of one part of a number
    u32 passes;  // 1; 2: x in two parts; 3: w in two parts as well, without the product of the rests
    u32 n_parts;
    u32 wide;  // outputs and residuals can be written by two floats
    u32 unused;
};

// Where a tile's operands are, step after step: first parts of both, then x's rest with w's first part, then x's first
// part with w's rest.
struct Operands {
    const u8* x;
    const u8* w;
    u32 left, pass;

    __device__ __forceinline__ Operands(const GemmParams& p, u32 row, u32 column)
        : x(p.x + (u64)row * PANEL_BYTES), w(p.w + (u64)column * PANEL_BYTES), left(p.panels), pass(0) {}

    __device__ __forceinline__ void next(const GemmParams& p) {
        x += (u64)p.x_rows * PANEL_BYTES;
        w += (u64)p.w_rows * PANEL_BYTES;
        if (--left == 0) {
            left = p.panels;
            if (pass == 0) w -= (u64)p.panels * p.w_rows * PANEL_BYTES;
            if (pass == 1) x -= 2 * (u64)p.panels * p.x_rows * PANEL_BYTES;
            pass++;
        }
    }
};

struct Tile {
    u32 row, column;
};

// `BAND` rows of tiles come before the next band's, column by column: x's band and the weights that are at work stay in
// the L2, and weights are read once a band.
template <u32 BAND>
__device__ __forceinline__ Tile tile_of(u32 index, u32 tall, u32 wide) {
    u32 band = index / (BAND * wide), within = index - band * BAND * wide;
    u32 height = min(BAND, tall - band * BAND);
    return {band * BAND + within % height, within / height};
}

// silu(gate) · up. The divisor is between 1 and 2, so the quick division has all but the last digit.
__device__ __forceinline__ float swiglu(float gate, float up) {
    float t = __expf(-fabsf(gate));
    float silu = gate * __fdividef(gate >= 0.0f ? 1.0f : t, 1.0f + t);
    return (gate == -INFINITE ? 0.0f : silu) * up;
}

// Two neighbours of a row, or one where the row ends. `more` is the residual where outputs are written by two.
template <bool PLAIN>
__device__ __forceinline__ void write2(const GemmParams& p, const GemmPart& part, u32 row, u32 column, float a, float b,
                                       float2 more = {}) {
    u64 at = (u64)row * part.n + column;
    bool both = column + 1 < part.n;
    if (!PLAIN && part.bias) {
        a += part.bias[column];
        if (both) b += part.bias[column + 1];
    }
    if (p.wide) {
        *(float2*)(part.out + at) = PLAIN ? make_float2(a, b) : make_float2(a + more.x, b + more.y);
        return;
    }
    part.out[at] = !PLAIN && part.residual ? a + part.residual[at] : a;
    if (both) part.out[at + 1] = !PLAIN && part.residual ? b + part.residual[at + 1] : b;
}

// The part that a row of w's panels is of; `of` is that of a row before.
__device__ __forceinline__ const GemmPart& part_of(const GemmParams& p, u32 row, u32& of) {
    while (of + 1 < p.n_parts && row >= p.parts[of + 1].first) of++;
    return p.parts[of];
}

// The sums of eights of columns that a warp holds, as tensor cores leave them: of each eight a thread has two columns of
// row `row` and two of row `row + 8`. `column` is a multiple of 16, in rows of w's panels.
template <bool PAIR, int EIGHTS>
__device__ __forceinline__ void write_sums(const GemmParams& p, u32 row, u32 column, float (&sums)[EIGHTS][4]) {
    bool has[2] = {row < p.m, row + 8 < p.m};
    if (p.factors) {
        float factors[2] = {has[0] ? p.factors[row] : 0.0f, has[1] ? p.factors[row + 8] : 0.0f};
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sums[i][j] *= factors[j / 2];
    }
    u32 in_eight = threadIdx.x % 4 * 2;
    if constexpr (PAIR) {
        const GemmPart& part = p.parts[0];
#pragma unroll
        for (int i = 0; i < EIGHTS; i += 2) {
            u32 at = column / 2 - part.first + i * 4 + in_eight;
            if (at >= part.n) return;
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (has[j])
                    write2<true>(p, part, row + 8 * j, at, swiglu(sums[i][2 * j], sums[i + 1][2 * j]),
                                 swiglu(sums[i][2 * j + 1], sums[i + 1][2 * j + 1]));
        }
        return;
    }
    // Residuals of several eights are asked for before the first is waited for: they may lie where the sums go, so the compiler
    // would have each wait for the one before.
    constexpr int TOGETHER = EIGHTS == 20 ? 10 : EIGHTS == 16 ? 8 : 4;  // as many as there are registers for
    static_assert(EIGHTS % TOGETHER == 0);
    u32 next = 0;
#pragma unroll
    for (int first = 0; first < EIGHTS; first += TOGETHER) {
        float2 more[TOGETHER][2] = {};
        u32 of = next;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const GemmPart& part = part_of(p, column + (first + i) * 8, of);
            u32 at = column + (first + i) * 8 - part.first + in_eight;
            if (!p.wide || !part.residual || at >= part.n) continue;
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (has[j]) more[i][j] = *(const float2*)(part.residual + (u64)(row + 8 * j) * part.n + at);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const GemmPart& part = part_of(p, column + (first + i) * 8, next);
            u32 at = column + (first + i) * 8 - part.first + in_eight;
            if (at >= part.n) continue;
            const float* sum = sums[first + i];
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (has[j]) write2<false>(p, part, row + 8 * j, at, sum[2 * j], sum[2 * j + 1], more[i][j]);
        }
    }
}
