// q8 activations: one row of x quantized to int8, the activation operand of the GEMV (gemv.cu).
//
// Each block of 32 elements has its own f32 scale: x ~ scale * q with q in [-127, 127], scale = max|x| / 127.
// The GEMV quantizes x itself, or copies a row that the previous kernel (attention, gate-up) has forwarded in
// this form.
//
// Memory layout. A group is 512 elements in 768 bytes; the row is padded to whole groups with zeros. A unit
// is 64 elements (two blocks), the granularity at which the GEMV's lanes work; a slice is 16 elements, so
// unit u is slices 4u to 4u + 3:
//
//     byte   0  slice 0 of unit 0 | slice 0 of unit 1 | ... | slice 0 of unit 7     16 bytes each, int8
//          128  slice 1 of unit 0 | slice 1 of unit 1 | ... | slice 1 of unit 7
//          256  slice 2 ...
//          384  slice 3 ...
//          512  unit 0: scales of blocks 0 and 1 (f32), sums of q of blocks 0 and 1 (i32) | unit 1 | ...
//          640  unit 0: sums of q of slices 0, 2, 1, 3 (i32) | unit 1 | ... | unit 7
//
// Lanes that work on neighboring units read neighboring 16 bytes, so 16-byte loads are free of bank
// conflicts. The sums serve the formats with a minimum or a zero point: sum(x * (w - c)) = sum(x * w) - c *
// sum(x).
#pragma once

#include "common.cuh"

constexpr u32 Q8_GROUP_ELEMENTS = 512, Q8_GROUP_BYTES = 512 + 128 + 128;
#include "layout/q8_activations.cuh"

// What a unit has besides its quants.
struct Q8Unit {
    float scale0, scale1;
    i32 sum0, sum1;
};

DEVICE u32 q8_groups(u32 k) { return (k + Q8_GROUP_ELEMENTS - 1) / Q8_GROUP_ELEMENTS; }

DEVICE float q8_inverse_scale(float abs_max) { return abs_max > 1e-35f ? __fdividef(127.0f, abs_max) : 0; }

// The Q8Unit of element `at`.
DEVICE u8* q8_unit(u8* q8, u32 at) { return q8 + at / 512 * Q8_GROUP_BYTES + 512 + at / 64 % 8 * 16; }

// The quant of element `at`.
DEVICE u8* q8_quant(u8* q8, u32 at) {
    return q8 + at / 512 * Q8_GROUP_BYTES + at / 16 % 4 * 128 + at / 64 % 8 * 16 + at % 16;
}

// Scale and sum of the block that starts with element `at`.
DEVICE void store_q8_block(u8* q8, u32 at, float abs_max, i32 sum) {
    u8* unit = q8_unit(q8, at);
    *(float*)(unit + at / 32 % 2 * 4) = abs_max * (1.0f / 127.0f);
    *(i32*)(unit + 8 + at / 32 % 2 * 4) = sum;
}

// Sum of the slice that starts with element `at`.
DEVICE void store_q8_slice_sum(u8* q8, u32 at, i32 sum) {
    *(i32*)(q8_unit(q8, at) + 128 + at / 16 % 2 * 8 + at / 32 % 2 * 4) = sum;
}

// Round to nearest by adding 1.5 * 2^23; the quant is the low byte.
DEVICE u32 quantize_q8(float v, float inverse_scale) {
    return __float_as_uint(fmaf(v, inverse_scale, 12582912.0f));
}
DEVICE u32 quantize_q8x4(float4 v, float inverse_scale) {
    const u32 low = __byte_perm(quantize_q8(v.x, inverse_scale), quantize_q8(v.y, inverse_scale), 0x0040);
    const u32 high = __byte_perm(quantize_q8(v.z, inverse_scale), quantize_q8(v.w, inverse_scale), 0x0040);
    return __byte_perm(low, high, 0x5410);
}

// The larger magnitude, NaN if either is.
DEVICE float abs_max(float a, float b) { return max_nan(fabsf(a), fabsf(b)); }
DEVICE float abs_max(float4 v) { return abs_max(abs_max(v.x, v.y), abs_max(v.z, v.w)); }

DEVICE i32 sum_of_bytes(u32 word) { return __dp4a((i32)word, 0x01010101, 0); }

// Quantizes elements `at` to `at + 3`: four elements per lane, eight lanes per block.
DEVICE void quantize_q8_row_x4(u8* q8, u32 at, float4 v) {
    float largest = abs_max(v);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        largest = abs_max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    const u32 quants = quantize_q8x4(v, q8_inverse_scale(largest));
    i32 slice_sum = sum_of_bytes(quants);
    slice_sum += __shfl_xor_sync(FULL_WARP, slice_sum, 1);
    slice_sum += __shfl_xor_sync(FULL_WARP, slice_sum, 2);
    const i32 block_sum = slice_sum + __shfl_xor_sync(FULL_WARP, slice_sum, 4);
    *(u32*)q8_quant(q8, at) = quants;
    if (at % 32 == 0) store_q8_block(q8, at, largest, block_sum);
    if (at % 16 == 0) store_q8_slice_sum(q8, at, slice_sum);
}

// Quantizes element `at`: one element per lane, one warp per block. Bit-identical to `quantize_q8_row_x4`.
DEVICE void quantize_q8_row_x1(u8* q8, u32 at, float v) {
    float largest = v;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = abs_max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    const u32 quant = quantize_q8(v, q8_inverse_scale(largest)) & 255;
    u32 quants = quant << at % 4 * 8;
    quants |= __shfl_xor_sync(FULL_WARP, quants, 1);
    quants |= __shfl_xor_sync(FULL_WARP, quants, 2);
    i32 slice_sum = sum_of_bytes(quants);
    slice_sum += __shfl_xor_sync(FULL_WARP, slice_sum, 4);
    slice_sum += __shfl_xor_sync(FULL_WARP, slice_sum, 8);
    const i32 block_sum = slice_sum + __shfl_xor_sync(FULL_WARP, slice_sum, 16);
    if (at % 4 == 0) *(u32*)q8_quant(q8, at) = quants;
    if (at % 32 == 0) store_q8_block(q8, at, largest, block_sum);
    if (at % 16 == 0) store_q8_slice_sum(q8, at, slice_sum);
}
