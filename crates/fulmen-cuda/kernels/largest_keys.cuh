// Selection of the largest keys of a warp one by one, for log-probabilities and top-k.
#pragma once
#include "ordered_key.cuh"

// The largest of the warp's keys, returned to every lane, and dropped from the lane that holds it.
template <u32 COUNT>
DEVICE u64 take_largest(u64 (&keys)[COUNT]) {
    u64 own = 0;
#pragma unroll
    for (u32 j = 0; j < COUNT; j++) own = keys[j] > own ? keys[j] : own;
    u64 largest = warp_max(own);
    // Keys are all different but for 0, which stands for none.
#pragma unroll
    for (u32 j = 0; j < COUNT; j++) keys[j] = keys[j] == largest ? 0 : keys[j];
    return largest;
}
