// Activations in 8 bits, as the products of few rows read them: made once by `codes8.cu`, copied whole into shared memory.
//
// Rows are padded to ROWS (8 or 16) and columns to chunks of 256. A chunk has for each row 256 codes, GAP bytes behind them so that
// the same columns of eight rows lie in different banks; then, for each of its four units of 64 columns, the scales of all
// rows; then, for each unit, a word for each row with the sums of the codes of its two halves.
#pragma once

#include "common.cuh"

constexpr u32 CODES_CHUNK = 256, CODES_GAP = 16, CODES_STRIDE = CODES_CHUNK + CODES_GAP;

template <int ROWS>
struct Codes8 {
  static constexpr u32 SCALES = ROWS * CODES_STRIDE, SUMS = SCALES + 16 * ROWS, BYTES = SUMS + 16 * ROWS;
};
