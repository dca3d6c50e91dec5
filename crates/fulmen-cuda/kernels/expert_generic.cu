// Matmuls by expert id for every weight type and every shape, in f32: y[pair, n] = x W[id(pair)]^T + bias.
// The fallback where neither the GEMV nor the grouped GEMM by expert id applies (experts.rs). And the sum of
// the results of a row's experts. Launched by src/kernels/expert_generic.rs.
//
// expert_generic_<type>: one warp per pair and row of W, four warps per block; grid ceil(n / 4) x pairs. A
//   lane dequantizes 8 columns of every 256; a warp reduction adds up the lanes. Epilogue: bias, then the
//   activation with a gate that was computed before, or the multiplication by the pair's routing weight.
// expert_sum: out = residual + the sum over the pairs of a row, in order; one thread per element.
//
// Layouts: x [m, k] or [pairs, k]; W [n_experts, n, k] as in a GGUF file; y, gate [pairs, n]; f32 but for W.
// Preconditions: k a multiple of the format's block. A pair whose id is out of range is reported and not
// written; one without an expert here (NO_EXPERT) is not written, and not added.
// Numerics: f32.
// Bound: instruction issue of the dequantization; expert_sum by memory bandwidth. Not measured.
#include "experts.cuh"
#include "quant.cuh"

// Mirrored by `ExpertGenericArgs` in src/kernels/expert_generic.rs.
struct ExpertGenericArgs {
    const float* x;
    const u8* w;
    const u32* ids;        // [pairs]
    const float* bias;     // [n_experts, n] or null
    const float* gate;     // [pairs, n]: gate projections before the activation, or null
    const float* weights;  // [pairs] routing weights, or null
    float* out;            // [pairs, n]
    Fault* fault;
    GatedActivation activation;
    u32 n;
    u32 k;
    u32 n_experts;
    u32 top_k;
    u32 pairs_per_row_of_x;  // top_k, or 1 if every pair has a row of x
    u32 aligned;             // the rows of `x` start at multiples of 16 bytes
};

// Mirrored by `ExpertSumArgs` there.
struct ExpertSumArgs {
    const float* pairs;     // [m, top_k, n]
    const u32* ids;         // [m, top_k]
    const float* residual;  // [m, n] or null; may be `out`
    float* out;             // [m, n]
    u32 n;
    u32 top_k;
};
#include "layout/expert_generic.cuh"

template <typename W>
DEVICE void expert_generic(const ExpertGenericArgs& args) {
    pdl_begin();
    const u32 lane = threadIdx.x % 32, column = blockIdx.x * 4 + threadIdx.x / 32, pair = blockIdx.y;
    if (column >= args.n) return;
    const u32 id = args.ids[pair];
    if (id >= args.n_experts) {
        if (is_invalid_expert(id, args.n_experts) && column == 0 && lane == 0)
            report(args.fault, FAULT_EXPERT, pair / args.top_k, id, args.n_experts);
        return;
    }
    const u64 row = (u64)id * args.n + column, at = (u64)pair * args.n + column;
    const u8* w = args.w + row * row_bytes<W>(args.k);
    const float* x = args.x + (u64)(pair / args.pairs_per_row_of_x) * args.k;
    float sum = 0.0f;
    for (u32 i = lane * 8; i < args.k; i += 256) {
        float w8[8], x8[8];
        dequantize_row8<W>(w, i, args.k, w8);
        load_row8(x, i, args.k, args.aligned, x8);
#pragma unroll
        for (int j = 0; j < 8; j++) sum += w8[j] * x8[j];
    }
    float value = warp_sum(sum);
    if (lane != 0) return;
    if (args.bias) value += args.bias[row];
    if (args.gate) value = args.activation(args.gate[at], value);
    if (args.weights) value *= args.weights[pair];
    args.out[at] = value;
}

#define KERNEL(W, name)                                                         \
    extern "C" __global__ void __launch_bounds__(128)                           \
        expert_generic_##name(const __grid_constant__ ExpertGenericArgs args) { \
        expert_generic<W>(args);                                                \
    }
FOR_EACH_WEIGHT(KERNEL)

extern "C" __global__ void __launch_bounds__(256) expert_sum(const __grid_constant__ ExpertSumArgs args) {
    pdl_begin();
    const u32 column = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    if (column >= args.n) return;
    const u64 at = (u64)row * args.n + column;
    const float* from = args.pairs + (u64)row * args.top_k * args.n + column;
    float value = args.residual ? args.residual[at] : 0.0f;
    const u32* ids = args.ids + (u64)row * args.top_k;
    for (u32 slot = 0; slot < args.top_k; slot++) {
        if (ids[slot] != NO_EXPERT) value += from[(u64)slot * args.n];
    }
    args.out[at] = value;
}
