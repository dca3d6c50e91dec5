// A total order of a row's elements for argmax and sampling: the largest value first, the lowest index first
// among equals.
//
// Value and index are packed into one 64-bit key that grows with the value and shrinks with the index, so a
// maximum over keys is a deterministic argmax in any reduction order.
//
//     bit 63 ........ 32 31 ........ 0
//     value, as ordered  ~index
//     unsigned integer
#pragma once
#include "common.cuh"

// 0 for NaN and -inf, which are never chosen.
DEVICE u64 ordered_key(float value, u32 index) {
    if (!(value > -INFINITE)) return 0;
    u32 bits = __float_as_uint(value + 0.0f);  // -0 equals 0
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (u32)~index;
}

DEVICE u32 key_index(u64 key) { return ~(u32)key; }

DEVICE float key_value(u64 key) {
    u32 bits = (u32)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

// The largest key over the threads of the block, returned to every thread. `warp_keys` holds 32 keys and may
// be reused after the next barrier.
DEVICE u64 block_max(u64 key, u64* warp_keys) {
    key = warp_max(key);
    if (threadIdx.x % 32 == 0) warp_keys[threadIdx.x / 32] = key;
    __syncthreads();
    key = warp_max(threadIdx.x % 32 < blockDim.x / 32 ? warp_keys[threadIdx.x % 32] : 0ull);
    __syncthreads();
    return key;
}

// The largest key of elements [begin, end), returned to every thread of the block.
DEVICE u64 block_max_key(const float* x, u64 begin, u64 end, u64* warp_keys) {
    u64 key = 0;
#pragma unroll 4
    for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        u64 other = ordered_key(x[i], (u32)i);
        key = other > key ? other : key;
    }
    return block_max(key, warp_keys);
}

// The largest of `count` keys, returned to every lane of the warp.
DEVICE u64 warp_max_key(const u64* keys, u32 count) {
    u64 key = 0;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) {
        u64 other = keys[i];
        key = other > key ? other : key;
    }
    return warp_max(key);
}
