// RMS norm over rows, alone and with a residual sum before it. One block a row; narrow rows have a block of one warp.
#include "common.cuh"

struct RmsNormParams {
    const float* a;
    const float* b;      // added to `a` first; add_rms_norm only
    const float* gamma;  // `width` gains
    float* sum;          // where a + b goes; add_rms_norm only
    float* out;
    u32 width;
    float epsilon;
    u32 wide;  // all addresses are multiples of 16, and so is a row
    u32 unused;
};

// Four elements as one value, so that both widths share the code below.
DEVICE float squares(float x) { return x * x; }
DEVICE float squares(float4 x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; }
DEVICE float plus(float a, float b) { return a + b; }
DEVICE float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
DEVICE float scaled(float x, float factor, float gamma) { return x * factor * gamma; }
DEVICE float4 scaled(float4 x, float factor, float4 gamma) {
    return make_float4(x.x * factor * gamma.x, x.y * factor * gamma.y, x.z * factor * gamma.z, x.w * factor * gamma.w);
}

// The output may be `a`, and the sum may be `a` or `b`: each element belongs to one thread, which reads it first.
template <typename V, bool ADD>
DEVICE void norm_row(const RmsNormParams& p, float* parts) {
    u32 n = p.width / (sizeof(V) / 4);
    u64 start = (u64)blockIdx.x * n;
    const V* a = (const V*)p.a + start;
    const V* b = (const V*)p.b + start;
    V* sum = (V*)p.sum + start;
    V* out = (V*)p.out + start;
    const V* gamma = (const V*)p.gamma;
    float total = 0.0f;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        V x = a[i];
        if (ADD) {
            x = plus(x, b[i]);
            sum[i] = x;
        }
        total += squares(x);
    }
    total = block_reduce<Sum>(total, parts);
    float factor = 1.0f / sqrtf(total / (float)p.width + p.epsilon);
    const V* x = ADD ? sum : a;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) out[i] = scaled(x[i], factor, gamma[i]);
}

template <bool ADD>
DEVICE void norm(const RmsNormParams& p) {
    __shared__ float parts[32];
    pdl_begin();
    if (p.wide) {
        norm_row<float4, ADD>(p, parts);
    } else {
        norm_row<float, ADD>(p, parts);
    }
}

extern "C" __global__ void __launch_bounds__(1024) rms_norm(const __grid_constant__ RmsNormParams p) { norm<false>(p); }
extern "C" __global__ void __launch_bounds__(1024) add_rms_norm(const __grid_constant__ RmsNormParams p) {
    norm<true>(p);
}
