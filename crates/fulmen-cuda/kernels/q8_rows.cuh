// q8 rows: 2 to 8 rows of x quantized to int8 and packed as MMA B-fragments, the activation operand of the
// int8 GEMM (gemm_q8.cu). Quants, scales and sums are those of q8 activations (q8_activations.cuh), one row's
// for each row; only the order differs.
//
// Memory layout. ROWS is 2, 4 or 8: the rows, padded. Columns are padded to halves of 128. A unit is 64
// columns (two blocks of 32, four slices of 16) in 96 * ROWS bytes, lane = 4 g + t of an MMA:
//
//     byte         0  row 0: t = 0 .. 3, 16 bytes each: columns 4 t to 4 t + 3 of slices 0, 1, 2, 3 | ...
//          64 * ROWS  block 0: rows 0 and 1: scales (f32), sums of quants (f32) | rows 2 and 3 | ...
//          72 * ROWS  block 1 ...
//          80 * ROWS  block 0: rows 0 and 1: offsets of slice 0, of slice 1 (f32) | rows 2 and 3 | ...
//          88 * ROWS  block 1 ...
//
// So a lane loads row g of B for both blocks with one instruction, and what belongs to its accumulators,
// which are rows 2 t and 2 t + 1 of x, with one more per block. The offset of a slice is minus
// ACCUMULATOR_BIAS_F32 minus 32 times the sum of its quants, where 32 is the zero point of Q6_K.
#pragma once

#include "q8_activations.cuh"

// An accumulator that starts with these bits is, read as f32, 1.5 * 2^23 plus the dot product, if that is
// below 2^22 in magnitude.
constexpr i32 ACCUMULATOR_BIAS = 0x4b400000;
constexpr float ACCUMULATOR_BIAS_F32 = 12582912.0f;

constexpr u32 Q8_ROWS_UNIT_BYTES = 96;  // per row
constexpr u32 Q8_ROWS_HALF = 128;       // columns that rows are padded to a multiple of
#include "layout/q8_rows.cuh"

// Rows, padded to 2, 4 or 8.
DEVICE u32 q8_rows_padded(u32 m) { return m <= 2 ? 2 : m <= 4 ? 4 : 8; }

DEVICE u32 q8_rows_bytes(u32 rows, u32 k) {
    return (k + Q8_ROWS_HALF - 1) / Q8_ROWS_HALF * (2 * Q8_ROWS_UNIT_BYTES * rows);
}

// Where row `row` of the unit of column `at` lies.
struct Q8RowsPlace {
    u8* unit;
    u32 rows, row, at;

    DEVICE Q8RowsPlace(u8* q8, u32 rows, u32 row, u32 at)
        : unit(q8 + at / 64 * (Q8_ROWS_UNIT_BYTES * rows)), rows(rows), row(row), at(at) {}

    // The quants of columns `at` to `at + 3`.
    DEVICE void store_quants(u32 quants) const {
        *(u32*)(unit + row * 64 + at / 4 % 4 * 16 + at / 16 % 4 * 4) = quants;
    }
    // Scale and sum of the block that starts with column `at`.
    DEVICE void store_block(float abs_max, i32 sum) const {
        float* to = (float*)(unit + (64 + at / 32 % 2 * 8) * rows + row / 2 * 16 + row % 2 * 4);
        to[0] = abs_max * (1.0f / 127.0f);
        to[2] = (float)sum;
    }
    // The offset of the slice that starts with column `at`.
    DEVICE void store_slice(i32 sum) const {
        u8* to = unit + (80 + at / 32 % 2 * 8) * rows + row / 2 * 16 + at / 16 % 2 * 8 + row % 2 * 4;
        *(float*)to = -ACCUMULATOR_BIAS_F32 - (float)(32 * sum);
    }
};

// Quantizes columns `at` to `at + 3` of a row: four per lane, eight lanes per block.
DEVICE void quantize_q8_rows_x4(u8* q8, u32 rows, u32 row, u32 at, float4 v) {
    float largest = abs_max(v);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        largest = abs_max(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    const u32 quants = quantize_q8x4(v, q8_inverse_scale(largest));
    i32 slice_sum = sum_of_bytes(quants);
    slice_sum += __shfl_xor_sync(FULL_WARP, slice_sum, 1);
    slice_sum += __shfl_xor_sync(FULL_WARP, slice_sum, 2);
    const i32 block_sum = slice_sum + __shfl_xor_sync(FULL_WARP, slice_sum, 4);
    const Q8RowsPlace place(q8, rows, row, at);
    place.store_quants(quants);
    if (at % 32 == 0) place.store_block(largest, block_sum);
    if (at % 16 == 0) place.store_slice(slice_sum);
}

// Quantizes column `at` of a row: one column per lane, one warp per block. The same bits.
DEVICE void quantize_q8_rows_x1(u8* q8, u32 rows, u32 row, u32 at, float v) {
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
    const Q8RowsPlace place(q8, rows, row, at);
    if (at % 4 == 0) place.store_quants(quants);
    if (at % 32 == 0) place.store_block(largest, block_sum);
    if (at % 16 == 0) place.store_slice(slice_sum);
}
