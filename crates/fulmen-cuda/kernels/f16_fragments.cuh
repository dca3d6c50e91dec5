// f16 activations packed as MMA B-fragments: the activation operand of the small-M GEMM (gemm_small_m.cu).
//
// x [m, k] is padded to ROWS = 8, 16 or 32 rows and to K chunks of 256 columns. A chunk is 16 k-steps of 16
// columns for mma.m16n8k16 (B is 16 x 8: column n of B is row n of x) and two k-steps with column sums, each
// stored in the order in which the lanes of a warp read it. So x is copied into shared memory as it is, and
// the B-fragments of 8 or 16 rows are one load per lane:
//
//     chunk (18 k-steps of 32 * ROWS bytes)
//     +--------+--------+-----+---------+-------------+-----------------+
//     | step 0 | step 1 | ... | step 15 | 16: sums    | 17: remainders  |
//     +--------+--------+-----+---------+-------------+-----------------+
//     k-step: 32 lanes of LANE_BYTES = 8 or 16, lane = 4 g + t (g = 0..7, t = 0..3); with ROWS = 32 once
//     more for rows 16 to 31
//     +-------------------------------------+-------------------------------------+
//     | row g: 4 f16, columns c c+2 c+1 c+3 | row g + 8 (not for ROWS = 8)        |
//     +-------------------------------------+-------------------------------------+
//       b0, b1 of n-tile 0                    b0, b1 of n-tile 1
//
// Padding rows may hold anything: they reach only accumulators that are not stored.
//
// c is the first column of slice s = step / 4 of thread t (below), plus 4 (step % 4). The order is 0 2 1 3
// because the even bytes of a word of weights are unpacked together to two f16, and so are the odd bytes.
//
// The order of columns within K is free as long as A and B agree, so it follows the weights: thread t of a
// quad owns four K slices of 16 consecutive columns, slice s in k-steps 4 s to 4 s + 3, whose columns lie in
// the words of the quantized block that this thread dequantizes. Which slices depends on the weight format; x
// is stored in each order that the launch needs:
//
//     K_INTERLEAVED (Q6_K, Q8_0)  t owns every other slice of half a chunk: 128 (t / 2) + 32 s + 16 (t % 2)
//     K_CONTIGUOUS  (the others)  t owns a quarter of the chunk:            64 t + 16 s
//
// K-steps 16 and 17 have in place of the four columns the sums of the thread's four slices, as f16 and as
// what rounding to f16 lost, also f16. Multiplied with the minima or zero points of the weights they give
// sum(x) * minimum at f32-like precision without touching every element.
#pragma once

#include "common.cuh"

constexpr u32 K_CHUNK = 256, K_SLICE = 16;

// Byte offsets in a chunk.
template <int ROWS>
struct F16Fragments {
    static constexpr u32 LANE_BYTES = ROWS < 16 ? ROWS : 16, STEP_BYTES = 32 * ROWS;
    static constexpr u32 SLICE_SUMS = 16 * STEP_BYTES, SLICE_SUM_REMAINDERS = 17 * STEP_BYTES;
    static constexpr u32 CHUNK_BYTES = 18 * STEP_BYTES;
};

// Rows of x, padded to what there are kernels for.
DEVICE u32 padded_rows(u32 m) { return m <= 8 ? 8 : m <= 16 ? 16 : 32; }

enum KOrder { K_INTERLEAVED, K_CONTIGUOUS, K_ORDERS };
#include "layout/f16_fragments.cuh"

// Two f32 as an f16x2 word, `low` in the lower half.
DEVICE u32 f16_pair(float low, float high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }
DEVICE float f16_pair_sum(u32 pair) { return f16_to_f32((u16)pair) + f16_to_f32((u16)(pair >> 16)); }

// The k-step, and the thread of the quad, that columns `column` to `column + 3` of a chunk belong to.
struct FragmentPlace {
    u32 t, slice, k_step;

    DEVICE FragmentPlace(u32 order, u32 column)
        : t(order == K_INTERLEAVED ? column / 128 * 2 + column / 16 % 2 : column / 64),
          slice(order == K_INTERLEAVED ? column / 32 % 4 : column / 16 % 4),
          k_step(slice * 4 + column / 4 % 4) {}
};

// Stores columns `at` to `at + 3` of a row, in the order 0 2 1 3. The lane with the first columns of a slice
// also stores `slice_sum`.
DEVICE void store_fragment_x4(u8* fragments, u32 order, u32 rows, u32 row, u32 at, uint2 values,
                              float slice_sum) {
    const u32 step_bytes = 32 * rows;
    const FragmentPlace place(order, at % K_CHUNK);
    u8* to = fragments + (u64)(at / K_CHUNK) * (18 * step_bytes) + row / 16 * 512 +
             (row % 8 * 4 + place.t) * min(rows, 16u) + row / 8 % 2 * 8;
    *(uint2*)(to + place.k_step * step_bytes) = values;
    if (place.k_step % 4 == 0) {
        const u16 rounded = f32_to_f16(fminf(fmaxf(slice_sum, -65504.0f), 65504.0f));
        *(u16*)(to + 16 * step_bytes + place.slice * 2) = rounded;
        *(u16*)(to + 17 * step_bytes + place.slice * 2) = f32_to_f16(slice_sum - f16_to_f32(rounded));
    }
}
