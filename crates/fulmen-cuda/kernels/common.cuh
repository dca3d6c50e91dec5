// What every kernel of this crate may use. No header of the CUDA toolkit is included anywhere: types, conversions and
// reductions are here.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FULL_WARP 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)

// ---- Dependent launches -------------------------------------------------------------------------------------------
//
// A kernel may be launched before the one ahead of it in the stream is done (compute capability 9.0 and up). EVERY
// kernel calls `wait_for_previous` in every thread before it touches memory that another kernel may write: when it
// returns, all kernels ahead are done and what they wrote is visible. `let_next_start` allows the next kernel to take
// free multiprocessors; it may be called at any time.

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// What plain kernels begin with.
__device__ __forceinline__ void begin() {
    let_next_start();
    wait_for_previous();
}

// ---- Number formats -----------------------------------------------------------------------------------------------

__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// To the nearest, ties to even; too large becomes infinite.
__device__ __forceinline__ u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float bfloat_to_float(u16 bits) { return __uint_as_float((u32)bits << 16); }

// ---- Reductions ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(FULL_WARP, value, lane);
    return value;
}

// NaN is left out.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, lane));
    return value;
}

__device__ __forceinline__ u64 warp_max(u64 value) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        u64 other = __shfl_xor_sync(FULL_WARP, value, lane);
        value = other > value ? other : value;
    }
    return value;
}

struct Sum {
    static __device__ __forceinline__ float warp(float value) { return warp_sum(value); }
    static __device__ __forceinline__ float none() { return 0.0f; }
};

struct Max {
    static __device__ __forceinline__ float warp(float value) { return warp_max(value); }
    static __device__ __forceinline__ float none() { return -INFINITE; }
};

// The reduction over all threads of the block, in every thread. The block is whole warps. `parts` holds 32 values and may
// be used again after the next barrier.
template <typename Op>
__device__ __forceinline__ float block_reduce(float value, float* parts) {
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
