// The order of a row's elements: the largest first, the lowest index first among equals.
#pragma once
#include "common.cuh"

// An element and its index as one number: it rises with the value and falls with the index. 0 for NaN and -inf, which
// are never chosen.
DEVICE u64 key_of(float value, u32 index) {
    if (!(value > -INFINITE)) return 0;
    u32 bits = __float_as_uint(value + 0.0f);  // -0 is as large as 0
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (u32)~index;
}

DEVICE u32 index_of(u64 key) { return ~(u32)key; }

DEVICE float value_of(u64 key) {
    u32 bits = (u32)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

// The largest key among those of the block's threads, in every thread. `warps` holds 32 keys and may be used again after
// the next barrier.
DEVICE u64 block_max(u64 key, u64* warps) {
    key = warp_max(key);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = key;
    __syncthreads();
    key = warp_max(threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0ull);
    __syncthreads();
    return key;
}

// The largest key of the elements from `from` to `to`, in every thread of the block.
DEVICE u64 largest_of(const float* x, u64 from, u64 to, u64* warps) {
    u64 key = 0;
#pragma unroll 4
    for (u64 i = from + threadIdx.x; i < to; i += blockDim.x) {
        u64 other = key_of(x[i], (u32)i);
        key = other > key ? other : key;
    }
    return block_max(key, warps);
}
