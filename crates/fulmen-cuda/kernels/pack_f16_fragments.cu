// targets: 90
// Packs f32 activations as f16 after an optional RMS norm: as MMA B-fragments (f16_fragments.cuh), the
// activation operand of the small-M GEMM where no previous kernel has forwarded it, or as panels
// (f16_panels.cuh), that of the mixed-input GEMM.
//
// - Algorithm: one row reduction (sum of squares and largest magnitude), then an elementwise conversion. Each
//   thread keeps its first HELD float4 of the row in registers between the two passes and reads the rest
//   twice, from L2.
// - Grid: one block per row, for fragments padding rows included; up to 1024 threads (`threads` in
//   pack_f16_fragments.rs), four columns per thread and step. The four lanes of a quad hold one K slice of 16
//   columns, whose sum they store with the fragments.
// - Numerics: a row is multiplied by a power of two, so that f16 holds it whatever its magnitude
//   (row_scaling.cuh); `row_scales` receives the inverse, which the GEMM multiplies its accumulators by. The
//   norm is computed in f32. Rows with infinities or NaN are converted as they are.
// - Preconditions: `x`, `gamma` and `normed` are 16-byte aligned, k is a multiple of 4.
// - Bound: latency; 4 to 5 us alone on an H200 for 16 rows. Most launches are avoided by forwarding
//   (forwarding.cuh).
// - PDL: gamma is prefetched into L2 before `pdl_wait`, everything else is read after it.
#include "f16_panels.cuh"
#include "ptx/tma.cuh"
#include "row_scaling.cuh"

struct PackF16FragmentsArgs {
    const float* x;        // [m, k]
    const float* gamma;    // [k], weights of the RMS norm; null: no norm
    float* normed;         // where the norm's f32 result goes, or null
    u8* packed[K_ORDERS];  // null: not in this order; panels are in the order of `panel_orders`
    float* row_scales;     // [rows]: what the accumulators of a row are to be multiplied by
    float epsilon;
    u32 k;
    u32 m;  // rows of x; further rows become zeros
    u32 panel_rows;
    u32 panel_orders[K_ORDERS];
};
#include "layout/pack_f16_fragments.cuh"

constexpr int HELD = 4;

// Sum and maximum over the warp.
DEVICE void warp_reduce(float& sum, u32& largest) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(FULL_WARP, sum, step);
        largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    }
}

// Where four elements of a row go; the lanes of a warp hold consecutive ones.
template <int ROWS>
struct Fragments {
    static DEVICE void store(const PackF16FragmentsArgs& args, u32 row, u32 at, float4 v) {
        const PackedF16x4 packed(v);
#pragma unroll
        for (int order = 0; order < K_ORDERS; order++)
            if (args.packed[order])
                store_fragment_x4(args.packed[order], order, ROWS, row, at, packed.values, packed.slice_sum);
    }
};

struct Panels {
    static DEVICE void store(const PackF16FragmentsArgs& args, u32 row, u32 at, float4 v) {
        const uint2 values = make_uint2(f16_pair(v.x, v.z), f16_pair(v.y, v.w));
#pragma unroll
        for (int i = 0; i < K_ORDERS; i++)
            if (args.packed[i])
                store_panel_x4(args.packed[i], args.panel_orders[i], args.panel_rows, row, at, values);
    }
};

template <class Layout>
DEVICE void pack_row(const PackF16FragmentsArgs& args) {
    __shared__ float warp_sums[32];
    __shared__ u32 warp_largest[32];
    const u32 row = blockIdx.y, length = row < args.m ? args.k : 0;
    const u32 padded = (args.k + K_CHUNK - 1) / K_CHUNK * K_CHUNK, stride = blockDim.x * 4;
    const bool norm = args.gamma;
    const float* x = args.x + (u64)row * args.k;
    pdl_launch_dependents();
    // The weights that were streamed since its last use have evicted gamma from L2.
    if (norm && threadIdx.x == 0 && row < 2) cp_async_bulk_prefetch_l2_covering(args.gamma, args.k * 4);
    pdl_wait();
    auto gamma_at = [&](u32 at) { return norm && at < length ? ldcg4(args.gamma + at) : splat4(1); };
    float4 held[HELD], gamma[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 at = threadIdx.x * 4 + i * stride;
        held[i] = at < length ? ldcg4(x + at) : splat4(0);
        gamma[i] = gamma_at(at);
    }
    // The largest magnitude but for the norm's factor, as an integer, so that NaN is larger than everything.
    float sum = 0;
    u32 largest = 0;
    auto accumulate = [&](float4 v, float4 g) {
        sum += sum_of_squares(v);
        largest = max(largest, abs_max_bits(v * g));
    };
#pragma unroll
    for (int i = 0; i < HELD; i++) accumulate(held[i], gamma[i]);
    for (u32 at = threadIdx.x * 4 + HELD * stride; at < length; at += stride)
        accumulate(*(const float4*)(x + at), gamma_at(at));
    const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    warp_reduce(sum, largest);
    if (lane == 0) warp_sums[threadIdx.x / 32] = sum, warp_largest[threadIdx.x / 32] = largest;
    __syncthreads();
    sum = lane < warps ? warp_sums[lane] : 0, largest = lane < warps ? warp_largest[lane] : 0;
    warp_reduce(sum, largest);
    const float inverse_rms = norm ? rsqrtf(sum / (float)args.k + args.epsilon) : 1;
    const u32 exponent = row_scale_exponent(abs_bits(__uint_as_float(largest) * inverse_rms));
    const float scale = power_of_two(exponent);
    if (threadIdx.x == 0) args.row_scales[row] = power_of_two(254 - exponent);
    auto put = [&](u32 at, float4 v, float4 g) {
        if (norm) {
            v = v * inverse_rms * g;
            if (args.normed && at < length) *(float4*)(args.normed + (u64)row * args.k + at) = v;
        }
        Layout::store(args, row, at, make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
    };
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 at = threadIdx.x * 4 + i * stride;
        if (at < padded) put(at, held[i], gamma[i]);
    }
    for (u32 at = threadIdx.x * 4 + HELD * stride; at < padded; at += stride)
        put(at, at < length ? *(const float4*)(x + at) : splat4(0), gamma_at(at));
}

#define ENTRY(NAME, ...)                                          \
    extern "C" __global__ void __launch_bounds__(1024)            \
        NAME(const __grid_constant__ PackF16FragmentsArgs args) { \
        pack_row<__VA_ARGS__>(args);                              \
    }
ENTRY(pack_f16_fragments_rows8, Fragments<8>)
ENTRY(pack_f16_fragments_rows16, Fragments<16>)
ENTRY(pack_f16_panels, Panels)
