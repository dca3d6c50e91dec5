// Packs f32 activations into the K-major panels of the prefill GEMM (gemm_panels.cuh). Element-wise; one
// block of 256 threads per row, 8 elements per thread. Launched by src/kernels/gemm/activations.rs.
//
// `gemm_activations_bf16`: rounded to bf16, for block-quantized weights.
// `gemm_activations_split`: split into two bf16, the rests in a second set of panels behind the first: 16
// bits of each significand, for bf16 and f32 weights.
// `gemm_activations_f16`: each row scaled by a power of two that scales its largest value to [2^14, 2^15),
// then rounded to f16; `row_scales` undo it in the GEMM's epilogue. Includes a reduction of the row's largest
// magnitude.
// Layouts: x [m, k] f32; out k_panels panels of `rows` rows.
// Preconditions: none (unaligned rows are read by scalar loads).
// Bound: memory bandwidth; about 2.2 of 33 ms of a 2048-token prefill of Qwen3-4B on an H200, about 90 % of
// the bandwidth.
#include "gemm_panels.cuh"

// Mirrored by `GemmActivationsArgs` in src/kernels/gemm/activations.rs.
struct GemmActivationsArgs {
    const float* x;  // [m, k]
    u8* out;
    float* row_scales;  // [m], f16 only
    u32 k;
    u32 k_panels;  // of a row
    u32 rows;      // of the panels: m rounded up to 8
    u32 aligned;   // the rows of `x` start at multiples of 16 bytes
};
#include "layout/gemm_activations.cuh"

// Calls store(8 elements, their place in the panels) for all chunks of the block's row.
template <typename Store>
DEVICE void for_each_chunk(const GemmActivationsArgs& args, Store store) {
    const float* row = args.x + (u64)blockIdx.x * args.k;
    for (u32 at = threadIdx.x * 8; at < args.k_panels * PANEL; at += blockDim.x * 8) {
        float x[8];
        load_row8(row, at, args.k, args.aligned, x);
        store(x, args.out + panel_chunk(args.rows, blockIdx.x, at));
    }
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_activations_bf16(const __grid_constant__ GemmActivationsArgs args) {
    pdl_begin();
    for_each_chunk(args, [](const float(&x)[8], u8* to) { store_chunk<MmaBf16>(to, x); });
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_activations_split(const __grid_constant__ GemmActivationsArgs args) {
    pdl_begin();
    u64 rests = (u64)args.k_panels * args.rows * PANEL_ROW_BYTES;
    for_each_chunk(args, [=](const float(&x)[8], u8* to) { store_chunk_split(to, to + rests, x); });
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_activations_f16(const __grid_constant__ GemmActivationsArgs args) {
    __shared__ float warp_results[32];
    pdl_begin();
    const float* row = args.x + (u64)blockIdx.x * args.k;
    float largest = 0.0f;
    for (u32 at = threadIdx.x; at < args.k; at += blockDim.x) largest = fmaxf(largest, fabsf(row[at]));
    largest = block_reduce<Max>(largest, warp_results);
    const Pow2Scale scale = Pow2Scale::of<14>(__float_as_uint(largest));
    if (threadIdx.x == 0) args.row_scales[blockIdx.x] = scale.up;
    for_each_chunk(args, [=](const float(&x)[8], u8* to) {
        float scaled[8];
#pragma unroll
        for (int i = 0; i < 8; i++) scaled[i] = x[i] * scale.down;
        store_chunk<MmaF16>(to, scaled);
    });
}
