// Helpers of every kernel: warp and block reductions, loads of activation rows, power-of-two scaling and
// fault reports. PDL and conversions come with it (ptx/).
#pragma once
#include "ptx/cvt.cuh"
#include "ptx/pdl.cuh"
#include "types.cuh"

// ---- Reductions ----

// Over each LANES neighboring lanes, a power of two.
template <int LANES>
DEVICE float lanes_sum(float value) {
#pragma unroll
    for (int lane = LANES / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(FULL_WARP, value, lane);
    return value;
}

DEVICE float warp_sum(float value) { return lanes_sum<32>(value); }

// NaN is ignored.
DEVICE float warp_max(float value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, lane));
    return value;
}

DEVICE u64 warp_max(u64 value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        u64 other = __shfl_xor_sync(FULL_WARP, value, lane);
        value = other > value ? other : value;
    }
    return value;
}

// Over the four lanes 4 g to 4 g + 3, which hold one row of an MMA accumulator.
DEVICE float quad_sum(float value) {
    value += __shfl_xor_sync(FULL_WARP, value, 1);
    return value + __shfl_xor_sync(FULL_WARP, value, 2);
}

DEVICE float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, 1));
    return fmaxf(value, __shfl_xor_sync(FULL_WARP, value, 2));
}

struct Sum {
    static DEVICE float warp(float value) { return warp_sum(value); }
    static DEVICE float identity() { return 0.0f; }
};

struct Max {
    static DEVICE float warp(float value) { return warp_max(value); }
    static DEVICE float identity() { return -INFINITE; }
};

// The reduction over all threads of the block, returned to every thread. The block is whole warps.
// `warp_results` holds 32 values and may be reused after the next barrier.
template <typename Op>
DEVICE float block_reduce(float value, float* warp_results) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = Op::warp(value);
    if (warps == 1) return value;
    if (lane == 0) warp_results[warp] = value;
    __syncthreads();
    value = Op::warp(lane < warps ? warp_results[lane] : Op::identity());
    __syncthreads();
    return value;
}

// ---- Rows of activations ----

// Elements `at` to `at + 7` of a row of `k` f32 values, zeros past its end. `aligned`: the row starts at a
// multiple of 16 bytes. `at` is a multiple of 8.
DEVICE void load_row8(const float* row, u32 at, u32 k, bool aligned, float (&out)[8]) {
    const float* from = row + at;
    if (aligned && at + 8 <= k) {
        float4 a = *(const float4*)from, b = *(const float4*)(from + 4);
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = at + i < k ? from[i] : 0.0f;
    }
}

// ---- Power-of-two scaling ----
//
// Rows of any f32 magnitude fit f16 after multiplication by a power of two, which is exact; the result is
// multiplied by its inverse.

constexpr float LOG2_E = 1.44269504088896341f;

// False for infinities and NaN.
DEVICE bool is_finite(float x) { return fabsf(x) < INFINITE; }

// The bits of |x|: as integers they order like the values, and NaN is larger than everything.
DEVICE u32 abs_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

struct Pow2Scale {
    float down, up;  // 2^-e and 2^e

    // Multiplication by `down` scales the value with these bits to [2^TARGET, 2^(TARGET + 1)). Both factors
    // are normal numbers, so an infinity stays one under either.
    template <int TARGET>
    static DEVICE Pow2Scale of(u32 largest_bits) {
        int exponent = min(max((int)(largest_bits >> 23) - 127 - TARGET, -120), 120);
        return {__uint_as_float((u32)(127 - exponent) << 23), __uint_as_float((u32)(127 + exponent) << 23)};
    }
};

// ---- Faults ----
//
// Tokens, positions and sampling states live in device memory, so only kernels see that one is out of range.
// They never use such a value: they report it here, in pinned host memory, and the host reads it when it
// synchronizes. Only the first fault is kept.

struct Fault {
    u32 code;  // 0: none
    u32 row;
    u32 value;
    u32 limit;
};

enum FaultCode : u32 {
    FAULT_TOKEN = 1,
    FAULT_POSITION = 2,
    FAULT_SEQUENCE = 3,
    FAULT_TEMPERATURE = 4,
    FAULT_TOP_P = 5,
    FAULT_MIN_P = 6,
    FAULT_REPEAT = 7,
    FAULT_FREQUENCY = 8,
    FAULT_PRESENCE = 9,
};

__device__ __noinline__ void report(Fault* fault, u32 code, u32 row, u32 value, u32 limit) {
    if (atomicCAS(&fault->code, 0u, code) == 0u) {
        fault->row = row;
        fault->value = value;
        fault->limit = limit;
        __threadfence_system();
    }
}
