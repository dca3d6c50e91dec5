// Activations in 8 bits, as the products of one row read them: made by the product itself, or by the kernel that makes the
// activations, and then copied whole into shared memory.
//
// Blocks of 32 elements have a scale each. A group is 8 units of 64 elements: codes, the four 16-byte pieces of a unit 128 bytes apart;
// for each unit the scales of its halves and the sums of their codes; the sums of the pieces' codes, a unit's in the order 0 2 1 3.
#pragma once

#include "common.cuh"


constexpr u32 GROUP = 512 + 128 + 128;

// What a unit has besides its codes.
struct UnitX {
  float scale0, scale1;
  i32 sum0, sum1;
};

DEVICE u32 groups_of(u32 k) { return (k + 511) / 512; }

DEVICE float inverse_of(float largest) { return largest > 1e-35f ? __fdividef(127.0f, largest) : 0; }

// Where the numbers of the unit of element `at` are.
DEVICE u8* unit_of(u8* image, u32 at) { return image + at / 512 * GROUP + 512 + at / 64 % 8 * 16; }

// The scale and the sums of the block that begins with element `at`; `all` is the sum of its codes.
DEVICE void store_block(u8* image, u32 at, float largest, i32 all) {
  u8* unit = unit_of(image, at);
  *(float*)(unit + at / 32 % 2 * 4) = largest * (1.0f / 127.0f);
  *(i32*)(unit + 8 + at / 32 % 2 * 4) = all;
}
DEVICE void store_piece(u8* image, u32 at, i32 sum) {
  *(i32*)(unit_of(image, at) + 128 + at / 16 % 2 * 8 + at / 32 % 2 * 4) = sum;
}
DEVICE u8* codes_at(u8* image, u32 at) { return image + at / 512 * GROUP + at / 16 % 4 * 128 + at / 64 % 8 * 16 + at % 16; }

// A code is in the low byte: adding 1.5 · 2^23 rounds to an integer.
DEVICE u32 code_of(float v, float inverse) { return __float_as_uint(fmaf(v, inverse, 12582912.0f)); }
DEVICE u32 four_codes(float4 v, float inverse) {
  const u32 low = __byte_perm(code_of(v.x, inverse), code_of(v.y, inverse), 0x0040), high = __byte_perm(code_of(v.z, inverse), code_of(v.w, inverse), 0x0040);
  return __byte_perm(low, high, 0x5410);
}

// The larger magnitude, NaN if one is.
DEVICE float larger(float a, float b) { return max_nan(fabsf(a), fabsf(b)); }
DEVICE float largest_of(float4 v) { return larger(larger(v.x, v.y), larger(v.z, v.w)); }

// Four elements a lane, by 8 lanes a block.
DEVICE void quantize4(u8* image, u32 at, float4 v) {
  float largest = largest_of(v);
#pragma unroll
  for (int step = 1; step < 8; step *= 2) largest = larger(largest, __shfl_xor_sync(FULL_WARP, largest, step));
  const u32 codes = four_codes(v, inverse_of(largest));
  i32 sum = __dp4a((i32)codes, 0x01010101, 0);
  sum += __shfl_xor_sync(FULL_WARP, sum, 1);
  sum += __shfl_xor_sync(FULL_WARP, sum, 2);
  const i32 all = sum + __shfl_xor_sync(FULL_WARP, sum, 4);
  *(u32*)codes_at(image, at) = codes;
  if (at % 32 == 0) store_block(image, at, largest, all);
  if (at % 16 == 0) store_piece(image, at, sum);
}

// One element a lane, by a warp a block: `at` is the element of the lane. The same bits as from `quantize4`.
DEVICE void quantize1(u8* image, u32 at, float v) {
  float largest = v;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = larger(largest, __shfl_xor_sync(FULL_WARP, largest, step));
  const u32 code = code_of(v, inverse_of(largest)) & 255;
  u32 word = code << at % 4 * 8;
  word |= __shfl_xor_sync(FULL_WARP, word, 1);
  word |= __shfl_xor_sync(FULL_WARP, word, 2);
  i32 sum = __dp4a((i32)word, 0x01010101, 0);
  sum += __shfl_xor_sync(FULL_WARP, sum, 4);
  sum += __shfl_xor_sync(FULL_WARP, sum, 8);
  const i32 all = sum + __shfl_xor_sync(FULL_WARP, sum, 16);
  if (at % 4 == 0) *(u32*)codes_at(image, at) = word;
  if (at % 32 == 0) store_block(image, at, largest, all);
  if (at % 16 == 0) store_piece(image, at, sum);
}
