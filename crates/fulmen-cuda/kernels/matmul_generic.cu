// Generic matmul: y[m, n] = x[m, k] W[n, k]^T + bias + residual, for every weight type and every shape, in
// f32. The fallback where the GEMV, the small-M GEMM and the tensor-core GEMM do not apply (matmul.rs): small
// batches before Hopper, unaligned memory, rare types. Launched by src/kernels/matmul_generic.rs.
//
// matmul_generic_<type>_rows<R>: GEMV for up to R = 1, 2, 4 or 8 rows.
//   One warp per row of W, four warps per block, ceil(n / 4) blocks. A lane dequantizes 8 columns of every
//   256 and multiplies them with R rows of x from L1/L2; a warp reduction adds up the lanes. Bound by
//   instruction issue of the dequantization.
// matmul_generic_<type>_tile: tiled GEMM for more rows.
//   Tile 64 x 64, K step 32, 256 threads, grid ceil(m / 64) x ceil(n / 64). Both operands go through shared
//   memory, transposed to [k][row] with a pitch of 68 floats; a thread computes 4 x 4 outputs with FMA. Not
//   pipelined. Bound by shared memory and FMA throughput (no tensor cores).
//
// Layouts: x [m, k], y [m, n], bias [n], residual [m, n] in f32; W [n, k] as in a GGUF file.
// Preconditions: k a multiple of the format's block.
// Numerics: weights are dequantized to f32 in registers; f32 products and sums, in an order that depends only
// on k.
// H200: a whole decode step of Qwen3-4B in f16 at batch 1 ran at 34 % of the memory-bandwidth bound with
// these kernels (5666 us, where the bytes take 1940).
#include "quant.cuh"

constexpr int TILE = 64, K_STEP = 32, PITCH = TILE + 4;

struct MatmulGenericArgs {
    const float* x;         // [m, k]
    const u8* w;            // [n, k]
    const float* bias;      // [n] or null
    const float* residual;  // [m, n] or null; may be the output
    float* out;             // [m, n]
    u32 m;
    u32 n;
    u32 k;
    u32 aligned;  // the rows of `x` start at multiples of 16 bytes
};
#include "layout/matmul_generic.cuh"

DEVICE void epilogue(const MatmulGenericArgs& args, u32 row, u32 column, float value) {
    u64 at = (u64)row * args.n + column;
    if (args.bias) value += args.bias[column];
    if (args.residual) value += args.residual[at];
    args.out[at] = value;
}

template <typename W, int R>
DEVICE void gemv(const MatmulGenericArgs& args) {
    pdl_begin();
    u32 lane = threadIdx.x % 32, column = blockIdx.x * 4 + threadIdx.x / 32;
    if (column >= args.n) return;
    const u8* w = args.w + (u64)column * row_bytes<W>(args.k);
    float acc[R];
#pragma unroll
    for (int r = 0; r < R; r++) acc[r] = 0.0f;
    for (u32 at = lane * 8; at < args.k; at += 256) {
        float weights[8], x[8];
        dequantize_row8<W>(w, at, args.k, weights);
#pragma unroll
        for (int r = 0; r < R; r++) {
            // Rows past the last read the last one; their sums are not stored.
            u32 row = R == 1 ? 0 : min(r, args.m - 1);
            load_row8(args.x + (u64)row * args.k, at, args.k, args.aligned, x);
#pragma unroll
            for (int i = 0; i < 8; i++) acc[r] += weights[i] * x[i];
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float value = warp_sum(acc[r]);
        if (lane == 0 && r < args.m) epilogue(args, r, column, value);
    }
}

template <typename W>
DEVICE void tile(const MatmulGenericArgs& args) {
    __shared__ __align__(16) float xs[K_STEP][PITCH], ws[K_STEP][PITCH];
    pdl_begin();
    u32 row0 = blockIdx.x * TILE, column0 = blockIdx.y * TILE;
    // Each thread loads eight elements of one row of either operand, and computes 4 x 4 outputs.
    u32 load_row = threadIdx.x / 4, load_at = threadIdx.x % 4 * 8;
    u32 top = threadIdx.x / 16 * 4, left = threadIdx.x % 16 * 4;
    const u8* w = args.w + (u64)(column0 + load_row) * row_bytes<W>(args.k);
    float acc[4][4] = {};
    for (u32 k0 = 0; k0 < args.k; k0 += K_STEP) {
        float x8[8], w8[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x8[i] = w8[i] = 0.0f;
        if (row0 + load_row < args.m)
            load_row8(args.x + (u64)(row0 + load_row) * args.k, k0 + load_at, args.k, args.aligned, x8);
        if (column0 + load_row < args.n) dequantize_row8<W>(w, k0 + load_at, args.k, w8);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            xs[load_at + i][load_row] = x8[i];
            ws[load_at + i][load_row] = w8[i];
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < K_STEP; k++) {
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
            if (row < args.m && column < args.n) epilogue(args, row, column, acc[i][j]);
        }
}

#define ROWS(W, name, R)                                                                  \
    extern "C" __global__ void __launch_bounds__(128)                                     \
        matmul_generic_##name##_rows##R(const __grid_constant__ MatmulGenericArgs args) { \
        gemv<W, R>(args);                                                                 \
    }
#define KERNELS(W, name)                                                               \
    ROWS(W, name, 1)                                                                   \
    ROWS(W, name, 2)                                                                   \
    ROWS(W, name, 4)                                                                   \
    ROWS(W, name, 8)                                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                  \
        matmul_generic_##name##_tile(const __grid_constant__ MatmulGenericArgs args) { \
        tile<W>(args);                                                                 \
    }
FOR_EACH_WEIGHT(KERNELS)
