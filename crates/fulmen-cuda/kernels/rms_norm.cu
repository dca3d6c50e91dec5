// RMS norm over rows, with a residual add before or after it: out = x / sqrt(mean(x²) + epsilon) · gamma. A
// reduction, then an element-wise pass; one block per row, up to 1024 threads. Launched by
// src/kernels/rms_norm.rs.
//
// `rms_norm`: x = a. `add_rms_norm`: x = a + b, which is also written to `sum`. `rms_norm_add`: x = a, and
// b + out is written to `sum` (post-norm).
// Layouts: all operands [rows, width] f32, gamma [width]. The output may be `a`, and `sum` may be `a`, `b`
// or, with `rms_norm_add`, the output: each element is read and written by one thread. The row is read twice,
// the second time from L1 or L2; with `rms_norm_add` and no more vectors than threads it stays in registers,
// and all loads are issued before the reduction.
// Preconditions: none. Numerics: f32, one partial sum per thread, then warp shuffles.
// Bound: memory bandwidth; for a small batch the latency of two passes. H200, 2048 x 2560 with an addition:
// 21 us, about 95 % of the bandwidth.
#include "common.cuh"
#include "float4.cuh"
#include "ptx/prefetch.cuh"

// Mirrored by `RmsNormArgs` in src/kernels/rms_norm.rs.
struct RmsNormArgs {
    const float* a;
    const float* b;  // with an add only
    const float* gamma;
    float* sum;  // with an add only
    float* out;
    u32 width;
    float epsilon;
    u32 vectorized;  // all addresses and the row stride are multiples of 16 bytes
    u32 unused;
};
#include "layout/rms_norm.cuh"

// With the operators of float4.cuh, rows of float and of float4 share the code below.
DEVICE float sum_of_squares(float x) { return x * x; }

template <typename V, bool ADD>
DEVICE void norm_row(const RmsNormArgs& args, float* warp_results) {
    u32 n = args.width / (sizeof(V) / 4);
    u64 start = (u64)blockIdx.x * n;
    const V* a = (const V*)args.a + start;
    const V* b = (const V*)args.b + start;
    V* sum = (V*)args.sum + start;
    V* out = (V*)args.out + start;
    const V* gamma = (const V*)args.gamma;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        V x = a[i];
        if (ADD) {
            x = x + b[i];
            sum[i] = x;
        }
        squares += sum_of_squares(x);
    }
    squares = block_reduce<Sum>(squares, warp_results);
    float factor = 1.0f / sqrtf(squares / (float)args.width + args.epsilon);
    const V* x = ADD ? sum : a;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i] * factor * gamma[i];
}

// Not contracted with the multiplication before it: the sum has the bits of a norm and an add apart.
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE float4 add_rn(float4 a, float4 b) {
    return make_float4(add_rn(a.x, b.x), add_rn(a.y, b.y), add_rn(a.z, b.z), add_rn(a.w, b.w));
}

// Post-norm.
template <typename V>
DEVICE void norm_add_row(const RmsNormArgs& args, float* warp_results) {
    const u32 n = args.width / (sizeof(V) / 4);
    const u64 start = (u64)blockIdx.x * n;
    const V *a = (const V*)args.a + start, *b = (const V*)args.b + start, *gamma = (const V*)args.gamma;
    V *sum = (V*)args.sum + start, *out = (V*)args.out + start;
    // The first vector of a thread is kept.
    const bool inside = threadIdx.x < n;
    V x = {}, residual = {}, gain = {};
    if (inside) x = a[threadIdx.x], residual = b[threadIdx.x], gain = gamma[threadIdx.x];
    float squares = sum_of_squares(x);
    for (u32 i = threadIdx.x + blockDim.x; i < n; i += blockDim.x) squares += sum_of_squares(a[i]);
    squares = block_reduce<Sum>(squares, warp_results);
    const float factor = 1.0f / sqrtf(squares / (float)args.width + args.epsilon);
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        if (i != threadIdx.x) x = a[i], residual = b[i], gain = gamma[i];
        const V normed = x * factor * gain;
        out[i] = normed;
        sum[i] = add_rn(residual, normed);
    }
}

template <bool ADD>
DEVICE void norm(const RmsNormArgs& args) {
    __shared__ float warp_results[32];
    pdl_begin();
    if (args.vectorized) {
        norm_row<float4, ADD>(args, warp_results);
    } else {
        norm_row<float, ADD>(args, warp_results);
    }
}

extern "C" __global__ void __launch_bounds__(1024) rms_norm(const __grid_constant__ RmsNormArgs args) {
    norm<false>(args);
}
extern "C" __global__ void __launch_bounds__(1024) add_rms_norm(const __grid_constant__ RmsNormArgs args) {
    norm<true>(args);
}
extern "C" __global__ void __launch_bounds__(1024) rms_norm_add(const __grid_constant__ RmsNormArgs args) {
    __shared__ float warp_results[32];
    // The step's weights have evicted gamma from L2.
    if (blockIdx.x == 0 && threadIdx.x * 32 < args.width) prefetch_global_l2(args.gamma + threadIdx.x * 32);
    pdl_begin();
    if (args.vectorized) {
        norm_add_row<float4>(args, warp_results);
    } else {
        norm_add_row<float>(args, warp_results);
    }
}
