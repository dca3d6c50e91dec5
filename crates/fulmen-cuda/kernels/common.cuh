// What every kernel of this crate may use: PDL, conversions, reductions over warps and blocks, and fault reports.
#pragma once
#include "ptx/cvt.cuh"
#include "ptx/pdl.cuh"
#include "types.cuh"

// ---- Reductions ---------------------------------------------------------------------------------------------------

DEVICE float warp_sum(float value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(FULL_WARP, value, lane);
    return value;
}

// NaN is left out.
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

struct Sum {
    static DEVICE float warp(float value) { return warp_sum(value); }
    static DEVICE float none() { return 0.0f; }
};

struct Max {
    static DEVICE float warp(float value) { return warp_max(value); }
    static DEVICE float none() { return -INFINITE; }
};

// The reduction over all threads of the block, in every thread. The block is whole warps. `parts` holds 32 values and may
// be used again after the next barrier.
template <typename Op>
DEVICE float block_reduce(float value, float* parts) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    value = Op::warp(value);
    if (warps == 1) return value;
    if (lane == 0) parts[warp] = value;
    __syncthreads();
    value = Op::warp(lane < warps ? parts[lane] : Op::none());
    __syncthreads();
    return value;
}

// ---- Faults -------------------------------------------------------------------------------------------------------
//
// Tokens, positions and sampling states live in device memory, so only kernels see that one is out of range. They never
// use such a value: they put it here, in memory of the host, and the host reads it when it waits. The first one stays.

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
