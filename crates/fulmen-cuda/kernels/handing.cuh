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

// The thread, read anew: what is made of it does not take up registers before.
DEVICE u32 thread_anew() {
  u32 index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// What the warps of a block tell each other.
template <int WARPS>
struct __align__(16) Told {
  u32 words[WARPS * 2];
  float factors[16];  // of the rows
};

// Where 16 bits do not hold what was handed on: makes the block's part of the image, from column `first` of k on, in an order. Rows are
// scaled by their largest number there. All copies have come.
template <int ROWS>
__device__ __noinline__ void make_image(const float* floats, const float* gain, float* factors, u8* image, u32 order, u32 k, u32 first, u32 columns) {
  const u32 lane = threadIdx.x & 31;
  __syncthreads();
#pragma unroll 1
  for (u32 row = threadIdx.x / 32; row < ROWS; row += blockDim.x / 32) {
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
  __syncthreads();
}

// Of a norm's result the rest, where a grid is too small for each warp to write 128 columns of one row.
template <int ROWS>
__device__ __noinline__ void write_normed(const float* floats, const float* gain, const float* factors, float* normed, u32 k, u32 warp, u32 warps) {
#pragma unroll 1
  for (;; warp += warps) {
    const u32 row = warp % ROWS, column = (warp / ROWS * 32 + (threadIdx.x & 31)) * 4;
    if (column >= k) return;
    const float f = factors[row];
    const float4 x = times(__ldcg((const float4*)(floats + row * k + column)), make_float4(f, f, f, f));
    *(float4*)(normed + row * k + column) = times(x, __ldcg((const float4*)(gain + column)));
  }
}

// A block's look at what was handed on, of chunks [chunk, past) of `chunks`. `ask` comes before the copies of the image, so that the
// answers are not behind them; where everything is, is known before.
template <int ROWS, int WARPS>
struct Look {
  static constexpr u32 N = ROWS / 8, HELD = 3;
  const Incoming& from;
  const u32 k, tiles, thread, lane;
  u32 word = 0, word_at, words;
  // Sixteen lanes have the squares of a row, four at a time.
  float4 squares[HELD] = {};
  u32 squares_at;
  int squares_left;
  // A warp writes 128 columns of one row of the norm's result.
  float4 x = {}, gain = {};
  u32 warp_of_all, row, column;

  DEVICE Look(const Incoming& from, u32 chunk, u32 past, u32 chunks) : from(from), k(chunks * HALVES_CHUNK), tiles(k / RUN), thread(thread_anew()), lane(thread & 31) {
    constexpr u32 EACH = HALVES_CHUNK / RUN * N;
    word_at = chunk * EACH + thread, words = past * EACH;
    squares_at = thread / 16 * tiles + lane % 16 * 4, squares_left = thread < ROWS * 16 ? (int)(tiles - lane % 16 * 4) : 0;
    warp_of_all = (blockIdx.x * blockDim.x + thread) / 32, row = warp_of_all % ROWS, column = (warp_of_all / ROWS * 32 + lane) * 4;
  }
  DEVICE void ask() {
    if (word_at < words) word = __ldcg(from.words + word_at);
    if (!from.squares) return;
#pragma unroll
    for (int i = 0; i < HELD; i++)
      if (squares_left > i * 64) squares[i] = ask4(from.squares, squares_at + i * 64);
    if (from.normed && column < k) x = ask4(from.floats, row * k + column), gain = ask4(from.gain, column);
  }
  static DEVICE float4 ask4(const float* from, u32 at) { return __ldcg((const float4*)(from + at)); }

  // All warps together: whether the image can be taken as it is. The factors of the rows are there then, and the norm's result is
  // written.
  DEVICE bool taken(Told<WARPS>& told, float epsilon) {
    const u32 warp = thread / 32, warps = blockDim.x / 32;
#pragma unroll 1
    for (u32 at = word_at + blockDim.x; at < words; at += blockDim.x) word |= __ldcg(from.words + at);
#pragma unroll
    for (u32 n = 0; n < N; n++) {
      const u32 all = __reduce_or_sync(FULL_WARP, lane % N == n ? word : 0);
      if (lane == n) told.words[warp * N + n] = all;
    }
    if (from.squares) {
      auto all = [](float4 v) { return v.x + v.y + v.z + v.w; };
      float sum = all(squares[0]) + all(squares[1]) + all(squares[2]);
      u32 at = lane % 16 * 4 + HELD * 64;
#pragma unroll 1
      for (u32 row = thread / 16; row < ROWS; row += blockDim.x / 16) {
#pragma unroll 1
        for (; at < tiles; at += 64) sum += all(ask4(from.squares, row * tiles + at));
        sum = four_lanes(sum);
        sum += __shfl_xor_sync(FULL_WARP, sum, 4);
        sum += __shfl_xor_sync(FULL_WARP, sum, 8);
        if (lane % 16 == 0) told.factors[row] = rsqrtf(__fdividef(sum, (float)k) + epsilon);
        sum = 0, at = lane % 16 * 4;
      }
    } else if (thread < ROWS) {
      told.factors[thread] = 1;
    }
    __syncthreads();
    word = lane < warps * N ? told.words[lane] : 0;
    bool fine = true;
#pragma unroll
    for (u32 n = 0; n < N; n++) fine &= good(__reduce_or_sync(FULL_WARP, lane % N == n ? word : 0));
    if (from.normed && column < k) {
      const float f = told.factors[row];
      *(float4*)(from.normed + (row * k + column)) = times(times(x, make_float4(f, f, f, f)), gain);
      const u32 all = gridDim.x * warps;
      if (all * 128 < ROWS * k) write_normed<ROWS>(from.floats, from.gain, told.factors, from.normed, k, warp_of_all + all, all);
    }
    return fine;
  }
};
