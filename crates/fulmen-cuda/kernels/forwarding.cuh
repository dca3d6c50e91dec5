// How a product of 8 or 16 rows hands its result on to the product behind it in 16 bits (`f16_fragments.cuh`), and how that one takes it.
//
// - A block that ends a tile, 16 rows of its weight, has a run of 16 columns of the image, but no row of it whole. So rows are not
//   scaled, and words beside the image say of each tile whether 16 bits hold it.
// - Where a norm is to come, the image is that of the floats times its gain. The norm's factor, one for a row, is left to the sums
//   of the product behind it, and the tiles give the sums of squares that it is made of.
// - Who reads the image copies it before it knows what the words say. If 16 bits do not hold a row, which is rare, it makes its part
//   of the image itself, from the floats.
#pragma once

#include "row_scaling.cuh"

constexpr u32 RUN = 16;  // columns of a tile
constexpr u32 LEAST = 0x3a800000, MOST = 0x47000000;  // the bits of 2^-10 and of 2^15

// Of a tile there is a word for 8 rows. Of each row it says whether four neighbours have something that is LEAST or more; have only
// something smaller that is not zero; have something, or the run a sum, that is MOST or more, or not finite. Words of several tiles are
// put together by `or`.
constexpr u32 ENOUGH = 1, TINY = 1 << 8, LARGE = 1 << 16;
DEVICE bool good(u32 word) { return (word >> 16) == 0 && (word >> 8 & ~word & 0xff) == 0; }

struct Outgoing {
  u8* image[ORDERS];  // null: nothing is handed on
  u32* words;         // by tiles, then rows
  float* squares;     // by rows, then tiles
  const float* gain;  // of the norm, or null
};

struct Incoming {
  const u32* words;      // null: rows are scaled, and their factors are known
  const float* squares;  // null: no norm
  const float* floats;   // what the image is of,
  const float* gain;     // and the gain that it was multiplied with
  float* normed;         // where the norm's result goes, or null
};

// ---------------------------------------------------------------- to the next product

// Hands on the results of a tile for 8 rows: those of `row`, which four lanes have, from `column` of the tile on.
template <int ROWS, bool NORM>
DEVICE void hand_on(const Outgoing& to, u32 tile, u32 tiles, u32 row, u32 column, float4 v, float4 gain) {
  const Four four(NORM ? times(v, gain) : v);
  const u32 largest = four.largest;
  u32 word = largest >= LEAST ? ENOUGH : largest ? TINY : 0;
  if (max(largest, magnitude(four.sum)) >= MOST) word |= LARGE;
  word = __reduce_or_sync(FULL_WARP, word << row % 8);
  if (row % 8 == 0 && column == 0) to.words[tile * (ROWS / 8) + row / 8] = word;
#pragma unroll
  for (int order = 0; order < ORDERS; order++) store_halves(to.image[order], order, ROWS, row, tile * RUN + column, four.halves, four.sum);
  if constexpr (NORM) {
    const float squares = four_lanes(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
    if (column == 0) to.squares[row * tiles + tile] = squares;
  }
}

// ---------------------------------------------------------------- from the one before

// What the warp that brings x tells the others, and the barriers that say when it is there.
struct __align__(16) Told {
  float factors[16];  // of the rows
  u64 known;          // factors
  u64 looked;
  u64 pushed;  // sums of other blocks
  u32 fine;  // whether the image can be taken as it is
  volatile float near[32];  // of no use but that it was read
};

// Where 16 bits do not hold what was handed on: makes the block's part of the image, from column `first` of k on, in an order. Rows are
// scaled by their largest number there. All copies have come. By all warps but the one that brought x, the last.
template <int ROWS>
__device__ __noinline__ void make_image(const float* floats, const float* gain, float* factors, u8* image, u32 order, u32 k, u32 first, u32 columns) {
  const u32 lane = threadIdx.x & 31, threads = blockDim.x - 32;
  bar_sync<1>(threads);
#pragma unroll 1
  for (u32 row = threadIdx.x / 32; row < ROWS; row += threads / 32) {
    auto value = [&](u32 at) {
      const float4 v = __ldcg((const float4*)(floats + (u64)row * k + first + at));
      return gain ? times(v, __ldcg((const float4*)(gain + first + at))) : v;
    };
    u32 largest = 0;
#pragma unroll 1
    for (u32 at = lane * 4; at < columns; at += 128) largest = max(largest, largest_of(value(at)));
    const u32 up = scale_of(__reduce_max_sync(FULL_WARP, largest));
    const float scale = power_of_two(up);
#pragma unroll 1
    for (u32 at = lane * 4; at < columns; at += 128) {
      const Four four(times(value(at), make_float4(scale, scale, scale, scale)));
      store_halves(image, order, ROWS, row, at, four.halves, four.sum);
    }
    if (lane == 0) factors[row] *= power_of_two(254 - up);
  }
  bar_sync<1>(threads);
}

// A warp's look at what was handed on, of chunks [chunk, past). It begins before the copies of the image, so that the answers are not
// behind them.
template <int ROWS>
struct Look {
  static constexpr u32 N = ROWS / 8, LANES = 32 / ROWS, HELD = 10;  // lanes have the squares of a row
  const Incoming& from;
  const u32 lane;
  uint4 word[3] = {};
  u32 word_at, words;

  DEVICE Look(const Incoming& from, u32 chunk, u32 past, u32 lane) : from(from), lane(lane) {
    constexpr u32 EACH = HALVES_CHUNK / RUN * N / 4;
    word_at = chunk * EACH + lane, words = past * EACH;
#pragma unroll
    for (int i = 0; i < 3; i++)
      if (word_at + i * 32 < words) word[i] = __ldcg((const uint4*)from.words + word_at + i * 32);
  }
  // Whether the image can be taken as it is.
  DEVICE bool fine() const {
    auto either = [](uint4 a, uint4 b) { return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w); };
    uint4 all = either(either(word[0], word[1]), word[2]);
#pragma unroll 1
    for (u32 at = word_at + 96; at < words; at += 32) all = either(all, __ldcg((const uint4*)from.words + at));
    const u32 even = __reduce_or_sync(FULL_WARP, all.x | all.z), odd = __reduce_or_sync(FULL_WARP, all.y | all.w);
    return N == 1 ? good(even | odd) : good(even) && good(odd);
  }
  // Of the lane's row the norm's factor, from the squares of all its tiles.
  DEVICE float factor(u32 k, float epsilon) const {
    const u32 tiles = k / RUN;
    const float* squares = from.squares + lane / LANES * tiles;
    float sum = 0;
#pragma unroll 1
    for (u32 at = lane % LANES * 4; at < tiles; at += HELD * LANES * 4) {
      float4 v[HELD] = {};
#pragma unroll
      for (u32 i = 0; i < HELD; i++)
        if (at + i * LANES * 4 < tiles) v[i] = __ldcg((const float4*)(squares + at + i * LANES * 4));
#pragma unroll
      for (u32 i = 0; i < HELD; i++) sum += v[i].x + v[i].y + v[i].z + v[i].w;
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    if (LANES == 4) sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    return rsqrtf(__fdividef(sum, (float)k) + epsilon);
  }
  // The block's part of the norm's result: by 128 columns of one row, of which lanes have the factors.
  DEVICE void write_normed(u32 k, float factor) const {
#pragma unroll 1
    for (u32 part = blockIdx.x; part < ROWS * k / 128; part += gridDim.x) {
      const u32 row = part % ROWS, column = part / ROWS * 128 + lane * 4;
      const float4 x = __ldcg((const float4*)(from.floats + row * k + column)), gain = __ldcg((const float4*)(from.gain + column));
      const float f = __shfl_sync(FULL_WARP, factor, row * LANES);
      *(float4*)(from.normed + row * k + column) = times(times(x, make_float4(f, f, f, f)), gain);
    }
  }
};
