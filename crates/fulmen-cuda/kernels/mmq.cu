// targets: 90
// Products of 2 to 16 rows with block-quantised weights: y[m, n] = x[m, k] · W[n, k]ᵀ, every byte of W read once.
//
// - x comes in 8 bits from `codes8.cu` and is copied into shared memory whole; integer tensor cores multiply: the rows of x are the
//   rows of A, eight rows of W the columns of B.
// - A tile is eight rows of W (of both weights where they come in pairs). Tiles are dealt to the clusters of the grid; the blocks
//   of a cluster share the columns, so that few rows of W still fill the GPU and no block needs all of x.
// - A producer warp copies rows of W, as they lie in a GGUF file, into a ring; the other warps take the chunks of 256 columns in
//   turn. What they have for a tile goes to shared memory, and one of them adds it up, always in the same order. Clusters add
//   what their blocks have, in the order of the blocks.
// - The producer starts before the kernel ahead is done: weights depend on nothing.
#include "bulk.cuh"
#include "codes8.cuh"

typedef int i32;

constexpr u32 WARPS = 15;  // and the producer
constexpr u32 THREADS = (WARPS + 1) * 32;
constexpr u32 MAX_PARTS = 3;
constexpr u32 MAX_DEPTH = 8;
constexpr u32 SLOTS = 3;  // tiles whose sums are kept
constexpr u32 TILE = 8;

struct Part {
  const u8* weight;
  float* out;
  const float* bias;      // or null
  const float* residual;  // or null
  u32 rows;
  u32 row_bytes;
};

struct Args {
  const u8* x;
  u32 columns;         // rows of x
  u32 blocks;          // of 32 columns
  u32 chunks;          // of 256 columns
  u32 parts;           // with a pair 2: gate and up
  u32 first_parts;     // of the first format,
  u32 first_clusters;  // and the clusters that work on them
  u32 clusters;        // in all
  u32 ranks;           // blocks of a cluster
  u32 per_stage;       // chunks of a row that a stage holds, at most
  u32 row_stride;      // bytes from row to row in a stage
  u32 depth;           // stages of the ring
  u32 unused;
  Part part[MAX_PARTS];
};

// ---------------------------------------------------------------- tensor cores

// The lane's part of 16 rows and 32 columns of x. With 8 rows: of 64 columns.
DEVICE void load_x(u32 (&a)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address));
}

// Column 2t and 2t + 1 (rows of W) of row g in c[0], c[1], of row g + 8 in c[2], c[3].
DEVICE void mma32(i32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void mma16(i32 (&c)[4], u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// A chunk of x in shared memory, as a lane sees it.
template <int ROWS>
struct ChunkX {
  const u8* chunk;
  u32 codes;  // address of the lane's row for `load_x`

  DEVICE ChunkX(const u8* chunk) : chunk(chunk) {
    u32 lane = threadIdx.x & 31;
    codes = shared_address(chunk) + (ROWS == 16 ? (lane & 15) * CODES_STRIDE + lane / 16 * 16 : (lane & 7) * CODES_STRIDE + lane / 8 * 16);
  }
  // Parts of A for the two halves of a unit.
  DEVICE void unit(u32 unit, u32 (&first)[4], u32 (&second)[4]) const {
    load_x(first, codes + unit * 64);
    if (ROWS == 16) {
      load_x(second, codes + unit * 64 + 32);
    } else {
      second[0] = first[2], second[2] = first[3], second[1] = second[3] = 0;
      first[2] = first[1], first[1] = first[3] = 0;
    }
  }
  // Of row g, or g + 8.
  DEVICE float scale(u32 unit, u32 upper) const { return *(const float*)(chunk + Codes8<ROWS>::SCALES + place(unit, upper)); }
  DEVICE u32 sums(u32 unit, u32 upper) const { return *(const u32*)(chunk + Codes8<ROWS>::SUMS + place(unit, upper)); }
  static DEVICE u32 place(u32 unit, u32 upper) { return (unit * ROWS + (threadIdx.x & 31) / 4 + upper * 8) * 4; }
};

// What a lane has of a tile: rows 2t and 2t + 1 of W for row g of x, then for row g + 8.
template <int ROWS>
struct Sums {
  static constexpr int N = ROWS / 4;
  float v[N];
};

// ---------------------------------------------------------------- formats

// Each format has BYTES for 256 columns. `multiply` adds the product of eight rows of W, `row` being the lane's (row g, its chunk),
// with a chunk of x; `blocks` of 32 of the chunk are there.

DEVICE uint4 lds16(const u8* from) { return *(const uint4*)from; }
DEVICE u32 lds4(const u8* from) { return *(const u32*)from; }
DEVICE u32 lds2(const u8* from) { return *(const u16*)from; }
// At an even address.
DEVICE u32 lds4_even(const u8* from) {
  u32 odd = (u32)(u64)from & 2;
  const u32* words = (const u32*)(from - odd);
  return __funnelshift_r(words[0], words[1], odd * 8);
}
DEVICE i32 dp2a_upper(u32 sums, u32 bytes) {
  i32 value;
  asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(value) : "r"(sums), "r"(bytes), "r"(0));
  return value;
}
constexpr u32 NIBBLE = 0x0f0f0f0f;

// What the lanes of rows 2t and 2t + 1 have, those with `t` in the place of `from`.
DEVICE u32 of_row(u32 value, u32 odd, u32 from) { return __shfl_sync(FULL_WARP, value, ((threadIdx.x & 3) * 2 + odd) * 4 + from); }

// Codes without a sign, less an offset below 64, as signed bytes.
template <u32 OFFSET>
DEVICE u32 less(u32 codes) {
  return ((codes | 0x80808080) - OFFSET * 0x01010101) ^ 0x80808080;
}

template <bool FIFTH>
struct FormatK {
  static constexpr u32 BYTES = FIFTH ? 176 : 144;

  template <int ROWS>
  static DEVICE void multiply(Sums<ROWS>& sums, const u8* row, const ChunkX<ROWS>& x, u32 blocks) {
    const u32 t = threadIdx.x & 3;
    // The 6-bit scales and minima of sub-blocks 2t and 2t + 1 of row g, as bytes.
    uint4 header = lds16(row);
    u32 shift = 16 * (t & 1), mask = t >= 2 ? 0x0f0f : 0x3f3f, top = t >= 2 ? 0x3030 : 0;
    u32 scales = (((t >= 2 ? header.w : header.y) >> shift) & mask) | ((header.y >> (shift + 2)) & top);
    u32 minima = (((t >= 2 ? header.w >> 4 : header.z) >> shift) & mask) | ((header.z >> (shift + 2)) & top);
    u32 packed = scales | minima << 16;
    float d[2], least[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 both = of_row(header.x, i, 0);
      d[i] = half_to_float((u16)both), least[i] = half_to_float((u16)(both >> 16));
    }
    u32 fifth0 = 0, fifth1 = 0;
    if (FIFTH) fifth0 = lds4(row + 16 + t * 4), fifth1 = lds4(row + 32 + t * 4);
    const u8* codes = row + (FIFTH ? 48 : 16) + t * 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 w0 = lds4(codes + j * 32), w1 = lds4(codes + j * 32 + 16);
      u32 low0 = w0 & NIBBLE, low1 = w1 & NIBBLE, high0 = (w0 >> 4) & NIBBLE, high1 = (w1 >> 4) & NIBBLE;
      if (FIFTH) {
        low0 |= ((fifth0 >> (2 * j)) & 0x01010101) << 4, low1 |= ((fifth1 >> (2 * j)) & 0x01010101) << 4;
        high0 |= ((fifth0 >> (2 * j + 1)) & 0x01010101) << 4, high1 |= ((fifth1 >> (2 * j + 1)) & 0x01010101) << 4;
      }
      u32 first[4], second[4];
      x.unit(j, first, second);
      i32 low[4] = {}, high[4] = {};
      mma32(low, first[0], first[1], first[2], first[3], low0, low1);
      mma32(high, second[0], second[1], second[2], second[3], high0, high1);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 factors = of_row(packed, i, j);
        i32 scale0 = factors & 255, scale1 = (factors >> 8) & 255;
#pragma unroll
        for (int upper = 0; upper < ROWS / 8; upper++) {
          i32 sum = low[upper * 2 + i] * scale0 + high[upper * 2 + i] * scale1, minimum = dp2a_upper(x.sums(j, upper), factors);
          sums.v[upper * 2 + i] += x.scale(j, upper) * (d[i] * (float)sum - least[i] * (float)minimum);
        }
      }
    }
  }
};

struct Format6 {
  static constexpr u32 BYTES = 210;

  template <int ROWS>
  static DEVICE void multiply(Sums<ROWS>& sums, const u8* row, const ChunkX<ROWS>& x, u32 blocks) {
    const u32 t = threadIdx.x & 3;
    // The scales of the unit t of row g.
    const u32 packed = lds4_even(row + 192 + t * 4), d16 = lds2(row + 208);
    float d[2];
#pragma unroll
    for (int i = 0; i < 2; i++) d[i] = half_to_float((u16)of_row(d16, i, 0));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      // Codes of eight runs of 16, of which run 2r + q has columns 32 r + 16 q of this half.
      u32 w[8];
#pragma unroll
      for (int q = 0; q < 2; q++) {
        u32 low = lds4_even(row + h * 64 + q * 16 + t * 4), high = lds4_even(row + h * 64 + 32 + q * 16 + t * 4);
        u32 upper = lds4_even(row + 128 + h * 32 + q * 16 + t * 4);
        w[q] = less<32>((low & NIBBLE) | ((upper << 4) & 0x30303030)), w[2 + q] = less<32>((high & NIBBLE) | ((upper << 2) & 0x30303030));
        w[4 + q] = less<32>(((low >> 4) & NIBBLE) | (upper & 0x30303030)), w[6 + q] = less<32>(((high >> 4) & NIBBLE) | ((upper >> 2) & 0x30303030));
      }
#pragma unroll
      for (int v = 0; v < 2; v++) {
        const u32 unit = h * 2 + v;
        u32 first[4], second[4];
        x.unit(unit, first, second);
        i32 c[4][4] = {};
        mma16(c[0], first[0], first[1], w[v * 4]);
        mma16(c[1], first[2], first[3], w[v * 4 + 1]);
        mma16(c[2], second[0], second[1], w[v * 4 + 2]);
        mma16(c[3], second[2], second[3], w[v * 4 + 3]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          u32 factors = of_row(packed, i, unit);
          i32 scale[4] = {(i8)factors, (i8)(factors >> 8), (i8)(factors >> 16), (i8)(factors >> 24)};
#pragma unroll
          for (int upper = 0; upper < ROWS / 8; upper++) {
            const int at = upper * 2 + i;
            i32 sum = c[0][at] * scale[0] + c[1][at] * scale[1] + c[2][at] * scale[2] + c[3][at] * scale[3];
            sums.v[at] += x.scale(unit, upper) * (d[i] * (float)sum);
          }
        }
      }
    }
  }
};

// The formats of 32 elements.
enum { CODES_4, CODES_4_MINIMUM, CODES_5, CODES_5_MINIMUM, CODES_8 };
template <int KIND>
struct Format32 {
  static constexpr bool EIGHT = KIND == CODES_8, FIFTH = KIND == CODES_5 || KIND == CODES_5_MINIMUM;
  static constexpr bool MINIMUM = KIND == CODES_4_MINIMUM || KIND == CODES_5_MINIMUM;
  static constexpr u32 BLOCK = 2 + (MINIMUM ? 2 : 0) + (FIFTH ? 4 : 0) + (EIGHT ? 32 : 16), BYTES = 8 * BLOCK;

  // Four bits to bit 4 of four bytes.
  static DEVICE u32 spread(u32 bits) { return (((bits & 15) * 0x00204081u) & 0x01010101u) << 4; }

  static DEVICE u32 sign(u32 codes) { return KIND == CODES_4 ? less<8>(codes) : KIND == CODES_5 ? less<16>(codes) : codes; }

  template <int ROWS>
  static DEVICE void multiply(Sums<ROWS>& sums, const u8* row, const ChunkX<ROWS>& x, u32 blocks) {
    const u32 t = threadIdx.x & 3;
    // Scales of blocks 2t and 2t + 1 of row g, 0 for those that are not there; minima likewise.
    u32 scales = 0, minima = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (2 * t + i < blocks) {
        scales |= lds2(row + (2 * t + i) * BLOCK) << (16 * i);
        if (MINIMUM) minima |= lds2(row + (2 * t + i) * BLOCK + 2) << (16 * i);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 first[4], second[4];
      x.unit(j, first, second);
      i32 c[2][4] = {};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const u8* at = row + (2 * j + i) * BLOCK + (MINIMUM ? 4 : 2);
        u32 b0, b1;
        if (EIGHT) {
          b0 = lds4_even(at + t * 4), b1 = lds4_even(at + 16 + t * 4);
        } else {
          u32 word = lds4_even(at + (FIFTH ? 4 : 0) + t * 4);
          b0 = word & NIBBLE, b1 = (word >> 4) & NIBBLE;
          if (FIFTH) {
            u32 fifth = lds4_even(at) >> (t * 4);
            b0 |= spread(fifth), b1 |= spread(fifth >> 16);
          }
          b0 = sign(b0), b1 = sign(b1);
        }
        if (i == 0)
          mma32(c[0], first[0], first[1], first[2], first[3], b0, b1);
        else
          mma32(c[1], second[0], second[1], second[2], second[3], b0, b1);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 scale = of_row(scales, i, j), minimum = MINIMUM ? of_row(minima, i, j) : 0;
        float d0 = half_to_float((u16)scale), d1 = half_to_float((u16)(scale >> 16));
        float m0 = half_to_float((u16)minimum), m1 = half_to_float((u16)(minimum >> 16));
#pragma unroll
        for (int upper = 0; upper < ROWS / 8; upper++) {
          const int at = upper * 2 + i;
          float sum = d0 * (float)c[0][at] + d1 * (float)c[1][at];
          if (MINIMUM) {
            u32 both = x.sums(j, upper);
            sum += m0 * (float)(short)both + m1 * (float)(short)(both >> 16);
          }
          sums.v[at] += x.scale(j, upper) * sum;
        }
      }
    }
  }
};

// ---------------------------------------------------------------- tiles

// The work of a cluster: tiles [tile, end) of the parts from `first` on, and the chunks [chunk, past) of this block.
struct Work {
  u32 first, tile, end, chunk, past;

  DEVICE Work(const Args& args, u32 first, u32 past_part, u32 cluster, u32 clusters, u32 rank, bool pair) : first(first) {
    u32 tiles = 0;
    for (u32 part = first; part < (pair ? first + 1 : past_part); part++) tiles += (args.part[part].rows + TILE - 1) / TILE;
    tile = (u32)((u64)cluster * tiles / clusters), end = (u32)((u64)(cluster + 1) * tiles / clusters);
    chunk = rank * args.chunks / args.ranks, past = (rank + 1) * args.chunks / args.ranks;
  }
};

// Where a tile is.
struct Place {
  u32 part, row, rows;

  DEVICE Place(const Args& args, u32 first, u32 tile) : part(first) {
    for (;;) {
      u32 tiles = (args.part[part].rows + TILE - 1) / TILE;
      if (tile < tiles || part + 1 >= args.parts) break;
      tile -= tiles;
      part++;
    }
    row = tile * TILE;
    rows = min(TILE, args.part[part].rows - row);
  }
};

DEVICE const u8* weight_at(const Args& args, u32 part, u32 row, u32 chunk, u32 bytes) {
  return args.part[part].weight + (u64)row * args.part[part].row_bytes + (u64)chunk * bytes;
}

struct Ring {
  u8* stages;
  u64 *full, *empty;
  u32 stage, parity, depth, bytes;

  DEVICE u8* at() const { return stages + stage * bytes; }
  DEVICE void advance() {
    if (++stage == depth) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class F, bool PAIR>
DEVICE void produce(const Args& args, const Work& work, Ring ring) {
  const u32 lane = threadIdx.x & 31, half = lane / TILE, index = lane % TILE;
  for (u32 tile = work.tile; tile < work.end; tile++) {
    Place place(args, work.first, tile);
    bool copies = lane < (PAIR ? 2 : 1) * TILE && index < place.rows;
    for (u32 chunk = work.chunk; chunk < work.past; chunk += args.per_stage) {
      const u32 chunks = min(args.per_stage, work.past - chunk);
      barrier_wait(&ring.empty[ring.stage], ring.parity ^ 1);
      const u8* from = weight_at(args, place.part + half, place.row + index, chunk, F::BYTES);
      // The last chunk may be cut short.
      u32 bytes = 0, all = 0;
      if (copies) {
        bytes = min(chunks * F::BYTES, args.part[place.part + half].row_bytes - chunk * F::BYTES);
        all = pieces_around(from, bytes);
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(FULL_WARP, all, step);
      if (lane == 0) barrier_expect(&ring.full[ring.stage], all);
      __syncwarp();
      if (copies) bulk_copy(ring.at() + lane * args.row_stride, from, bytes, &ring.full[ring.stage]);
      ring.advance();
    }
  }
}

// What is made of a tile's sums: `value` (and `other` of the second weight) of row `row` of W, column `column` of the output.
template <bool PAIR>
DEVICE void finish(const Args& args, const Place& place, u32 column, u32 index, float value, float other) {
  if (index >= place.rows || column >= args.columns) return;
  const Part& part = args.part[place.part];
  u64 to = (u64)column * part.rows + place.row + index;
  if (PAIR) {
    value = value / (1.0f + __expf(-value)) * other;
  } else {
    if (part.bias) value += part.bias[place.row + index];
    if (part.residual) value += part.residual[to];
  }
  part.out[to] = value;
}

// For each slot, whether all warps have put their sums there, and whether they have been added up.
struct Slots {
  u64 *full, *empty;
};

// How far a warp comes after another.
DEVICE u32 after(u32 first, u32 warp) { return warp >= first ? warp - first : warp + WARPS - first; }

template <class F, int ROWS, bool PAIR>
DEVICE void consume(const Args& args, const Work& work, Ring ring, const u8* x, float* slots, Slots use, float* totals) {
  constexpr u32 HALVES = PAIR ? 2 : 1, OUTPUTS = HALVES * ROWS * TILE, EACH = OUTPUTS / 32;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, t = lane & 3;
  const u32 items = HALVES * (work.past - work.chunk);
  u32 turn = 0;  // whose the next item is
  u32 slot = 0, round = 0;
  for (u32 tile = work.tile; tile < work.end; tile++) {
    Place place(args, work.first, tile);
    Sums<ROWS> sums[HALVES] = {};
    const u32 began = turn;
    for (u32 chunk = work.chunk; chunk < work.past; chunk += args.per_stage) {
      const u32 chunks = min(args.per_stage, work.past - chunk);
      barrier_wait(&ring.full[ring.stage], ring.parity);
      for (u32 item = after(turn, warp); item < HALVES * chunks; item += WARPS) {
        const u32 half = PAIR ? item / chunks : 0, index = item - half * chunks, row = min(g, place.rows - 1);
        const u8* from = ring.at() + (half * TILE + row) * args.row_stride;
        from += ((u32)(u64)weight_at(args, place.part + half, place.row + row, chunk, F::BYTES) & 15) + index * F::BYTES;
        Sums<ROWS> part = {};
        ChunkX<ROWS> chunk_x(x + (chunk - work.chunk + index) * Codes8<ROWS>::BYTES);
        F::multiply(part, from, chunk_x, min(8u, args.blocks - (chunk + index) * 8));
#pragma unroll
        for (int i = 0; i < Sums<ROWS>::N; i++) {
          if (!PAIR || half == 0) sums[0].v[i] += part.v[i];
          if (PAIR && half == 1) sums[HALVES - 1].v[i] += part.v[i];
        }
      }
      turn = (turn + HALVES * chunks) % WARPS;
      __syncwarp();
      if (lane == 0) barrier_arrive(&ring.empty[ring.stage]);
      ring.advance();
    }
    // The warps that had an item of this tile.
    auto had = [&](u32 w) { return after(began, w) < items; };
    float* mine = slots + (slot * WARPS + warp) * OUTPUTS;
    // What was here before must have been added up.
    barrier_wait(&use.empty[slot], ~round & 1);
    if (had(warp)) {
#pragma unroll
      for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int upper = 0; upper < ROWS / 8; upper++)
          *(float2*)(mine + (half * ROWS + upper * 8 + g) * TILE + t * 2) = make_float2(sums[half].v[upper * 2], sums[half].v[upper * 2 + 1]);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(&use.full[slot]);
    // The warp of the last item adds up.
    if (warp == (turn == 0 ? WARPS : turn) - 1) {
      barrier_wait(&use.full[slot], round & 1);
      float total[EACH] = {};
      for (u32 w = 0; w < WARPS; w++) {
        if (!had(w)) continue;
        const float* from = slots + (slot * WARPS + w) * OUTPUTS + lane;
#pragma unroll
        for (int i = 0; i < EACH; i++) total[i] += from[i * 32];
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&use.empty[slot]);
#pragma unroll
      for (int i = 0; i < EACH / HALVES; i++) {
        const u32 at = i * 32 + lane;
        if (args.ranks == 1) {
          finish<PAIR>(args, place, at / TILE, at % TILE, total[i], PAIR ? total[i + EACH / HALVES] : 0);
        } else {
          float* to = totals + (tile - work.tile) * OUTPUTS + at;
          to[0] = total[i];
          if (PAIR) to[OUTPUTS / 2] = total[i + EACH / HALVES];
        }
      }
    }
    if (++slot == SLOTS) slot = 0, round++;
  }
}

// The tiles of a cluster of several blocks: each finishes every `ranks`th.
template <int ROWS, bool PAIR>
DEVICE void combine(const Args& args, const Work& work, const float* totals, u32 rank) {
  constexpr u32 OUTPUTS = (PAIR ? 2 : 1) * ROWS * TILE, WRITTEN = ROWS * TILE;
  const u32 mine = (work.end - work.tile + args.ranks - 1 - rank) / args.ranks;
  for (u32 i = threadIdx.x; i < mine * WRITTEN; i += THREADS) {
    const u32 index = rank + i / WRITTEN * args.ranks, at = i % WRITTEN;
    float value = 0, other = 0;
    for (u32 from = 0; from < args.ranks; from++) {
      value += remote(totals + index * OUTPUTS + at, from);
      if (PAIR) other += remote(totals + index * OUTPUTS + WRITTEN + at, from);
    }
    finish<PAIR>(args, Place(args, work.first, work.tile + index), at / TILE, at % TILE, value, other);
  }
}

// Shared memory: x, the ring, sums of warps, sums of tiles.
template <class F, int ROWS, bool PAIR>
DEVICE void product(const Args& args, u32 first, u32 past, u32 cluster, u32 clusters, u8* memory, u64* barriers) {
  const u32 rank = blockIdx.x % args.ranks;
  const Work work(args, first, past, cluster, clusters, rank, PAIR);
  const u32 x_bytes = (args.chunks + args.ranks - 1) / args.ranks * Codes8<ROWS>::BYTES;
  const u32 stage_bytes = (PAIR ? 2 : 1) * TILE * args.row_stride;
  u64* x_there = barriers + 2 * MAX_DEPTH;
  Ring ring = {memory + x_bytes, barriers, barriers + MAX_DEPTH, 0, 0, args.depth, stage_bytes};
  float* slots = (float*)(ring.stages + args.depth * stage_bytes);
  float* totals = slots + SLOTS * WARPS * (PAIR ? 2 : 1) * ROWS * TILE;
  if (threadIdx.x / 32 == WARPS) {
    produce<F, PAIR>(args, work, ring);
  } else {
    wait_for_previous();
    const u32 bytes = (work.past - work.chunk) * Codes8<ROWS>::BYTES;
    if (threadIdx.x == 0) {
      barrier_expect(x_there, bytes);
      if (bytes) bulk_copy(memory, args.x + (u64)work.chunk * Codes8<ROWS>::BYTES, bytes, x_there);
    }
    barrier_wait(x_there, 0);
    consume<F, ROWS, PAIR>(args, work, ring, memory, slots, Slots{x_there + 1, x_there + 1 + SLOTS}, totals);
  }
  if (args.ranks > 1) {
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    combine<ROWS, PAIR>(args, work, totals, rank);
    // No block may end while others read from it.
    cluster_arrive();
    cluster_wait();
  }
}

template <class F, class G, bool MIXED, int ROWS, bool PAIR>
DEVICE void run(const Args& args) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ u64 barriers[2 * MAX_DEPTH + 1 + 2 * SLOTS];
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < MAX_DEPTH; i++) {
      barrier_init(&barriers[i], 1);
      barrier_init(&barriers[MAX_DEPTH + i], WARPS);
    }
    barrier_init(&barriers[2 * MAX_DEPTH], 1);
    for (u32 i = 0; i < SLOTS; i++) {
      barrier_init(&barriers[2 * MAX_DEPTH + 1 + i], WARPS);
      barrier_init(&barriers[2 * MAX_DEPTH + 1 + SLOTS + i], 1);
    }
    barriers_ready();
  }
  __syncthreads();
  let_next_start();
  const u32 cluster = blockIdx.x / args.ranks;
  if (!MIXED)
    product<F, ROWS, PAIR>(args, 0, args.parts, cluster, args.clusters, memory, barriers);
  else if (cluster < args.first_clusters)
    product<F, ROWS, PAIR>(args, 0, args.first_parts, cluster, args.first_clusters, memory, barriers);
  else
    product<G, ROWS, PAIR>(args, args.first_parts, args.parts, cluster - args.first_clusters, args.clusters - args.first_clusters, memory, barriers);
}

#define ENTRY(NAME, F, G, MIXED, ROWS, PAIR)                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ Args args) {                  \
    run<F, G, MIXED, ROWS, PAIR>(args);                                                                               \
  }
#define FORMAT(NAME, ROWS)                                             \
  ENTRY(mmq_##NAME##_rows##ROWS, NAME, NAME, false, ROWS, false)       \
  ENTRY(mmq_pair_##NAME##_rows##ROWS, NAME, NAME, false, ROWS, true)

using q4_k = FormatK<false>;
using q5_k = FormatK<true>;
using q6_k = Format6;
using q4_0 = Format32<CODES_4>;
using q4_1 = Format32<CODES_4_MINIMUM>;
using q5_0 = Format32<CODES_5>;
using q5_1 = Format32<CODES_5_MINIMUM>;
using q8_0 = Format32<CODES_8>;

#define FORMATS(ROWS)                                                                                                       \
  FORMAT(q4_k, ROWS) FORMAT(q5_k, ROWS) FORMAT(q6_k, ROWS) FORMAT(q4_0, ROWS) FORMAT(q4_1, ROWS) FORMAT(q5_0, ROWS)           \
  FORMAT(q5_1, ROWS) FORMAT(q8_0, ROWS) ENTRY(mmq_q4_k_q6_k_rows##ROWS, q4_k, q6_k, true, ROWS, false)
FORMATS(8)
FORMATS(16)
