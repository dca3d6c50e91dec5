// How `gemm_small_m.cu` turns the codes of 16 rows of W into 16-bit floats, the first operand of the tensor cores.
//
// A lane decodes rows g and g + 8 of a chunk of 256 columns: of each the 64 columns of its four runs (see `f16_fragments.cuh`).
// - Codes of the K formats are taken as halves as they are: the bits of the smallest halves count in 2^-24, so one multiplication with the
//   scale of their block is exact up to 2048, and rounds those of Q6_K above that to 11 bits. 2^24 (UNIT) and the scale of the whole
//   chunk are left to the sums.
// - The formats of 32 elements have no scale of a chunk: their codes become halves by their place in the digits of 1024, and their values
//   must fit 16 bits, as those of models do by far (65504).
//
// Each format has
// - BYTES for a chunk, PIECES of 16 bytes around them in a stage, and the ORDER of the columns of x, as `gemm_small_m/config.rs` has it;
// - ALIGNED: whether chunks are whole pieces, so that they come by boxes;
// - `open` for the scales of a chunk, of which `blocks` of 32 columns are there, in lane t of four; LOOPS times `load` for codes, of which step i is for
//   step AT(i) + loop · ADVANCE of x: `values` gives it;
// - OFFSETS: `offsets` gives what the sums of the runs are multiplied with; MINIMUM: as sums of their own;
// - UNIT: what the sums are to be multiplied with;
// - `factor` and `minimum`, those of the chunk, for row g or g + 8;
// - LIGHT: whether there are registers for two weights at a time.
#pragma once

#include "f16_fragments.cuh"
#include "ptx/cvt.cuh"

// ---------------------------------------------------------------- pairs of halves

// The bits of a mask, in the digits of 1024, whose last is worth 1: one instruction, which the compiler would make two of.
DEVICE u32 in_1024(u32 word, u32 mask) {
  return lop3_and_or(word, mask, 0x64006400);
}
template <int VALUE>
DEVICE u32 both();  // a constant twice
#define BOTH(VALUE, BITS) template <> DEVICE u32 both<VALUE>() { return BITS; }
BOTH(-1024, 0xe400e400)
BOTH(-1032, 0xe408e408)
BOTH(-1040, 0xe410e410)
BOTH(-1152, 0xe480e480)
BOTH(-80, 0xd500d500)
BOTH(-72, 0xd480d480)
BOTH(-64, 0xd400d400)
#undef BOTH
constexpr u32 SIXTEENTH = 0x2c002c00, LESS_32 = 0x80208020;  // -32 times 2^-24

// Byte I of a word in the digits of 1024, twice; bytes I and J.
template <int I>
DEVICE u32 byte_twice(u32 word) { return __byte_perm(word, 0x64, 0x4040 | I << 8 | I); }
template <int I, int J>
DEVICE u32 bytes_of(u32 word) { return __byte_perm(word, 0x64, 0x4040 | J << 8 | I); }
// Bytes I and J as halves: that many times 2^-24.
template <int I, int J>
DEVICE u32 tiny_of(u32 word) { return __byte_perm(word, 0, 0x4040 | J << 8 | I); }
DEVICE u32 half_twice(u32 half) { return __byte_perm(half, 0, 0x1010); }

// ---------------------------------------------------------------- shared memory

DEVICE uint4 lds16(const u8* from) { return *(const uint4*)from; }
DEVICE u32 lds2(const u8* from) { return *(const u16*)from; }

// A row at an even address: the words around it, and how far it is into the first.
struct EvenRow {
  const u8* words;
  u32 shift;

  DEVICE EvenRow() {}
  DEVICE EvenRow(const u8* row) : words(row - ((u32)(u64)row & 2)), shift(((u32)(u64)row & 2) * 8) {}
  // N words, `at` a multiple of 4.
  template <int N>
  DEVICE void load(u32 (&to)[N], u32 at) const {
    const u32* from = (const u32*)(words + at);
    u32 word = from[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
      const u32 next = from[i + 1];
      to[i] = __funnelshift_r(word, next, shift);
      word = next;
    }
  }
};

constexpr u32 NIBBLE = 0x0f0f0f0f;

// ---------------------------------------------------------------- formats

// Q4_K and Q5_K. Lane t has the sub-blocks 2 t and 2 t + 1, which share their bytes.
template <bool FIFTH>
struct FormatK {
  static constexpr u32 BYTES = FIFTH ? 176 : 144, PIECES = BYTES / 16, LOOPS = 2, STEPS = 8, ADVANCE = 4;
  static constexpr int ORDER = ORDER_QUARTERS;
  static constexpr bool ALIGNED = true, OFFSETS = true, MINIMUM = true, LIGHT = !FIFTH;
  static constexpr float UNIT = 16777216;
  static constexpr u32 AT(u32 i) { return i % 2 * 8 + i / 2; }

  const u8* rows[2];
  u32 scale[2][2], small[2], head[2];  // `small`: two scales, two minima
  u32 words[2][4], fifth[2][4], t;

  DEVICE void open(const u8* first, const u8* second, u32, u32 lane) {
    t = lane;
    // 6 bits as bytes: those of the first half lie whole in two words, whose upper bits belong to the second half. Its lower bits are in a
    // third word.
    const bool second_half = t >= 2;
    const u32 whole = t & 1 ? 0x7632 : 0x5410, shift = second_half ? 2 : 0;
    const u32 mask = second_half ? 0x30303030 : 0x3f3f3f3f, rest = second_half ? 0x0f0f0f0f : 0;
    rows[0] = first, rows[1] = second;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint4 header = lds16(rows[r]);
      const u32 low = __byte_perm(header.w, header.w >> 4, whole);
      small[r] = ((__byte_perm(header.y, header.z, whole) >> shift) & mask) | (low & rest);
      head[r] = header.x;
      scale[r][0] = add_f16x2(byte_twice<0>(small[r]), both<-1024>());
      scale[r][1] = fma_f16x2(byte_twice<1>(small[r]), SIXTEENTH, both<-64>());  // for codes times 16
      rows[r] += (FIFTH ? 48 : 16) + t * 32;
    }
  }
  DEVICE void load(u32 loop) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      *(uint4*)words[r] = lds16(rows[r] + loop * 16);
      if (FIFTH) {
        *(uint4*)fifth[r] = lds16(rows[r] - 32 - t * 32 + loop * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) fifth[r][i] >>= 2 * t;
      }
    }
  }
  DEVICE void values(u32 i, u32 (&a)[4]) const {
    const bool high = i % 2;
    const u32 mask = high ? 0x00f000f0 : 0x000f000f, top = high ? 0x01000100 : 0x00100010;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u32 word = words[r][i / 2];
      u32 even = word & mask, odd = word >> 8 & mask;
      if (FIFTH) {
        const u32 bits = fifth[r][i / 2];
        even |= (high ? bits << 7 : bits << 4) & top, odd |= (high ? bits >> 1 : bits >> 4) & top;
      }
      a[r] = mul_f16x2(even, scale[r][high]), a[2 + r] = mul_f16x2(odd, scale[r][high]);
    }
  }
  DEVICE void offsets(u32 (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; r++) a[r] = tiny_of<2, 2>(small[r]), a[2 + r] = tiny_of<3, 3>(small[r]);
  }
  DEVICE float factor(int r) const { return f16_to_f32((u16)head[r]); }
  DEVICE float minimum(int r) const { return -f16_to_f32((u16)(head[r] >> 16)); }
};

// Q6_K. Lane t has 16 columns of each of the four runs of 32 of a half, which share their bytes.
struct Format6 {
  static constexpr u32 BYTES = 210, PIECES = 14, LOOPS = 2, STEPS = 8, ADVANCE = 2;
  static constexpr int ORDER = ORDER_HALVES;
  static constexpr bool ALIGNED = false, OFFSETS = true, MINIMUM = false, LIGHT = false;
  static constexpr float UNIT = 16777216;
  static constexpr u32 AT(u32 i) { return i % 4 * 4 + i / 4; }

  EvenRow rows[2];
  u32 scale[2][4], centre[2][2], head[2];
  u32 low[2][2], high[2][2], top[2][2], h;

  DEVICE void open(const u8* first, const u8* second, u32, u32 t) {
    h = t / 2;
    rows[0] = EvenRow(first), rows[1] = EvenRow(second);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 pairs[2];
      rows[r].load(pairs, 192 + h * 8);
      head[r] = lds2((r == 0 ? first : second) + 208);
      // Without a sign, 128 more than they are.
      const u32 scales = __byte_perm(pairs[0], pairs[1], t & 1 ? 0x7531 : 0x6420) ^ 0x80808080;
      scale[r][0] = add_f16x2(byte_twice<0>(scales), both<-1152>());
      scale[r][1] = add_f16x2(byte_twice<1>(scales), both<-1152>());
      scale[r][2] = add_f16x2(byte_twice<2>(scales), both<-1152>());
      scale[r][3] = add_f16x2(byte_twice<3>(scales), both<-1152>());
      // Codes are 32 too large.
      centre[r][0] = mul_f16x2(add_f16x2(bytes_of<0, 1>(scales), both<-1152>()), LESS_32);
      centre[r][1] = mul_f16x2(add_f16x2(bytes_of<2, 3>(scales), both<-1152>()), LESS_32);
      rows[r].words += h * 64 + t % 2 * 16;
    }
  }
  DEVICE void load(u32 loop) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const EvenRow row = rows[r];
      row.load(low[r], loop * 8);
      row.load(high[r], 32 + loop * 8);
      row.load(top[r], 128 - h * 32 + loop * 8);
    }
  }
  DEVICE void values(u32 i, u32 (&a)[4]) const {
    const u32 run = i % 4, k = i / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u32 word = run % 2 ? high[r][k] : low[r][k], bits = top[r][k];
      const u32 two = (run == 0 ? bits << 4 : run == 1 ? bits << 2 : run == 2 ? bits : bits >> 2) & 0x30303030;
      const u32 codes = ((run < 2 ? word : word >> 4) & NIBBLE) | two;
      a[r] = mul_f16x2(tiny_of<0, 2>(codes), scale[r][run]), a[2 + r] = mul_f16x2(tiny_of<1, 3>(codes), scale[r][run]);
    }
  }
  DEVICE void offsets(u32 (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; r++) a[r] = centre[r][0], a[2 + r] = centre[r][1];
  }
  DEVICE float factor(int r) const { return f16_to_f32((u16)head[r]); }
  DEVICE float minimum(int) const { return 0; }
};

// The formats of 32 elements with four or five bits. Lane t has the blocks 2 t and 2 t + 1.
template <bool FIFTH, bool LEAST>
struct Format32 {
  static constexpr u32 BLOCK = 2 + (LEAST ? 2 : 0) + (FIFTH ? 4 : 0) + 16, BYTES = 8 * BLOCK, PIECES = (BYTES + 29) / 16;
  static constexpr u32 LOOPS = 2, STEPS = 8, ADVANCE = 8;
  static constexpr int ORDER = ORDER_QUARTERS;
  static constexpr bool ALIGNED = false, OFFSETS = false, MINIMUM = false, LIGHT = true;
  static constexpr u32 AT(u32 i) { return i % 2 * 4 + i / 2; }
  static constexpr float UNIT = 1;
  static constexpr int CENTRE = LEAST ? 0 : FIFTH ? 16 : 8;

  const u8* rows[2];
  u32 blocks, t;
  u32 words[2][4], fifth[2], scale[2], least[2];

  DEVICE void open(const u8* first, const u8* second, u32 all, u32 lane) { rows[0] = first, rows[1] = second, blocks = all, t = lane; }
  DEVICE void load(u32 loop) {
    const u32 block = t * 2 + loop;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u8* at = rows[r] + block * BLOCK;
      const bool there = block < blocks;
      scale[r] = half_twice(there ? lds2(at) : 0);
      if (LEAST) least[r] = half_twice(there ? lds2(at + 2) : 0);
      at += LEAST ? 4 : 2;
      if (FIFTH) {
        fifth[r] = lds2(at) | lds2(at + 2) << 16;
        at += 4;
      }
      EvenRow(at).load(words[r], 0);
    }
  }
  DEVICE void values(u32 i, u32 (&a)[4]) const {
    const bool high = i % 2;
    const u32 mask = high ? 0x00f000f0 : 0x000f000f, top = high ? 0x01000100 : 0x00100010;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u32 word = words[r][i / 2];
      u32 half[2] = {in_1024(word, mask), in_1024(word >> 8, mask)};
      if (FIFTH) {
        // Four bits: the first and third, and one place higher the others.
        const u32 bits = ((fifth[r] >> (high * 16 + i / 2 * 4)) & 15) * (high ? 1u << 8 | 1u << 22 : 1u << 4 | 1u << 18);
        half[0] |= bits & top, half[1] |= (bits >> 1) & top;
      }
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const u32 code = high ? fma_f16x2(half[j], SIXTEENTH, both<-64 - CENTRE>()) : add_f16x2(half[j], both<-1024 - CENTRE>());
        a[2 * j + r] = LEAST ? fma_f16x2(code, scale[r], least[r]) : mul_f16x2(code, scale[r]);
      }
    }
  }
  DEVICE void offsets(u32 (&)[4]) const {}
  DEVICE float factor(int) const { return 1; }
  DEVICE float minimum(int) const { return 0; }
};

// Q8_0. Lane t has every other half of four blocks.
struct Format8 {
  static constexpr u32 BLOCK = 34, BYTES = 8 * BLOCK, PIECES = (BYTES + 29) / 16, LOOPS = 4, STEPS = 4, ADVANCE = 4;
  static constexpr int ORDER = ORDER_HALVES;
  static constexpr bool ALIGNED = false, OFFSETS = false, MINIMUM = false, LIGHT = true;
  static constexpr float UNIT = 1;
  static constexpr u32 AT(u32 i) { return i; }

  const u8* rows[2];
  u32 blocks, t;
  u32 words[2][4], scale[2];

  DEVICE void open(const u8* first, const u8* second, u32 all, u32 lane) { rows[0] = first, rows[1] = second, blocks = all, t = lane; }
  DEVICE void load(u32 loop) {
    const u32 block = t / 2 * 4 + loop;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u8* at = rows[r] + block * BLOCK;
      scale[r] = half_twice(block < blocks ? lds2(at) : 0);
      EvenRow(at + 2).load(words[r], t % 2 * 16);
    }
  }
  DEVICE void values(u32 i, u32 (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const u32 codes = words[r][i] ^ 0x80808080;
      a[r] = mul_f16x2(add_f16x2(bytes_of<0, 2>(codes), both<-1152>()), scale[r]);
      a[2 + r] = mul_f16x2(add_f16x2(bytes_of<1, 3>(codes), both<-1152>()), scale[r]);
    }
  }
  DEVICE void offsets(u32 (&)[4]) const {}
  DEVICE float factor(int) const { return 1; }
  DEVICE float minimum(int) const { return 0; }
};

using q4_k = FormatK<false>;
using q5_k = FormatK<true>;
using q6_k = Format6;
using q4_0 = Format32<false, false>;
using q4_1 = Format32<false, true>;
using q5_0 = Format32<true, false>;
using q5_1 = Format32<true, true>;
using q8_0 = Format8;
