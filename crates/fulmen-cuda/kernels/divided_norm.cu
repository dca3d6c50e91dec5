// RMS norm of rows whose columns are divided among ranks. Launched by src/kernels/divided_norm.rs.
//
// `mean_squares`: the means of the squares of each row of two inputs, for an all-reduce. A block reduction,
// one block per row and input, up to 1024 threads. `rms_scale`: out = x / sqrt(mean / ranks + epsilon) *
// gamma with means that were added up; one thread per element, blocks of 256.
//
// Layouts: inputs [m, widths[i]], means [m, 2]; x and out [m, width], which may be the same address, gamma
// [width], all f32.
// Preconditions: none. Numerics: f32, one partial sum per thread, then warp shuffles.
// Bound: memory bandwidth; for a small batch the latency of one pass. Not measured.
#include "common.cuh"

// Mirrored by `MeanSquaresArgs` in src/kernels/divided_norm.rs.
struct MeanSquaresArgs {
    const float* a;
    const float* b;
    float* means;
    u32 width_a;
    u32 width_b;
};

// Mirrored by `RmsScaleArgs` in src/kernels/divided_norm.rs.
struct RmsScaleArgs {
    const float* x;
    const float* means;
    const float* gamma;
    float* out;
    u64 n;
    u32 width;
    u32 columns;
    u32 column;
    u32 ranks;
    float epsilon;
    u32 unused;
};
#include "layout/divided_norm.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    mean_squares(const __grid_constant__ MeanSquaresArgs args) {
    __shared__ float warp_results[32];
    pdl_begin();
    const bool is_b = blockIdx.x % 2 == 1;
    const u32 width = is_b ? args.width_b : args.width_a;
    const float* x = (is_b ? args.b : args.a) + (u64)(blockIdx.x / 2) * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) squares += x[i] * x[i];
    squares = block_reduce<Sum>(squares, warp_results);
    if (threadIdx.x == 0) args.means[blockIdx.x] = squares / (float)width;
}

extern "C" __global__ void __launch_bounds__(256) rms_scale(const __grid_constant__ RmsScaleArgs args) {
    pdl_begin();
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= args.n) return;
    const u64 row = at / args.width;
    const float mean = args.means[row * args.columns + args.column] / (float)args.ranks;
    const float factor = 1.0f / sqrtf(mean + args.epsilon);
    args.out[at] = args.x[at] * factor * args.gamma[at - row * args.width];
}
