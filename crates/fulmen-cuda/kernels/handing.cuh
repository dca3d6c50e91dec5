// How a product of 8 or 16 rows hands its result on to the product behind it in 16 bits (`halves.cuh`), and how that one takes it.
//
// - A block that ends a tile, 16 rows of its weight, has a run of 16 columns of the image, but no row of it whole. So rows are not
//   scaled, and words beside the image say of each tile whether 16 bits hold it.
// - Where a norm is to come, the image is that of the floats times its gain. The norm's factor, one for a row, is left to the sums
//   of the product behind it, and the tiles give the sums of squares that it is made of.
// - Who reads the image copies it before it knows what the words say. If 16 bits do not hold a row, which is rare, it makes its part
//   of the image itself, from the floats.
#pragma once

#include "scaling.cuh"

constexpr u32 RUN = 16;  // columns of a tile
constexpr u32 LEAST = 0x3a800000, MOST = 0x47000000;  // the bits of 2^-10 and of 2^15

// Of a tile there is a word for 8 rows. Of each row it says whether something is LEAST or more; something smaller is not zero;
// something, or the sum of the run, is MOST or more, or not finite. Words of several tiles are put together by `or`.
constexpr u32 ENOUGH = 1, TINY = 1 << 8, LARGE = 1 << 16;
DEVICE u32 word_of(float value) {
  const u32 bits = magnitude(value);
  return (bits >= LEAST ? ENOUGH : bits ? TINY : 0) | (bits >= MOST ? LARGE : 0);
}
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

// Hands on the results of a tile for 8 rows, from `first` on. A lane has those of rows r, r + 2, r + 4 and r + 6, r = lane / 8 % 2, in
// column lane % 8 + lane / 16 · 8.
template <int ROWS, bool NORM>
DEVICE void hand_on(const Outgoing& to, u32 tile, u32 tiles, u32 first, const float (&value)[4], float gain) {
  const u32 lane = threadIdx.x & 31;
  const bool odd = lane & 1, second = lane & 2;
  float v[4];
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v[i] = NORM ? value[i] * gain : value[i];
    word |= word_of(v[i]) << (2 * i + lane / 8 % 2);
  }
  // Four lanes have four neighbours of four rows: two exchanges, and each has all four of one row.
  const u32 low = half_pair(v[0], v[1]), high = half_pair(v[2], v[3]);
  const u32 from_two = __shfl_xor_sync(FULL_WARP, second ? low : high, 2);
  const u32 a = second ? from_two : low, b = second ? high : from_two;
  const u32 mine = __byte_perm(a, b, odd ? 0x7632 : 0x5410);
  const u32 got = __shfl_xor_sync(FULL_WARP, __byte_perm(a, b, odd ? 0x5410 : 0x7632), 1);
  const uint2 four = odd ? make_uint2(got, mine) : make_uint2(mine, got);
  const u32 row = lane % 4 * 2 + lane / 8 % 2, at = lane / 4 % 2 * 4 + lane / 16 * 8;
  float sum = pair_sum(four.x) + pair_sum(four.y);
  sum += __shfl_xor_sync(FULL_WARP, sum, 4);
  sum += __shfl_xor_sync(FULL_WARP, sum, 16);
  if (magnitude(sum) >= MOST) word |= LARGE << row;
  word = __reduce_or_sync(FULL_WARP, word);
  if (lane == 0) to.words[tile * (ROWS / 8) + first / 8] = word;
#pragma unroll
  for (int order = 0; order < ORDERS; order++) store_halves(to.image[order], order, ROWS, first + row, tile * RUN + at, four, sum);
  if constexpr (NORM) {
    float kept[2], sent[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float l = value[i] * value[i], h = value[i + 2] * value[i + 2];
      kept[i] = second ? h : l, sent[i] = second ? l : h;
      kept[i] += __shfl_xor_sync(FULL_WARP, sent[i], 2);
    }
    float squares = odd ? kept[1] : kept[0];
    squares += __shfl_xor_sync(FULL_WARP, odd ? kept[0] : kept[1], 1);
    squares += __shfl_xor_sync(FULL_WARP, squares, 4);
    squares += __shfl_xor_sync(FULL_WARP, squares, 16);
    if (at == 0) to.squares[(first + row) * tiles + tile] = squares;
  }
}

// ---------------------------------------------------------------- from the one before

// What the warps of a block tell each other.
template <int WARPS>
struct __align__(16) Told {
  u32 words[WARPS * 2];
  float factors[16];  // of the rows
};

// A block's look at what was handed on, of chunks [chunk, past) of `chunks`. `ask` comes before the copies of the image, so that the
// answers are not behind them; where everything is, is known before.
template <int ROWS, int WARPS>
struct Look {
  static constexpr u32 N = ROWS / 8, HELD = 3;
  const Incoming& from;
  const u32 k, tiles, lane;
  u32 word, words, word_at, normed_at, gain_at;
  float4 squares[HELD], x, gain;  // sixteen lanes have the squares of a row

  DEVICE Look(const Incoming& from, u32 chunk, u32 past, u32 chunks) : from(from), k(chunks * HALVES_CHUNK), tiles(k / RUN), lane(threadIdx.x & 31) {
    constexpr u32 EACH = HALVES_CHUNK / RUN * N;
    word_at = chunk * EACH + threadIdx.x, words = past * EACH;
    normed_at = (blockIdx.x * blockDim.x + threadIdx.x) * 4, gain_at = normed_at % k;
  }
  DEVICE void ask() {
    word = word_at < words ? __ldcg(from.words + word_at) : 0;
    if (!from.squares) return;
    ask_squares(threadIdx.x / 16);
    if (from.normed && normed_at < ROWS * k) ask_normed();
  }
  DEVICE void ask_squares(u32 row) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const u32 at = lane % 16 * 4 + i * 64;
      squares[i] = row < ROWS && at < tiles ? __ldcg((const float4*)(from.squares + row * tiles + at)) : make_float4(0, 0, 0, 0);
    }
  }
  DEVICE void ask_normed() { x = __ldcg((const float4*)(from.floats + normed_at)), gain = __ldcg((const float4*)(from.gain + gain_at)); }

  // The sum of the squares of a row, in its sixteen lanes.
  DEVICE float sum(u32 row) const {
    auto all = [](float4 v) { return v.x + v.y + v.z + v.w; };
    float sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++) sum += all(squares[i]);
    for (u32 at = lane % 16 * 4 + HELD * 64; at < tiles; at += 64) sum += all(__ldcg((const float4*)(from.squares + row * tiles + at)));
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, step);
    return sum;
  }

  // All warps together: whether the image can be taken as it is. The factors of the rows are there then, and the norm's result is
  // written.
  DEVICE bool taken(Told<WARPS>& told, float epsilon) {
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (u32 at = word_at + blockDim.x; at < words; at += blockDim.x) word |= __ldcg(from.words + at);
#pragma unroll
    for (u32 n = 0; n < N; n++) {
      const u32 all = __reduce_or_sync(FULL_WARP, lane % N == n ? word : 0);
      if (lane == n) told.words[warp * N + n] = all;
    }
    if (from.squares) {
      for (u32 row = threadIdx.x / 16; row < ROWS; row += blockDim.x / 16) {
        if (row >= blockDim.x / 16) ask_squares(row);
        const float factor = rsqrtf(sum(row) / (float)k + epsilon);
        if (lane % 16 == 0) told.factors[row] = factor;
      }
    } else if (threadIdx.x < ROWS) {
      told.factors[threadIdx.x] = 1;
    }
    __syncthreads();
    word = lane < warps * N ? told.words[lane] : 0;
    bool fine = true;
#pragma unroll
    for (u32 n = 0; n < N; n++) fine &= good(__reduce_or_sync(FULL_WARP, lane % N == n ? word : 0));
    if (from.squares && from.normed) {
      while (normed_at < ROWS * k) {
        const float f = told.factors[normed_at / k];
        *(float4*)(from.normed + normed_at) = make_float4(x.x * f * gain.x, x.y * f * gain.y, x.z * f * gain.z, x.w * f * gain.w);
        normed_at += gridDim.x * blockDim.x * 4, gain_at = normed_at % k;
        if (normed_at < ROWS * k) ask_normed();
      }
    }
    return fine;
  }

  // Where it cannot: makes the block's part of the image, from column `first` on, in an order. Rows are scaled by their largest number there.
  // All copies have come.
  DEVICE void make(Told<WARPS>& told, u8* image, u32 order, u32 first, u32 columns) {
    const u32 warp = threadIdx.x / 32, warps = blockDim.x / 32;
    __syncthreads();
    for (u32 row = warp; row < ROWS; row += warps) {
      auto value = [&](u32 at) {
        const float4 v = __ldcg((const float4*)(from.floats + (u64)row * k + first + at));
        return from.squares ? times(v, __ldcg((const float4*)(from.gain + first + at))) : v;
      };
      u32 largest = 0;
      for (u32 at = lane * 4; at < columns; at += 128) largest = max(largest, largest_of(value(at)));
      const u32 up = scale_of(__reduce_max_sync(FULL_WARP, largest));
      const float scale = power_of_two(up);
      for (u32 at = lane * 4; at < columns; at += 128) {
        const Four four(times(value(at), make_float4(scale, scale, scale, scale)));
        store_halves(image, order, ROWS, row, at, four.halves, four.sum);
      }
      if (lane == 0) told.factors[row] *= power_of_two(254 - up);
    }
    __syncthreads();
  }
};
