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

    DEVICE Operands(const GemmParams& p, u32 row, u32 column)
        : x(p.x + (u64)row * PANEL_BYTES), w(p.w + (u64)column * PANEL_BYTES), left(p.panels), pass(0) {}

    DEVICE void next(const GemmParams& p) {
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
DEVICE Tile tile_of(u32 index, u32 tall, u32 wide) {
    u32 band = index / (BAND * wide), within = index - band * BAND * wide;
    u32 height = min(BAND, tall - band * BAND);
    return {band * BAND + within % height, within / height};
}

// silu(gate) · up. The divisor is between 1 and 2, so the quick division has all but the last digit.
DEVICE float swiglu(float gate, float up) {
    float t = __expf(-fabsf(gate));
    float silu = gate * __fdividef(gate >= 0.0f ? 1.0f : t, 1.0f + t);
    return (gate == -INFINITE ? 0.0f : silu) * up;
}

// Two neighbours of a row, or one where the row ends.
DEVICE void write2(float* out, float a, float b, bool wide, bool both) {
    if (wide) {
        *(float2*)out = make_float2(a, b);
        return;
    }
    out[0] = a;
    if (both) out[1] = b;
}

// What of a thread's sums belongs to one part; `first` is the column of the first of them there.
template <int EIGHTS>
DEVICE void write_part(const GemmParams& p, const GemmPart& part, u32 row, int first, const bool (&has)[2],
                                           const float (&sums)[EIGHTS][4]) {
    // Residuals of several eights are asked for before the first is waited for: they may lie where the sums go, so the compiler
    // would have each wait for the one before. As many at a time as there are registers for.
    constexpr int TOGETHER = EIGHTS % 16 == 0 ? 8 : EIGHTS % 10 == 0 ? 10 : 4;
    static_assert(EIGHTS % TOGETHER == 0);
    const long long start = (long long)((u64)row * part.n) + first;
    const u64 lower = (u64)8 * part.n;  // from the first of the two rows to the second
    float* out = part.out + start;
    const float* residual = part.residual ? part.residual + start : nullptr;
#pragma unroll
    for (int group = 0; group < EIGHTS; group += TOGETHER) {
        float2 more[TOGETHER][2] = {};
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            u32 at = first + (group + i) * 8;
            if (!residual || at >= part.n) continue;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (!has[j]) continue;
                const float* from = residual + j * lower + (group + i) * 8;
                if (p.wide) {
                    more[i][j] = *(const float2*)from;
                } else {
                    more[i][j].x = from[0];
                    if (at + 1 < part.n) more[i][j].y = from[1];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            u32 at = first + (group + i) * 8;
            if (at >= part.n) continue;
            bool both = at + 1 < part.n;
            float2 bias = make_float2(part.bias ? part.bias[at] : 0.0f, part.bias && both ? part.bias[at + 1] : 0.0f);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float* sum = sums[group + i] + 2 * j;
                if (has[j])
                    write2(out + j * lower + (group + i) * 8, sum[0] + bias.x + more[i][j].x, sum[1] + bias.y + more[i][j].y,
                           p.wide, both);
            }
        }
    }
}

// The sums of eights of columns that a warp holds, as tensor cores leave them: of each eight a thread has two columns of
// row `row` and two of row `row + 8`. `column` is a multiple of 16, in rows of w's panels.
template <bool PAIR, int EIGHTS>
DEVICE void write_sums(const GemmParams& p, u32 row, u32 column, float (&sums)[EIGHTS][4]) {
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
        const GemmPart part = p.parts[0];
        u32 first = column / 2 - part.first + in_eight;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (!has[j]) continue;
            float* out = part.out + (u64)(row + 8 * j) * part.n + first;
#pragma unroll
            for (int i = 0; i < EIGHTS; i += 2) {
                u32 at = first + i * 4;
                if (at >= part.n) break;
                float a = swiglu(sums[i][2 * j], sums[i + 1][2 * j]);
                float b = swiglu(sums[i][2 * j + 1], sums[i + 1][2 * j + 1]);
                write2(out + i * 4, a, b, p.wide, at + 1 < part.n);
            }
        }
    } else {
        for (u32 of = 0; of < p.n_parts; of++) {
            const GemmPart part = p.parts[of];
            // Where the tile begins in the part; below zero where it begins before.
            int first = (int)(column - part.first);
            if (first >= (int)part.n || first + EIGHTS * 8 <= 0) continue;
            write_part(p, part, row, first + (int)in_eight, has, sums);
        }
    }
}
