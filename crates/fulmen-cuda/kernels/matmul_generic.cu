// Products with weights [n, k]: the plain kernels, for every type and every shape. Weights are decoded to f32 in
// registers and multiplied with f32 activations, so the results are those of f32 arithmetic.
//
// `matmul_generic_<type>_rows<R>`: up to R rows of activations, one warp for each column of the output.
// `matmul_generic_<type>_tile`: many rows, 64 x 64 elements of the output a block, both operands through shared memory.
#include "quant.cuh"

struct MulMatParams {
    const float* x;         // [m, k]
    const u8* w;            // [n, k]
    const float* bias;      // [n] or null
    const float* residual;  // [m, n] or null; may be the output
    float* out;             // [m, n]
    u32 m;
    u32 n;
    u32 k;
    u32 wide;  // the rows of `x` start at multiples of 16 bytes
};

DEVICE void write(const MulMatParams& p, u32 row, u32 column, float value) {
    u64 at = (u64)row * p.n + column;
    if (p.bias) value += p.bias[column];
    if (p.residual) value += p.residual[at];
    p.out[at] = value;
}

// Elements `at` to `at + 7` of a row of activations, zeros behind its end.
DEVICE void load_x8(const MulMatParams& p, u32 row, u32 at, float out[8]) {
    const float* x = p.x + (u64)row * p.k + at;
    if (p.wide && at + 8 <= p.k) {
        float4 a = *(const float4*)x, b = *(const float4*)(x + 4);
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = at + i < p.k ? x[i] : 0.0f;
    }
}

template <typename W, int R>
DEVICE void few_rows(const MulMatParams& p) {
    pdl_begin();
    u32 lane = threadIdx.x % 32, column = blockIdx.x * 4 + threadIdx.x / 32;
    if (column >= p.n) return;
    const u8* w = p.w + (u64)column * row_bytes<W>(p.k);
    float acc[R];
#pragma unroll
    for (int r = 0; r < R; r++) acc[r] = 0.0f;
    for (u32 at = lane * 8; at < p.k; at += 256) {
        float weights[8], x[8];
        dequantize_row8<W>(w, at, p.k, weights);
#pragma unroll
        for (int r = 0; r < R; r++) {
            // Rows behind the last are not used; the last stands in for them.
            load_x8(p, R == 1 ? 0 : min(r, p.m - 1), at, x);
#pragma unroll
            for (int i = 0; i < 8; i++) acc[r] += weights[i] * x[i];
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float value = warp_sum(acc[r]);
        if (lane == 0 && r < p.m) write(p, r, column, value);
    }
}

constexpr int TILE = 64, DEPTH = 32, PITCH = TILE + 4;

template <typename W>
DEVICE void tile(const MulMatParams& p) {
    __shared__ __align__(16) float xs[DEPTH][PITCH], ws[DEPTH][PITCH];
    pdl_begin();
    u32 row0 = blockIdx.x * TILE, column0 = blockIdx.y * TILE;
    // Each thread loads eight elements of one row of either operand, and computes 4 x 4 elements.
    u32 load_row = threadIdx.x / 4, load_at = threadIdx.x % 4 * 8;
    u32 top = threadIdx.x / 16 * 4, left = threadIdx.x % 16 * 4;
    const u8* w = p.w + (u64)(column0 + load_row) * row_bytes<W>(p.k);
    float acc[4][4] = {};
    for (u32 k0 = 0; k0 < p.k; k0 += DEPTH) {
        float x8[8], w8[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x8[i] = w8[i] = 0.0f;
        if (row0 + load_row < p.m) load_x8(p, row0 + load_row, k0 + load_at, x8);
        if (column0 + load_row < p.n) dequantize_row8<W>(w, k0 + load_at, p.k, w8);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            xs[load_at + i][load_row] = x8[i];
            ws[load_at + i][load_row] = w8[i];
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < DEPTH; k++) {
            float4 a = *(const float4*)&xs[k][top], b = *(const float4*)&ws[k][left];
            float as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += as[i] * bs[j];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 row = row0 + top + i, column = column0 + left + j;
            if (row < p.m && column < p.n) write(p, row, column, acc[i][j]);
        }
}

#define ROWS(W, name, R)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                                                 \
        matmul_generic_##name##_rows##R(const __grid_constant__ MulMatParams p) {                                            \
        few_rows<W, R>(p);                                                                                            \
    }
#define KERNELS(W, name)                                                                                              \
    ROWS(W, name, 1)                                                                                                  \
    ROWS(W, name, 2)                                                                                                  \
    ROWS(W, name, 4)                                                                                                  \
    ROWS(W, name, 8)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) matmul_generic_##name##_tile(const __grid_constant__ MulMatParams p) { \
        tile<W>(p);                                                                                                   \
    }
FOR_EACH_WEIGHT(KERNELS)
