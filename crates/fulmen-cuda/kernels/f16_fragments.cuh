// Activations in 16 bits, as the products of few rows read them: made once, copied whole into shared memory.
//
// `pack_f16_fragments.cu` multiplies each row with a power of two of its own, so that its largest number is at least 2^10 and below 2^11; the factors
// that undo it lie beside. What a product hands on (`forwarding.cuh`) is as it is, what attention does an eighth of it. Rows are padded to ROWS (8 or 16) and columns to chunks of 256.
//
// A chunk is 16 steps of 16 columns, each in the order of the second operand of the tensor cores: lane 4 g + t has four columns of
// row g and then, of 16 rows, the same columns of row g + 8. Two more steps have, in place of columns, the sums of the lane's runs:
// as they are in 16 bits, and what is missing then.
//
// A run is 16 columns. Lane t has runs 0 to 3, run r in steps 4 r to 4 r + 3; of four neighbours the order is 0 2 1 3. Where the runs
// lie depends on how a format packs its codes.
#pragma once

#include "common.cuh"

constexpr u32 HALVES_CHUNK = 256;

template <int ROWS>
struct Halves {
  static constexpr u32 LANE = ROWS, STEP = 32 * LANE, SUMS = 16 * STEP, REST = 17 * STEP, BYTES = 18 * STEP;
};

// Orders of columns: lane t has every other run of a half of the chunk, or a quarter of the chunk.
enum { ORDER_HALVES, ORDER_QUARTERS, ORDERS };

DEVICE u32 half_pair(float low, float high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }
DEVICE float pair_sum(u32 pair) { return f16_to_f32((u16)pair) + f16_to_f32((u16)(pair >> 16)); }

// Puts four neighbours, from column `at` on, of a row into an image of `rows` rows. `sum` is that of their run, by its first lane.
DEVICE void store_halves(u8* image, u32 order, u32 rows, u32 row, u32 at, uint2 four, float sum) {
  const u32 column = at % HALVES_CHUNK, step = column / 4 % 4, step_bytes = 32 * rows;
  const u32 t = order == ORDER_HALVES ? column / 128 * 2 + column / 16 % 2 : column / 64;
  const u32 run = order == ORDER_HALVES ? column / 32 % 4 : column / 16 % 4;
  u8* to = image + (u64)(at / HALVES_CHUNK) * (18 * step_bytes) + (row % 8 * 4 + t) * rows + row / 8 * 8;
  *(uint2*)(to + (run * 4 + step) * step_bytes) = four;
  if (step == 0) {
    const u16 rounded = f32_to_f16(fminf(fmaxf(sum, -65504.0f), 65504.0f));
    *(u16*)(to + 16 * step_bytes + run * 2) = rounded;
    *(u16*)(to + 17 * step_bytes + run * 2) = f32_to_f16(sum - f16_to_f32(rounded));
  }
}
