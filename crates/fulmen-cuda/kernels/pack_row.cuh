// A row of activations converted to f16 by one block, or by a cluster of them, after an optional RMS norm:
// what the kernels that pack activations share (pack_f16_fragments.cu, gemm_mixed_input_reduce.cu).
//
// - Algorithm: one row reduction (sum of squares and largest magnitude), then an elementwise conversion. Each
//   thread keeps its first HELD float4 of the row in registers between the two passes and reads the rest
//   twice.
// - Layouts: `Layout::store` puts four converted columns where they belong; the lanes of a warp hold
//   consecutive ones, so the four lanes of a quad hold one K slice of 16 columns.
// - Numerics: a row is multiplied by a power of two, so that f16 holds it whatever its magnitude
//   (row_scaling.cuh); `row_scales` receives the inverse, which the GEMM multiplies its accumulators by. The
//   norm is computed in f32. Rows with infinities or NaN are converted as they are.
// - Preconditions: `gamma` and `normed` are 16-byte aligned, k is a multiple of 4.
#pragma once
#include "f16_panels.cuh"
#include "ptx/cluster.cuh"
#include "row_scaling.cuh"

struct PackRowArgs {
    const float* gamma;    // [k], weights of the RMS norm; null: no norm
    float* normed;         // [m, k], where the norm's f32 result goes, or null
    u8* packed[K_ORDERS];  // null: not in this order; panels are in the order of `panel_orders`
    float* row_scales;     // [rows]: what the accumulators of a row are to be multiplied by, or null
    float epsilon;
    u32 panel_rows;
    u32 panel_orders[K_ORDERS];
};
#include "layout/pack_row.cuh"

// Sum and maximum over the warp.
DEVICE void warp_reduce(float& sum, u32& largest) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(FULL_WARP, sum, step);
        largest = max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    }
}

struct Panels {
    static DEVICE void store(const PackRowArgs& args, u32 row, u32 at, float4 v) {
        const uint2 values = make_uint2(f16_pair(v.x, v.z), f16_pair(v.y, v.w));
#pragma unroll
        for (int i = 0; i < K_ORDERS; i++)
            if (args.packed[i])
                store_panel_x4(args.packed[i], args.panel_orders[i], args.panel_rows, row, at, values);
    }
};

// Sum and maximum over the block, or over a cluster of blocks that have arrived at its barrier.
template <int CLUSTER>
DEVICE void row_reduce(float& sum, u32& largest) {
    __shared__ float warp_sums[32], block_sums[CLUSTER];
    __shared__ u32 warp_largest[32];
    __shared__ float block_largest[CLUSTER];  // bits
    const u32 lane = threadIdx.x % 32, warps = blockDim.x / 32;
    warp_reduce(sum, largest);
    if (lane == 0) warp_sums[threadIdx.x / 32] = sum, warp_largest[threadIdx.x / 32] = largest;
    __syncthreads();
    sum = lane < warps ? warp_sums[lane] : 0, largest = lane < warps ? warp_largest[lane] : 0;
    warp_reduce(sum, largest);
    if constexpr (CLUSTER > 1) {
        const u32 rank = blockIdx.x % CLUSTER;
        cluster_wait();  // all of them run
        if (threadIdx.x < CLUSTER) {
            st_shared_cluster(&block_sums[rank], threadIdx.x, sum);
            st_shared_cluster(&block_largest[rank], threadIdx.x, __uint_as_float(largest));
        }
        cluster_arrive();
        cluster_wait();
        sum = 0, largest = 0;
#pragma unroll
        for (int i = 0; i < CLUSTER; i++) {
            sum += block_sums[i];
            largest = max(largest, __float_as_uint(block_largest[i]));
        }
    }
}

// Packs one row. `source.first(at)` gives columns `at` to `at + 3` the first time, `source.again(at)` to the
// same thread a second time. The row has `length` of k columns: k or, for a row of padding, none. The blocks
// of a cluster have arrived at its barrier; they take columns in turn.
template <class Layout, int HELD, int CLUSTER = 1, class Source>
DEVICE void pack_row(const PackRowArgs& args, Source& source, u32 row, u32 length, u32 k) {
    const u32 padded = (k + K_CHUNK - 1) / K_CHUNK * K_CHUNK, stride = CLUSTER * blockDim.x * 4;
    const u32 begin = (blockIdx.x % CLUSTER * blockDim.x + threadIdx.x) * 4;
    const bool norm = args.gamma;
    auto gamma_at = [&](u32 at) { return norm && at < length ? ldcg4(args.gamma + at) : splat4(1); };
    // The largest magnitude but for the norm's factor, as an integer, so that NaN is larger than everything.
    float4 held[HELD];
    float sum = 0;
    u32 largest = 0;
    auto accumulate = [&](float4 v, float4 g) {
        sum += sum_of_squares(v);
        largest = max(largest, abs_max_bits(v * g));
    };
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 at = begin + i * stride;
        held[i] = at < length ? source.first(at) : splat4(0);
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) accumulate(held[i], gamma_at(begin + i * stride));
    for (u32 at = begin + HELD * stride; at < length; at += stride)
        accumulate(source.first(at), gamma_at(at));
    row_reduce<CLUSTER>(sum, largest);
    const float inverse_rms = norm ? rsqrtf(sum / (float)k + args.epsilon) : 1;
    const u32 exponent = row_scale_exponent(abs_bits(__uint_as_float(largest) * inverse_rms));
    const float scale = power_of_two(exponent);
    if (begin == 0 && args.row_scales) args.row_scales[row] = power_of_two(254 - exponent);
    auto put = [&](u32 at, float4 v) {
        if (norm) {
            v = v * inverse_rms * gamma_at(at);
            if (args.normed && at < length) *(float4*)(args.normed + (u64)row * k + at) = v;
        }
        Layout::store(args, row, at, make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
    };
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 at = begin + i * stride;
        if (at < padded) put(at, held[i]);
    }
    for (u32 at = begin + HELD * stride; at < padded; at += stride)
        put(at, at < length ? source.again(at) : splat4(0));
}
