// Floats on their way into 16 bits (`f16_fragments.cuh`): their scale, and four of them.
#pragma once

#include "common.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/tma.cuh"
#include "f16_fragments.cuh"

DEVICE u32 magnitude(float v) { return __float_as_uint(v) & ~(1u << 31); }
DEVICE u32 largest_of(float4 v) { return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w))); }
DEVICE float4 times(float4 v, float4 g) { return make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w); }

// The power of two that a row is multiplied with, by its exponent, for the bits of its largest number. Rows that are not finite stay
// as they are.
DEVICE u32 scale_of(u32 largest) { return largest >> 23 == 255 ? 127 : min(264 - (largest >> 23), 253u); }
DEVICE float power_of_two(u32 exponent) { return __uint_as_float(exponent << 23); }

// The sum of four neighbouring lanes.
DEVICE float four_lanes(float sum) {
  sum += __shfl_xor_sync(FULL_WARP, sum, 1);
  return sum + __shfl_xor_sync(FULL_WARP, sum, 2);
}

// Four neighbours in 16 bits, and the sum of their run: four lanes have one.
struct Four {
  uint2 halves;
  float sum;
  u32 largest;  // the bits of the largest, which is not rounded

  DEVICE Four(float4 v) : halves(make_uint2(half_pair(v.x, v.z), half_pair(v.y, v.w))), largest(largest_of(v)) {
    sum = four_lanes(pair_sum(halves.x) + pair_sum(halves.y));
  }
};
