// targets: 90
// Products of one row with block-quantized weights: y[n] = x[k] · W[n, k]ᵀ, bound by the bytes of W.
//
// - x is quantized to 8 bits by every block of the grid for itself, after an optional RMS norm, so that norm, quantization and
//   product are one step of the chain; or it comes as codes from the kernel that made it, as gate and up make theirs here.
// - A warp works on 32 / LANES neighbouring rows at a time, LANES lanes on one row; a lane decodes units of 64 elements with
//   dp4a. The rows come as one bulk copy into a ring of the warp's own in shared memory, so no warp waits for another, and
//   memory is read in long pieces. Weights lie there as they lie in a GGUF file.
// - A kernel starts before the one before it is done: it fills its rings, which depends on nothing, and waits then.
// - The code is short, loops are rolled, and there is an entry for each format, because a step runs hundreds of these kernels in
//   turn and each finds the instruction cache full of another.
#include "common.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/tma.cuh"
#include "q8_activations.cuh"

constexpr int WARPS = 12;
constexpr int THREADS = WARPS * 32;
constexpr u32 MAX_DEPTH = 2;
constexpr int MAX_PARTS = 3;
constexpr u32 SEGMENT = 64;  // units of 64 elements of a stage, where a row takes several
constexpr int MAX_RESULTS = 256;  // rows of a block that become codes

struct Part {
  const u8* weight;
  float* out;
  const float* bias;      // or null
  const float* residual;  // or null
  u32 rows;
  u32 row_bytes;
  u32 each;  // rows of a block of the grid
  u32 unused;
};

struct Args {
  const float* x;
  const u8* codes;     // x as codes, or null
  u8* codes_out;       // where the codes of the result go, or null: of a pair, and blocks have multiples of 32 rows
  const float* gamma;  // null: no norm
  float* normed;       // where the norm's result goes, or null
  float epsilon;
  float inverse_k;
  u32 k;
  u32 parts;        // with a pair 2: gate and up
  u32 first_parts;  // of the first format,
  u32 first_warps;  // and the warps that work on them
  u32 stage_bytes;
  u32 segments;  // stages that a row takes; 1 where a warp works on several rows
  u32 depth;     // stages of a ring
  u32 unused;
  Part part[MAX_PARTS];
};

// ---------------------------------------------------------------- activations

DEVICE float4 times(float4 v, float4 by) { return make_float4(v.x * by.x, v.y * by.y, v.z * by.z, v.w * by.w); }
DEVICE float squares(float4 v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }
DEVICE float4 load4(const float* from) { return __ldcg((const float4*)from); }

// x as codes in shared memory. CODED: it comes as codes.
template <bool CODED>
struct Input {
  u8* codes;
  u64* there;
  float* scratch;

  // The gain is constant, and the steps before have driven it out of the cache: it is called before anything is waited for.
  DEVICE void begin(const Args& args) const {
    if (threadIdx.x > 0) return;
    if (CODED) {
      mbarrier_init(there, 1);
      fence_proxy_async();
    } else if (args.gamma && blockIdx.x % 8 == 0) {
      cp_async_bulk_prefetch_l2_covering(args.gamma, args.k * 4);
    }
  }

  // Four elements of x, and of the gain.
  struct Four {
    float4 x, gain;
    DEVICE Four(const Args& args, u32 at) : x(make_float4(0, 0, 0, 0)), gain(make_float4(1, 1, 1, 1)) {
      if (at >= args.k) return;
      x = load4(args.x + at);
      if (args.gamma) gain = load4(args.gamma + at);
    }
  };

  // x, times the gain if there is one, quantized; the next four elements of a thread are on their way meanwhile. What else the norm does
  // is a factor for the whole row: results are multiplied with it, so that no thread waits for the sum of all squares here.
  DEVICE void quantize(const Args& args) const {
    const u32 padded = groups_of(args.k) * 512;
    float sum = 0;
    Four four(args, threadIdx.x * 4);
#pragma unroll 1
    for (u32 at = threadIdx.x * 4; at < padded; at += THREADS * 4) {
      const Four next(args, at + THREADS * 4);
      sum += squares(four.x);
      quantize4(codes, at, times(four.x, four.gain));
      four = next;
    }
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = sum;
  }

  // Waits for the kernel ahead. Codes are on their way then.
  DEVICE void wait(const Args& args) const {
    if (CODED) __syncthreads();  // all know of the barrier
    pdl_wait();
    if (!CODED || threadIdx.x > 0) return;
    const u32 bytes = groups_of(args.k) * GROUP;
    mbarrier_arrive_expect_tx(there, bytes);
    cp_async_bulk_covering(codes, args.codes, bytes, there);
  }

  // The codes are there for all threads after it. Gives the factor of the norm.
  DEVICE float finish(const Args& args) const {
    if (CODED) {
      mbarrier_wait_parity(there, 0);
      return 1;
    }
    quantize(args);
    __syncthreads();
    if (!args.gamma) return 1;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += scratch[i];
    return rsqrtf(sum * args.inverse_k + args.epsilon);
  }
};

// ---------------------------------------------------------------- formats

DEVICE uint4 lds16(const u8* from) { return *(const uint4*)from; }
DEVICE u32 lds2(const u8* from) { return *(const u16*)from; }
DEVICE float2 halves(u32 word) { return make_float2(f16_to_f32((u16)word), f16_to_f32((u16)(word >> 16))); }
// 16 bytes at an even address.
DEVICE uint4 lds16_even(const u8* from) {
  u32 odd = (u32)(u64)from & 2, shift = odd * 8;
  const u32* words = (const u32*)(from - odd);
  u32 a = words[0], b = words[1], c = words[2], d = words[3], e = words[4];
  return make_uint4(__funnelshift_r(a, b, shift), __funnelshift_r(b, c, shift), __funnelshift_r(c, d, shift), __funnelshift_r(d, e, shift));
}

// Unsigned codes of W, signed codes of x.
DEVICE i32 dot16(uint4 w, uint4 x, i32 sum) {
  sum = dp4a_u32_s32(w.x, x.x, sum);
  sum = dp4a_u32_s32(w.y, x.y, sum);
  sum = dp4a_u32_s32(w.z, x.z, sum);
  sum = dp4a_u32_s32(w.w, x.w, sum);
  return sum;
}
DEVICE i32 dot16_signed(uint4 w, uint4 x, i32 sum) {
  sum = __dp4a((i32)w.x, (i32)x.x, sum);
  sum = __dp4a((i32)w.y, (i32)x.y, sum);
  sum = __dp4a((i32)w.z, (i32)x.z, sum);
  return __dp4a((i32)w.w, (i32)x.w, sum);
}
DEVICE uint4 masked(uint4 v, u32 shift, u32 mask) {
  return make_uint4((v.x >> shift) & mask, (v.y >> shift) & mask, (v.z >> shift) & mask, (v.w >> shift) & mask);
}
DEVICE uint4 shifted(uint4 v, u32 shift, u32 mask) {
  return make_uint4((v.x << shift) & mask, (v.y << shift) & mask, (v.z << shift) & mask, (v.w << shift) & mask);
}
DEVICE uint4 operator|(uint4 a, uint4 b) { return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w); }
constexpr u32 NIBBLE = 0x0f0f0f0f;

// Each format has CHUNK bytes for 256 elements; `decode` takes a unit of a row in shared memory; `dot` is its product with the unit of x, given the group of x that it
// is in.

template <bool FIFTH>
struct FormatK {
  static constexpr u32 BLOCK = FIFTH ? 176 : 144, CHUNK = BLOCK;

  // The second sub-block's codes are left where they are, times 16, if they have four bits.
  uint4 a, b, c, e;
  i32 scale0, scale1, minimum0, minimum1;
  float2 factor;

  DEVICE void decode(const u8* row, u32 unit, bool whole) {
    u32 j = unit & 3;
    const u8 *block = row + (unit >> 2) * BLOCK, *codes = block + (FIFTH ? 48 : 16) + j * 32;
    uint4 header = lds16(block), low = lds16(codes), high = lds16(codes + 16);
    // The 6-bit scales and minima of sub-blocks 2j and 2j + 1.
    u32 shift = 16 * (j & 1);
    bool upper = j >= 2;
    u32 mask = upper ? 0x0f0f : 0x3f3f, top = upper ? 0x3030 : 0;
    u32 scales = (((upper ? header.w : header.y) >> shift) & mask) | ((header.y >> (shift + 2)) & top);
    u32 minima = (((upper ? header.w >> 4 : header.z) >> shift) & mask) | ((header.z >> (shift + 2)) & top);
    factor = halves(header.x);
    scale0 = scales & 255, scale1 = scales >> 8, minimum0 = minima & 255, minimum1 = minima >> 8;
    a = masked(low, 0, NIBBLE), b = masked(high, 0, NIBBLE);
    if (!FIFTH) {
      c = masked(low, 0, ~NIBBLE), e = masked(high, 0, ~NIBBLE);
      scale0 *= 16;
      factor.x *= 0.0625f;
    } else {
      c = masked(low, 4, NIBBLE), e = masked(high, 4, NIBBLE);
      uint4 fifth0 = lds16(block + 16), fifth1 = lds16(block + 32);
      a = a | shifted(masked(fifth0, 2 * j, 0x01010101), 4, ~0u);
      b = b | shifted(masked(fifth1, 2 * j, 0x01010101), 4, ~0u);
      c = c | shifted(masked(fifth0, 2 * j + 1, 0x01010101), 4, ~0u);
      e = e | shifted(masked(fifth1, 2 * j + 1, 0x01010101), 4, ~0u);
    }
  }
  DEVICE float dot(u32 inner, const u8* x) const {
    const uint4* codes = (const uint4*)(x + (inner & 7) * 16);
    UnitX u = *(const UnitX*)(x + 512 + (inner & 7) * 16);
    i32 dot0 = dot16(b, codes[8], dot16(a, codes[0], 0)), dot1 = dot16(e, codes[24], dot16(c, codes[16], 0));
    float first = factor.x * (float)(dot0 * scale0) - factor.y * (float)(u.sum0 * minimum0);
    float second = factor.x * (float)(dot1 * scale1) - factor.y * (float)(u.sum1 * minimum1);
    return u.scale0 * first + u.scale1 * second;
  }
};

// A unit is half of the elements of half a block: 16 each of four runs of 32. Odd lanes take the runs in the order 2 3 0 1, so that
// neighbours read other banks of x.
struct Format6 {
  static constexpr u32 CHUNK = 210;
  uint4 w[4];
  i32 scale[4];
  float d;

  static DEVICE uint4 turned(uint4 v, u32 by) {
    const uint4 t = make_uint4(__funnelshift_l(v.x, v.x, by), __funnelshift_l(v.y, v.y, by), __funnelshift_l(v.z, v.z, by), __funnelshift_l(v.w, v.w, by));
    return masked(t, 0, 0x30303030);
  }

  DEVICE void decode(const u8* row, u32 unit, bool whole) {
    u32 half = (unit >> 1) & 1, q = unit & 1;
    const u8* block = row + (unit >> 2) * 210;
    uint4 low = lds16_even(block + half * 64 + q * 16), high = lds16_even(block + half * 64 + q * 16 + 32);
    uint4 top = lds16_even(block + 128 + half * 32 + q * 16);
#pragma unroll
    for (int i = 0; i < 4; i++) scale[i] = (i8)(lds2(block + 192 + half * 8 + ((i * 2) ^ (q * 4))) >> (8 * q));
    d = f16_to_f32((u16)lds2(block + 208));
    // Two bits of `top` belong over each nibble.
    const u32 first = q * 4, second = 4 - first, turn = q ? 30 : 2;
    w[0] = masked(low, first, NIBBLE) | turned(top, second), w[1] = masked(high, first, NIBBLE) | turned(top, turn);
    w[2] = masked(low, second, NIBBLE) | turned(top, first), w[3] = masked(high, second, NIBBLE) | turned(top, 32 - turn);
  }
  // Pieces q and q + 2 of two neighbouring units.
  DEVICE float dot(u32 inner, const u8* x) const {
    const u32 q = inner & 1, unit = inner & 7, other = unit ^ 1;
    const uint4 *codes = (const uint4*)(x + q * 128 + unit * 16), *more = (const uint4*)(x + q * 128 + other * 16);
    const float2 s = *(const float2*)(x + 512 + unit * 16), t = *(const float2*)(x + 512 + other * 16);
    const int2 sums = *(const int2*)(x + 640 + unit * 16 + q * 8), others = *(const int2*)(x + 640 + other * 16 + q * 8);
    const i32 a = scale[0] * dot16(w[0], codes[0], -32 * sums.x), b = scale[1] * dot16(w[1], codes[16], -32 * sums.y);
    const i32 c = scale[2] * dot16(w[2], more[0], -32 * others.x), e = scale[3] * dot16(w[3], more[16], -32 * others.y);
    return d * (s.x * (float)a + s.y * (float)b + t.x * (float)c + t.y * (float)e);
  }
};

// The formats of 32 elements: a unit is two blocks, the second of which may be missing at the end of a row.
enum { CODES_4, CODES_4_MINIMUM, CODES_5, CODES_5_MINIMUM, CODES_8 };
template <int KIND>
struct Format32 {
  static constexpr bool EIGHT = KIND == CODES_8, FIFTH = KIND == CODES_5 || KIND == CODES_5_MINIMUM;
  static constexpr bool MINIMUM = KIND == CODES_4_MINIMUM || KIND == CODES_5_MINIMUM;
  static constexpr u32 BLOCK = 2 + (MINIMUM ? 2 : 0) + (FIFTH ? 4 : 0) + (EIGHT ? 32 : 16), CHUNK = 8 * BLOCK;
  uint4 codes[4];
  float scale[2], minimum[2];

  // Each of 16 bits to bit 4 of a byte.
  static DEVICE uint4 spread(u32 bits) {
    auto four = [](u32 v) { return (((v & 15) * 0x00204081u) & 0x01010101u) << 4; };
    return make_uint4(four(bits), four(bits >> 4), four(bits >> 8), four(bits >> 12));
  }

  DEVICE void decode(const u8* row, u32 unit, bool whole) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u8* at = row + (unit * 2 + (i == 1 && whole)) * BLOCK;
      scale[i] = f16_to_f32((u16)lds2(at));
      constexpr float OFFSET = KIND == CODES_4 ? 8 : KIND == CODES_5 ? 16 : 0;
      minimum[i] = MINIMUM ? -f16_to_f32((u16)lds2(at + 2)) : OFFSET * scale[i];
      at += MINIMUM ? 4 : 2;
      u32 fifth = 0;
      if (FIFTH) {
        fifth = lds2(at) | lds2(at + 2) << 16;
        at += 4;
      }
      uint4 first = lds16_even(at);
      if (EIGHT) {
        codes[2 * i] = first, codes[2 * i + 1] = lds16_even(at + 16);
      } else {
        codes[2 * i] = masked(first, 0, NIBBLE), codes[2 * i + 1] = masked(first, 4, NIBBLE);
        if (FIFTH) codes[2 * i] = codes[2 * i] | spread(fifth & 0xffff), codes[2 * i + 1] = codes[2 * i + 1] | spread(fifth >> 16);
      }
    }
    // The first block again, for nothing.
    if (!whole) scale[1] = minimum[1] = 0;
  }
  DEVICE float dot(u32 inner, const u8* x) const {
    const uint4* from = (const uint4*)(x + (inner & 7) * 16);
    UnitX u = *(const UnitX*)(x + 512 + (inner & 7) * 16);
    if (EIGHT) {
      i32 dot0 = dot16_signed(codes[1], from[8], dot16_signed(codes[0], from[0], 0)), dot1 = dot16_signed(codes[3], from[24], dot16_signed(codes[2], from[16], 0));
      return u.scale0 * (scale[0] * (float)dot0) + u.scale1 * (scale[1] * (float)dot1);
    }
    i32 dot0 = dot16(codes[1], from[8], dot16(codes[0], from[0], 0)), dot1 = dot16(codes[3], from[24], dot16(codes[2], from[16], 0));
    return u.scale0 * (scale[0] * (float)dot0 - minimum[0] * (float)u.sum0) + u.scale1 * (scale[1] * (float)dot1 - minimum[1] * (float)u.sum1);
  }
};

// ---------------------------------------------------------------- the product

// The first row of a block of the grid.
DEVICE u32 share(const Part& part, u32 block) { return min(part.rows, block * part.each); }

// The rows of one warp: it takes every `warps`th task of the parts [part, end), a task being ROWS neighbouring rows (of both weights
// where they come in pairs). MANY: there may be more parts than one or one pair.
template <u32 ROWS, bool MANY>
struct Walk {
  u32 task, part, row, rows;

  // Goes to the task; false if there are no more.
  DEVICE bool seek(const Args& args, u32 end) {
#pragma unroll 1
    for (;;) {
      const Part& p = args.part[MANY ? part : 0];
      const u32 first = share(p, blockIdx.x), all = share(p, blockIdx.x + 1) - first, tasks = (all + ROWS - 1) / ROWS;
      if (task < tasks) {
        row = first + task * ROWS;
        rows = min(ROWS, all - task * ROWS);
        return true;
      }
      if (!MANY || ++part >= end) return false;
      task -= tasks;
    }
  }

  DEVICE const u8* weight(const Args& args, u32 which) const { return args.part[which].weight + (u64)row * args.part[which].row_bytes; }
};

// What a warp does. CHUNK is that of the format where a row takes several stages.
template <int LANES, bool PAIR, bool MANY, u32 CHUNK>
struct Rows {
  static constexpr u32 GROUPS = 32 / LANES, ROWS = PAIR ? GROUPS / 2 : GROUPS;

  const Args& args;
  const u32 first, end, warp, warps;  // parts, the warp among those that work on them
  u8* ring;
  u64* barriers;
  Walk<ROWS, MANY> ahead;
  u32 ahead_segment;
  bool more;

  DEVICE Rows(const Args& args, u32 first, u32 end, u32 warp, u32 warps, u8* ring, u64* barriers)
      : args(args), first(first), end(end), warp(warp), warps(warps), ring(ring), barriers(barriers), ahead_segment(0) {
    ahead.task = warp;
    ahead.part = first;
    more = ahead.seek(args, end);
  }

  DEVICE u32 segments() const { return LANES == 32 ? args.segments : 1; }
  DEVICE u32 half_stage() const { return args.stage_bytes / 2; }  // where the second weight of a pair lies

  DEVICE void fetch(u32 stage) {
    if (more && (threadIdx.x & 31) == 0) {
      const u32 which = MANY ? ahead.part : 0;
      const u8* from = ahead.weight(args, which);
      u32 bytes = ahead.rows * args.part[which].row_bytes;
      u8* to = ring + stage * args.stage_bytes;
      if (PAIR) {
        const u8* other = ahead.weight(args, 1);
        mbarrier_arrive_expect_tx(&barriers[stage], covering_bytes(from, bytes) + covering_bytes(other, bytes));
        cp_async_bulk_covering(to, from, bytes, &barriers[stage]);
        cp_async_bulk_covering(to + half_stage(), other, bytes, &barriers[stage]);
      } else {
        if (LANES == 32 && segments() > 1) {
          const u32 all = SEGMENT / 4 * CHUNK, begin = ahead_segment * all;
          from += begin;
          bytes = min(bytes - begin, all);
        }
        mbarrier_arrive_expect_tx(&barriers[stage], covering_bytes(from, bytes));
        cp_async_bulk_covering(to, from, bytes, &barriers[stage]);
      }
    }
    if (more && (LANES < 32 || ++ahead_segment == segments())) {
      ahead_segment = 0;
      ahead.task += warps;
      more = ahead.seek(args, end);
    }
  }
  DEVICE void fill() {
#pragma unroll 1
    for (u32 i = 0; i < args.depth; i++) fetch(i);
  }

  // What is added to the result of a row.
  static DEVICE float added(const Part& part, u32 row) { return (part.bias ? part.bias[row] : 0) + (part.residual ? part.residual[row] : 0); }
  // And to those of the warp's first 32 / ROWS tasks: a lane has that of one row.
  DEVICE float added() const {
    if (MANY || PAIR) return 0;
    const u32 lane = threadIdx.x & 31, begin = share(args.part[0], blockIdx.x);
    const u32 row = begin + (warp + lane / ROWS * warps) * ROWS + lane % ROWS;
    return row < share(args.part[0], blockIdx.x + 1) ? added(args.part[0], row) : 0;
  }

  // Products times a factor. `extra` is what `added` gives for the first tasks; `results` are of the block's rows, where they become codes.
  template <class F>
  DEVICE void multiply(const u8* x, float factor, float extra, float* results) {
    const u32 lane = threadIdx.x & 31, inner = lane & (LANES - 1), group = lane / LANES;
    const u32 stage_bytes = args.stage_bytes, blocks = (args.k + 31) / 32, units = (blocks + 1) / 2;
    u32 stage = 0, parity = 0;
    Walk<ROWS, MANY> walk;
    walk.task = warp;
    walk.part = first;
    u32 of = 0;  // the lane that has what is added to the task's first row
#pragma unroll 1
    while (walk.seek(args, end)) {
      const u32 which = PAIR ? group & 1 : MANY ? walk.part : 0, index = PAIR ? group >> 1 : group;
      const Part& part = args.part[which];
      const u32 to = walk.row + index;
      const bool mine = inner == 0 && index < walk.rows && !(PAIR && group & 1);
      // What is added is on its way while the product is made.
      const float more = MANY && mine ? added(part, to) : 0;
      const u8* row = ring + (PAIR ? (group & 1) * half_stage() : 0) + ((u32)(u64)walk.weight(args, which) & 15) +
                      min(index, walk.rows - 1) * part.row_bytes;
      float value = 0;
      const u8* at = x + inner / 8 * GROUP;
      u32 unit = inner;
#pragma unroll 1
      for (u32 segment = 0; segment < segments(); segment++) {
        const u32 past = segments() > 1 ? min(units, (segment + 1) * SEGMENT) : units;
        mbarrier_wait_parity(&barriers[stage], parity);
        // Where the row would begin if all of it were here.
        const u8* here = row + stage * stage_bytes - segment * (SEGMENT / 4 * F::CHUNK);
#pragma unroll 1
        for (; unit < past; unit += LANES, at += LANES / 8 * GROUP) {
          F weights;
          weights.decode(here, unit, unit * 2 + 1 < blocks);
          value += weights.dot(inner, at);
        }
        __syncwarp();
        fetch(stage);
        if (++stage == args.depth) {
          stage = 0;
          parity ^= 1;
        }
      }
#pragma unroll
      for (int step = LANES / 2; step > 0; step /= 2) value += __shfl_xor_sync(FULL_WARP, value, step);
      value *= factor;
      if (PAIR) {
        const float other = __shfl_xor_sync(FULL_WARP, value, LANES);
        value = __fdividef(value, 1.0f + __expf(-value)) * other;
      } else {
        value += MANY ? more : of < 32 ? __shfl_sync(FULL_WARP, extra, of + index) : mine ? added(part, to) : 0;
        of += ROWS;
      }
      if (mine) {
        part.out[to] = value;
        if (PAIR && args.codes_out) results[to - share(part, blockIdx.x)] = value;
      }
      walk.task += warps;
    }
  }
};

// SharedAddress memory: codes of x, then the rings.
template <class F, class G, bool MIXED, int LANES, bool PAIR, bool MANY, bool CODED>
DEVICE void product(const Args& args) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ __align__(16) float scratch[WARPS], results[PAIR ? MAX_RESULTS : 1];
  __shared__ u64 barriers[WARPS][MAX_DEPTH], x_there;
  const u32 warp = threadIdx.x / 32;
  u8* ring = memory + groups_of(args.k) * GROUP + warp * (args.depth * args.stage_bytes);
  if ((threadIdx.x & 31) < MAX_DEPTH) {
    mbarrier_init(&barriers[warp][threadIdx.x & 31], 1);
    fence_proxy_async();
  }
  __syncwarp();
  pdl_launch_dependents();
  const Input<CODED> input{memory, &x_there, scratch};
  input.begin(args);
  const bool second = MIXED && warp >= args.first_warps;
  const u32 before = second ? args.first_warps : 0, past = MIXED && !second ? args.first_warps : WARPS;
  Rows<LANES, PAIR, MANY, F::CHUNK> rows(args, second ? args.first_parts : 0, MIXED && !second ? args.first_parts : args.parts, warp - before,
                                   past - before, ring, barriers[warp]);
  rows.fill();
  input.wait(args);
  const float extra = rows.added();
  const float factor = input.finish(args);
  if (!second)
    rows.template multiply<F>(memory, factor, extra, results);
  else
    rows.template multiply<G>(memory, factor, extra, results);
  if (!CODED && args.normed && blockIdx.x == gridDim.x - 1) {
#pragma unroll 1
    for (u32 at = threadIdx.x * 4; at < args.k; at += THREADS * 4) {
      const float4 v = times(load4(args.x + at), load4(args.gamma + at));
      *(float4*)(args.normed + at) = times(v, make_float4(factor, factor, factor, factor));
    }
  }
  if (PAIR && args.codes_out) {
    __syncthreads();
    const Part& part = args.part[0];
    const u32 begin = share(part, blockIdx.x), count = share(part, blockIdx.x + 1) - begin;
#pragma unroll 1
    for (u32 at = threadIdx.x; at < count; at += THREADS) quantize1(args.codes_out, begin + at, results[at]);
  }
}

#define ENTRY(NAME, F, G, MIXED, LANES, PAIR, MANY, CODED)                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const __grid_constant__ Args args) {                      \
    product<F, G, MIXED, LANES, PAIR, MANY, CODED>(args);                                                                 \
  }
// For one weight, for several, and for one and x as codes.
#define LANES(NAME, LANES)                                                        \
  ENTRY(gemv_##NAME##_l##LANES, NAME, NAME, false, LANES, false, false, false)     \
  ENTRY(gemv_many_##NAME##_l##LANES, NAME, NAME, false, LANES, false, true, false) \
  ENTRY(gemv_coded_##NAME##_l##LANES, NAME, NAME, false, LANES, false, false, true)
#define FORMAT(NAME)                                                  \
  LANES(NAME, 8)                                                      \
  LANES(NAME, 16)                                                     \
  LANES(NAME, 32)                                                     \
  ENTRY(gemv_pair_##NAME##_l8, NAME, NAME, false, 8, true, false, false) \
  ENTRY(gemv_pair_##NAME##_l16, NAME, NAME, false, 16, true, false, false)

using q4_k = FormatK<false>;
using q5_k = FormatK<true>;
using q6_k = Format6;
using q4_0 = Format32<CODES_4>;
using q4_1 = Format32<CODES_4_MINIMUM>;
using q5_0 = Format32<CODES_5>;
using q5_1 = Format32<CODES_5_MINIMUM>;
using q8_0 = Format32<CODES_8>;

FORMAT(q4_k)
FORMAT(q5_k)
FORMAT(q6_k)
FORMAT(q4_0)
FORMAT(q4_1)
FORMAT(q5_0)
FORMAT(q5_1)
FORMAT(q8_0)
ENTRY(gemv_many_q4_k_q6_k_l8, q4_k, q6_k, true, 8, false, true, false)
ENTRY(gemv_many_q4_k_q6_k_l16, q4_k, q6_k, true, 16, false, true, false)
