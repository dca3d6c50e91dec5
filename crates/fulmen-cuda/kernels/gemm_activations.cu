// Activations as panels of 16-bit floats, for products of many rows: see panels.cuh. One block a row.
//
// `activations_bf16`: rounded to bf16, for weights in blocks.
// `activations_split`: as two bf16, the second in the panels behind the first's: 16 bits of each number's digits.
// `activations_f16`: rounded to f16, each row times a power of two that brings its largest number near 2^14.
#include "panels.cuh"

struct ActivationsParams {
    const float* x;  // [m, k]
    u8* out;
    float* factors;  // [m]: what products with a row of f16 are multiplied by
    u32 k;
    u32 panels;  // of a row
    u32 rows;    // of the panels: m, padded
    u32 wide;    // the rows of `x` start at multiples of 16 bytes
};

DEVICE void load8(const ActivationsParams& p, const float* row, u32 at, float (&out)[8]) {
    if (p.wide && at + 8 <= p.k) {
        float4 a = *(const float4*)(row + at), b = *(const float4*)(row + at + 4);
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = at + i < p.k ? row[at + i] : 0.0f;
    }
}

template <typename Store>
DEVICE void each8(const ActivationsParams& p, Store store) {
    const float* row = p.x + (u64)blockIdx.x * p.k;
    for (u32 at = threadIdx.x * 8; at < p.panels * PANEL; at += blockDim.x * 8) {
        float x[8];
        load8(p, row, at, x);
        store(x, p.out + panel_piece(p.rows, blockIdx.x, at));
    }
}

extern "C" __global__ void __launch_bounds__(256) activations_bf16(const __grid_constant__ ActivationsParams p) {
    pdl_begin();
    each8(p, [](const float(&x)[8], u8* to) { store8_bfloat(to, x); });
}

extern "C" __global__ void __launch_bounds__(256) activations_split(const __grid_constant__ ActivationsParams p) {
    pdl_begin();
    u64 behind = (u64)p.panels * p.rows * PANEL_BYTES;
    each8(p, [=](const float(&x)[8], u8* to) { store8_split(to, to + behind, x); });
}

extern "C" __global__ void __launch_bounds__(256) activations_f16(const __grid_constant__ ActivationsParams p) {
    __shared__ float parts[32];
    pdl_begin();
    const float* row = p.x + (u64)blockIdx.x * p.k;
    float largest = 0.0f;
    for (u32 at = threadIdx.x; at < p.k; at += blockDim.x) largest = fmaxf(largest, fabsf(row[at]));
    largest = block_reduce<Max>(largest, parts);
    // Factors in both directions are normal numbers. An infinity stays one under either.
    int exponent = (int)(__float_as_uint(largest) >> 23) - 127 - 14;
    exponent = min(max(exponent, -120), 120);
    float down = __uint_as_float((u32)(127 - exponent) << 23);
    if (threadIdx.x == 0) p.factors[blockIdx.x] = __uint_as_float((u32)(127 + exponent) << 23);
    each8(p, [=](const float(&x)[8], u8* to) {
        *(uint4*)to = make_uint4(MmaF16::pack(x[0] * down, x[1] * down), MmaF16::pack(x[2] * down, x[3] * down),
                                 MmaF16::pack(x[4] * down, x[5] * down), MmaF16::pack(x[6] * down, x[7] * down));
    });
}
