// Conversion of activation rows to f16 (f16_fragments.cuh): the power of two that scales a row into range,
// and groups of four converted elements.
//
// A row is multiplied by the power of two that scales its largest magnitude to [2^10, 2^11): exact, far from
// overflow (65504, also for the sums of 16 columns), and small elements keep 10 bits down to 2^-24 of the
// largest. The GEMM multiplies the accumulators of the row by the inverse.
#pragma once

#include "f16_fragments.cuh"
#include "float4.cuh"

// The bits of the largest magnitude.
DEVICE u32 abs_max_bits(float4 v) {
    return max(max(abs_bits(v.x), abs_bits(v.y)), max(abs_bits(v.z), abs_bits(v.w)));
}

// Biased exponent of the power of two for a row, from the bits of its largest magnitude. Rows with infinities
// or NaN keep their values (127 is 2^0). 254 - exponent is that of the inverse.
DEVICE u32 row_scale_exponent(u32 abs_max) {
    return abs_max >> 23 == 255 ? 127 : min(264 - (abs_max >> 23), 253u);
}
DEVICE float power_of_two(u32 exponent) { return __uint_as_float(exponent << 23); }

// Four consecutive elements as f16 in fragment order, and the sum of their slice, which the four lanes of a
// quad hold.
struct PackedF16x4 {
    uint2 values;
    float slice_sum;
    u32 abs_max;  // bits, before rounding

    DEVICE PackedF16x4(float4 v)
        : values(make_uint2(f16_pair(v.x, v.z), f16_pair(v.y, v.w))), abs_max(abs_max_bits(v)) {
        slice_sum = quad_sum(f16_pair_sum(values.x) + f16_pair_sum(values.y));
    }
};
