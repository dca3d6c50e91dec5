// Softmax of x · scale over rows. One block a row. A row of nothing but -inf gives zeros; a NaN makes its row
// NaN.
#include "common.cuh"

struct SoftmaxArgs {
    const float* x;
    float* out;
    u32 width;
    float scale;
};
#include "layout/softmax.cuh"

extern "C" __global__ void __launch_bounds__(1024) softmax(const __grid_constant__ SoftmaxArgs p) {
    __shared__ float parts[32];
    pdl_begin();
    const float* x = p.x + (u64)blockIdx.x * p.width;
    float* out = p.out + (u64)blockIdx.x * p.width;
    // The largest is taken away before the factor comes in, where it takes the least rounding; with a
    // negative factor the largest is that of -x.
    float sign = copysignf(1.0f, p.scale), factor = fabsf(p.scale);
    float largest = -INFINITE;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) largest = fmaxf(largest, x[i] * sign);
    largest = block_reduce<Max>(largest, parts);
    // Nothing but -inf and NaN: the exponentials are 0 and NaN then, which is what the sum must see.
    bool masked = largest == -INFINITE;
    float total = 0.0f;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float away = x[i] * sign - (masked ? 0.0f : largest);
        float e = expf(away * factor);
        out[i] = e;
        total += e;
    }
    total = block_reduce<Sum>(total, parts);
    float share = total == 0.0f ? 0.0f : 1.0f / total;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) out[i] *= share;
}
