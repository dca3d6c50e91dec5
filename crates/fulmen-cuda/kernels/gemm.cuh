// What the two prefill GEMMs share (gemm.cu, gemm_hopper.cu): arguments, operand iteration, tile order and
// epilogue.
//
// out = x · wᵀ (+ bias) (+ residual), or SwiGLU or GeGLU of two such matmuls. Both operands are packed panels
// (gemm_panels.cuh): gemm_activations.cu makes those of x, dequantize.cu those of w. Weights of one call that
// share an element type are stacked in one w matrix, each from a multiple of 8 rows on, so that one launch
// computes all their outputs. For gate-up, groups of 8 gate rows and 8 up rows alternate, so that the thread
// that holds a gate accumulator also holds that of its up partner.
#pragma once
#include "float4.cuh"
#include "gemm_panels.cuh"

constexpr u32 MAX_OUTPUTS = 4;

// The output of one weight. Mirrored by `GemmOutput` in src/kernels/gemm/mod.rs.
struct GemmOutput {
    float* out;             // [m, n]
    const float* bias;      // [n] or null
    const float* residual;  // [m, n] or null; may be the output
    u32 n;
    // Row of w (pair of rows for gate-up) that is the weight's row 0. Where w holds only later rows of the
    // weight, it is negative, mod 2^32.
    u32 w_row;
};

// Mirrored by `GemmArgs` in src/kernels/gemm/mod.rs.
struct GemmArgs {
    const u8* x;
    const u8* w;
    const float* row_scales;  // [m] multipliers of each row's accumulators, or null
    GemmOutput outputs[MAX_OUTPUTS];
    u32 m;
    u32 x_rows;    // of the panels of x: m rounded up to 8
    u32 w_rows;    // of the panels of w
    u32 k_panels;  // panels along K, of one part
    u32 passes;    // over K: 1; 2 where x is split; 3 where w is as well (without the product of rests)
    u32 n_outputs;
    u32 vectorized;  // outputs and residuals may be accessed as float2
    u32 gelu;        // the activation of the gate: 0 SiLU, 1 GELU
};
#include "layout/gemm.cuh"

// The panels of a tile's operands along K: upper parts of both, then the rest of x with the upper part of w,
// then the upper part of x with the rest of w.
struct OperandIterator {
    const u8* x;
    const u8* w;
    u32 panels_left, pass;

    DEVICE OperandIterator(const GemmArgs& args, u32 row, u32 column)
        : x(args.x + (u64)row * PANEL_ROW_BYTES),
          w(args.w + (u64)column * PANEL_ROW_BYTES),
          panels_left(args.k_panels),
          pass(0) {}

    DEVICE void advance(const GemmArgs& args) {
        x += (u64)args.x_rows * PANEL_ROW_BYTES;
        w += (u64)args.w_rows * PANEL_ROW_BYTES;
        if (--panels_left == 0) {
            panels_left = args.k_panels;
            if (pass == 0) w -= (u64)args.k_panels * args.w_rows * PANEL_ROW_BYTES;
            if (pass == 1) x -= 2 * (u64)args.k_panels * args.x_rows * PANEL_ROW_BYTES;
            pass++;
        }
    }
};

struct TileCoord {
    u32 row, column;
};

// Tile rasterization: bands of BAND rows of tiles, column by column within a band, so that the band's x and
// the weights in use stay in L2 and weights are read once per band.
template <u32 BAND>
DEVICE TileCoord tile_at(u32 index, u32 tile_rows, u32 tile_columns) {
    u32 band = index / (BAND * tile_columns), within = index - band * BAND * tile_columns;
    u32 height = min(BAND, tile_rows - band * BAND);
    return {band * BAND + within % height, within / height};
}

// SwiGLU, or GeGLU. The divisor is in [1, 2], so the approximate division is good to all but the last digit.
DEVICE float gated(float gate, float up, u32 gelu) {
    const float x = gate_logit(gate, gelu), t = __expf(-fabsf(x));
    const float activated = gate * __fdividef(x >= 0.0f ? 1.0f : t, 1.0f + t);
    return (gate == -INFINITE ? 0.0f : activated) * up;
}

// Two neighbors of a row, or one at the end of the row.
DEVICE void store_x2(float* out, float a, float b, bool vectorized, bool both) {
    if (vectorized) {
        *(float2*)out = make_float2(a, b);
        return;
    }
    out[0] = a;
    if (both) out[1] = b;
}

// Writes what of a thread's accumulators belongs to one output; `first` is the column of the first of them
// there.
template <int N_TILES>
DEVICE void write_output(const GemmArgs& args, const GemmOutput& output, u32 row, int first,
                         const bool (&has_row)[2], const float (&acc)[N_TILES][4]) {
    // Residuals of several n-tiles are loaded before the first is used: since they may alias the output, the
    // compiler would serialize each load behind the previous store. As many at a time as registers allow.
    constexpr int BATCH = N_TILES % 16 == 0 ? 8 : N_TILES % 10 == 0 ? 10 : 4;
    static_assert(N_TILES % BATCH == 0);
    const long long start = (long long)((u64)row * output.n) + first;
    const u64 lower = (u64)8 * output.n;  // from the first of the thread's two rows to the second
    float* out = output.out + start;
    const float* residual = output.residual ? output.residual + start : nullptr;
#pragma unroll
    for (int batch = 0; batch < N_TILES; batch += BATCH) {
        float2 residuals[BATCH][2] = {};
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            u32 column = first + (batch + i) * 8;
            if (!residual || column >= output.n) continue;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (!has_row[j]) continue;
                const float* from = residual + j * lower + (batch + i) * 8;
                if (args.vectorized) {
                    residuals[i][j] = *(const float2*)from;
                } else {
                    residuals[i][j].x = from[0];
                    if (column + 1 < output.n) residuals[i][j].y = from[1];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            u32 column = first + (batch + i) * 8;
            if (column >= output.n) continue;
            bool both = column + 1 < output.n;
            float2 bias = make_float2(output.bias ? output.bias[column] : 0.0f,
                                      output.bias && both ? output.bias[column + 1] : 0.0f);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float* sum = acc[batch + i] + 2 * j;
                if (has_row[j])
                    store_x2(out + j * lower + (batch + i) * 8, sum[0] + bias.x + residuals[i][j].x,
                             sum[1] + bias.y + residuals[i][j].y, args.vectorized, both);
            }
        }
    }
}

// SwiGLU of alternating gate and up n-tiles.
template <int N_TILES>
DEVICE void write_gate_up(const GemmArgs& args, u32 row, u32 first, const bool (&has_row)[2],
                          const float (&acc)[N_TILES][4]) {
    const GemmOutput output = args.outputs[0];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (!has_row[j]) continue;
        float* out = output.out + (u64)(row + 8 * j) * output.n + first;
#pragma unroll
        for (int i = 0; i < N_TILES; i += 2) {
            u32 column = first + i * 4;
            if (column >= output.n) break;
            float a = gated(acc[i][2 * j], acc[i + 1][2 * j], args.gelu);
            float b = gated(acc[i][2 * j + 1], acc[i + 1][2 * j + 1], args.gelu);
            store_x2(out + i * 4, a, b, args.vectorized, column + 1 < output.n);
        }
    }
}

// Epilogue of a warp's accumulators, N_TILES n-tiles of 8 columns: of each a thread holds two columns of rows
// `row` and `row + 8`. `column`, a row of w, is a multiple of 16.
template <bool GATE_UP, int N_TILES>
DEVICE void epilogue(const GemmArgs& args, u32 row, u32 column, float (&acc)[N_TILES][4]) {
    bool has_row[2] = {row < args.m, row + 8 < args.m};
    if (args.row_scales) {
        float scales[2] = {has_row[0] ? args.row_scales[row] : 0.0f,
                           has_row[1] ? args.row_scales[row + 8] : 0.0f};
#pragma unroll
        for (int i = 0; i < N_TILES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[i][j] *= scales[j / 2];
    }
    u32 in_tile = threadIdx.x % 4 * 2;
    if constexpr (GATE_UP) {
        write_gate_up(args, row, column / 2 - args.outputs[0].w_row + in_tile, has_row, acc);
    } else {
        for (u32 i = 0; i < args.n_outputs; i++) {
            const GemmOutput output = args.outputs[i];
            // Where the tile starts in the output; negative where it starts before it.
            int first = (int)(column - output.w_row);
            if (first >= (int)output.n || first + N_TILES * 8 <= 0) continue;
            write_output(args, output, row, first + (int)in_tile, has_row, acc);
        }
    }
}
