// Softmax of x · scale over rows: max reduction, exponentials with a sum reduction, division. One block per
// row, up to 1024 threads; three passes over the row. Launched by src/kernels/softmax.rs.
//
// Layouts: x, out [rows, width] f32; out may be x.
// Preconditions: none. A row of nothing but -inf gives zeros; a NaN makes its row NaN.
// Numerics: the max is subtracted before the scale is applied, where it causes the least rounding; with a
// negative scale it is the max of -x.
// Bound: memory bandwidth, or latency for a small batch. Not measured.
#include "common.cuh"

// Mirrored by `SoftmaxArgs` in src/kernels/softmax.rs.
struct SoftmaxArgs {
    const float* x;
    float* out;
    u32 width;
    float scale;
};
#include "layout/softmax.cuh"

extern "C" __global__ void __launch_bounds__(1024) softmax(const __grid_constant__ SoftmaxArgs args) {
    __shared__ float warp_results[32];
    pdl_begin();
    const float* x = args.x + (u64)blockIdx.x * args.width;
    float* out = args.out + (u64)blockIdx.x * args.width;
    float sign = copysignf(1.0f, args.scale), scale = fabsf(args.scale);
    float row_max = -INFINITE;
    for (u32 i = threadIdx.x; i < args.width; i += blockDim.x) row_max = fmaxf(row_max, x[i] * sign);
    row_max = block_reduce<Max>(row_max, warp_results);
    // With nothing but -inf and NaN in the row, the exponentials must be 0 and NaN.
    bool masked = row_max == -INFINITE;
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < args.width; i += blockDim.x) {
        float relative = x[i] * sign - (masked ? 0.0f : row_max);
        float e = expf(relative * scale);
        out[i] = e;
        sum += e;
    }
    sum = block_reduce<Sum>(sum, warp_results);
    float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (u32 i = threadIdx.x; i < args.width; i += blockDim.x) out[i] *= inverse;
}
