// targets: 90
// Products of 2 to 16 rows a launch with block-quantized weights: y[m, n] = x[m, k] · W[n, k]ᵀ, every byte of W read once.
//
// - x comes in 16 bits, from `pack_f16_fragments.cu` or from the kernel that made it, and is copied into shared memory whole. Tensor cores multiply: 16 rows of W, decoded in
//   registers, are the rows of A, the rows of x the columns of B.
// - A tile is 16 rows of W (of both weights where they come in pairs, which then share what is loaded of x). Tiles are dealt to the
//   clusters of the grid; the blocks of a cluster share the columns, so that few rows of W still fill the GPU and no block needs all
//   of x.
// - An item is a tile and a chunk of 256 columns. The items of a block lie in a row, tile after tile, and each warp has the same
//   number of neighbours: so most of its sums stay in registers, and warps share no more than the first and the last of its tiles.
// - Each warp copies its items, as they lie in a GGUF file, into a ring of its own, and waits for no other before the end. Where rows
//   are whole pieces of 16 bytes an item is one box of a tensor, for one instruction. Then what several warps have of a tile is added
//   up in their order. Where several blocks have some, they push it to the one that finishes the tile, which adds it up in theirs.
// - Weights are fetched before the kernel ahead is done: they depend on nothing. One more warp, the last, does not: it waits for that
//   kernel, brings x and what belongs to it, and ends.
#include "gemm_small_m_schedule.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "gemm_small_m_formats.cuh"

constexpr u32 BOUND = 512;  // threads that there are registers for: so that a block of a small kernel may run beside
static_assert(32 * (MAX_WARPS + 1) <= BOUND, "one more warp brings x");

DEVICE float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// ---------------------------------------------------------------- sums

// What a lane has of a tile: v[n][i] of columns 8 n + 2 t + i % 2 of the result and rows g + i / 2 · 8 of W.
template <int ROWS>
struct Sums {
  static constexpr int N = ROWS / 8, FLOATS = N * 128;
  float v[N][4];

  DEVICE void add(const u32 (&a)[4], const u8* x) {
    u32 b[2 * N];
    if (N == 2)
      *(uint4*)b = *(const uint4*)x;
    else
      *(uint2*)b = *(const uint2*)x;
#pragma unroll
    for (int n = 0; n < N; n++) mma_m16n8k16_f16(v[n], a, b[2 * n], b[2 * n + 1]);
  }
  // Four rows of W lie together, so that a lane can take those of a column. The fours of a column change places, so that few lanes
  // meet in a bank.
  DEVICE void put(float* to) const {
    const u32 lane = reload_tid_x() & 31, t = lane & 3;
    const u32 at = t * 32 + ((lane / 16 ^ t) * 4 | lane / 4 % 4);
#pragma unroll
    for (int i = 0; i < N * 4; i++) to[i / 4 * 128 + i % 2 * 16 + (i % 4 < 2 ? at : at ^ 8)] = v[i / 4][i % 4];
  }
  // Of float `at`, a multiple of 4, of those that `put` has written.
  static DEVICE u32 row(u32 at) { return ((at / 4 ^ at / 32) & 3) * 4; }
  static DEVICE u32 column(u32 at) { return at / 16; }
};

// Adds the products of a chunk, UNROLLED loops at a time. `x` is the lane's place in it.
template <class F, int ROWS, int WEIGHTS, int UNROLLED>
DEVICE void multiply(Sums<ROWS>* total, F (&weights)[WEIGHTS], const u8* x) {
  constexpr u32 STEP = Halves<ROWS>::STEP;
  Sums<ROWS> sums[WEIGHTS] = {}, least[WEIGHTS] = {};
#pragma unroll(UNROLLED)
  for (u32 loop = 0; loop < F::LOOPS; loop++) {
    const u8* from = x + loop * F::ADVANCE * STEP;
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++) weights[w].load(loop);
#pragma unroll
    for (int i = 0; i < F::STEPS; i++) {
#pragma unroll
      for (int w = 0; w < WEIGHTS; w++) {
        u32 a[4];
        weights[w].values(i, a);
        sums[w].add(a, from + F::AT(i) * STEP);
      }
    }
  }
#pragma unroll
  for (int w = 0; w < WEIGHTS; w++) {
    if (F::OFFSETS) {
      u32 a[4];
      weights[w].offsets(a);
      Sums<ROWS>& to = F::MINIMUM ? least[w] : sums[w];
      to.add(a, x + Halves<ROWS>::SUMS);
      to.add(a, x + Halves<ROWS>::REST);
    }
    const float factor[2] = {weights[w].factor(0), weights[w].factor(1)}, minimum[2] = {weights[w].minimum(0), weights[w].minimum(1)};
#pragma unroll
    for (int i = 0; i < Sums<ROWS>::N * 4; i++) {
      float& to = total[w].v[i / 4][i % 4];
      to += factor[i % 4 / 2] * sums[w].v[i / 4][i % 4];
      if (F::MINIMUM) to += minimum[i % 4 / 2] * least[w].v[i / 4][i % 4];
    }
  }
}

// ---------------------------------------------------------------- results

DEVICE float gated(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

// What is made of a tile's sums at `at`: of four rows of W and one row of x. `other` is of the second weight. The lanes of a warp have
// 128 neighbours.
template <int ROWS, bool PAIR>
DEVICE void finish(const Args& args, const Place& place, u32 at, float4 v, float4 other) {
  const u32 column = Sums<ROWS>::column(at), index = Sums<ROWS>::row(at);
  if (index >= place.rows || column >= args.columns) return;
  const Part& part = args.part[place.part];
  const u32 row = place.row + index, to = column * part.rows + row;
  if (PAIR) v = make_float4(gated(v.x, other.x), gated(v.y, other.y), gated(v.z, other.z), gated(v.w, other.w));
  if (!part.wide) {
#pragma unroll 1
    for (u32 i = 0; i < min(4u, place.rows - index); i++) {
      if (!PAIR && part.bias) v.x += part.bias[row + i];
      if (!PAIR && part.residual) v.x += part.residual[to + i];
      part.out[to + i] = v.x;
      v.x = v.y, v.y = v.z, v.z = v.w;
    }
    return;
  }
  const bool hands_on = args.to.image[0];
  float4 gain;
  if (!PAIR && hands_on) gain = *(const float4*)(args.to.gain + row);
  if (!PAIR && part.bias) v = plus(v, *(const float4*)(part.bias + row));
  if (!PAIR && part.residual) v = plus(v, *(const float4*)(part.residual + to));
  *(float4*)(part.out + to) = v;
  if (hands_on) hand_on<ROWS, !PAIR>(args.to, place.row / TILE, part.rows / TILE, column, index, v, gain);
}

// ---------------------------------------------------------------- a block

// SharedAddress memory: x, the rings, early sums, pushed sums.
template <class F, class G, int ROWS, bool PAIR>
struct Block {
  static constexpr bool MIXED = F::BYTES != G::BYTES;
  static_assert(!MIXED || !G::ALIGNED, "only the first format has maps");
  static constexpr int WEIGHTS = PAIR ? 2 : 1;
  static constexpr u32 FLOATS = Sums<ROWS>::FLOATS, SLOT = WEIGHTS * FLOATS;

  const Args& args;
  u8* memory;
  u64* x_there;
  Told& told;
  const Work& work;
  const bool boxed;  // whether items are boxes
  const u32 warp, lane, row_bytes;
  u8* ring;
  u64* full;  // barriers of the stages: whether they are
  const u32 items;
  Sums<ROWS> total[WEIGHTS];

  u32 step, stage, parity;
  Walk ahead, walk;  // the items that are fetched, and those that are multiplied
  bool began;        // whether the tile did with this warp
  // The tile that is fetched: of boxes the map and the row; in memory, from a 16-byte boundary on, and the lane's piece there.
  u32 map, row;
  const u8* from[WEIGHTS];
  u32 skip[WEIGHTS], all, start;
  // Where the lane's rows begin, but for the place of the chunk among 16 bytes.
  u32 low[WEIGHTS][2];

  // The lane goes through a shuffle, so that what is made of it is not computed again for every item.
  DEVICE Block(const Args& args, const Work& work, u8* memory, u64* x_there, u64* stages, Told& told)
      : args(args),
        memory(memory),
        x_there(x_there),
        told(told),
        work(work),
        boxed(F::ALIGNED && !(MIXED && work.second)),
        warp(threadIdx.x / 32),
        lane(__shfl_sync(FULL_WARP, threadIdx.x & 31, threadIdx.x & 31)),
        row_bytes(args.part[work.second ? args.first_parts : 0].row_bytes),  // the same for all of a format
        ring(memory + args.x_bytes + warp * args.depth * args.stage_bytes),
        full(stages + warp * MAX_DEPTH),
        items(work.items.begin(warp + 1) - work.items.begin(warp)),
        step(0),
        stage(0),
        parity(0) {
    if (lane < MAX_DEPTH) mbarrier_init(&full[lane], boxed ? 1 : 32);
    fence_proxy_async();
    __syncwarp();
    const u32 begin = work.items.begin(warp), tile = quotient(begin, work.chunks);
    ahead = {work.tile + tile, work.chunk + begin - tile * work.chunks}, walk = ahead;
    began = walk.chunk == work.chunk;
    if (!boxed) start = lane / G::PIECES * row_bytes + lane % G::PIECES * 16;
    seek();
    arrive();
  }

  // Sums of warps: of the last tile of each, and of tiles before it that several warps or blocks share, each of which one warp ends.
  DEVICE float* late(u32 of) const { return (float*)memory + of * SLOT; }
  DEVICE float* early(u32 of, u32 index) const {
    float* all = (float*)(memory + args.x_bytes + args.warps * args.depth * args.stage_bytes);
    return all + (args.sums & EARLY_EACH ? index : of) * SLOT;
  }
  // Sums that blocks of the cluster push, in their order, for each of the tiles that this one finishes.
  DEVICE float* pushed(u32 slot) const { return (float*)(memory + (args.sums & ~15u)) + slot * SLOT; }

  // Of sums what they stand for. Not the product of both factors: it may be too large.
  static DEVICE float4 scaled(float4 sum, float factor) {
    static_assert(F::UNIT == G::UNIT, "one for both");
    return times(times(sum, make_float4(F::UNIT, F::UNIT, F::UNIT, F::UNIT)), make_float4(factor, factor, factor, factor));
  }

  DEVICE void clear() {
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++) total[w] = {};
  }

  DEVICE void seek() {
    const Place place(args, work, ahead.tile);
    if (boxed) {
      map = place.part, row = place.row;
      return;
    }
    all = place.rows * row_bytes;
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++) {
      const u8* at = place.at(args, w);
      skip[w] = (u32)(u64)at & 15, from[w] = at - skip[w];
    }
  }
  DEVICE void arrive() {
    if (boxed) return;
    const Place place(args, work, walk.tile);
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++)
#pragma unroll
      for (int r = 0; r < 2; r++) low[w][r] = (u32)(u64)place.at(args, w) + (lane / 4 + r * 8) * row_bytes;
  }

  DEVICE void fetch_box() const {
    if (!elect_one()) return;
    mbarrier_arrive_expect_tx(&full[stage], WEIGHTS * TILE * F::BYTES);
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++)
      tma_load_2d(ring + stage * args.stage_bytes + w * TILE * F::BYTES, &args.map[map + w], ahead.chunk * F::BYTES, row, &full[stage]);
  }
  template <class T>
  DEVICE void fetch_pieces() const {
    constexpr u32 STRIDE = T::PIECES * 16, AT_ONCE = 32 / T::PIECES, COPIES = (TILE + AT_ONCE - 1) / AT_ONCE;  // rows that are copied at once
    const SharedAddress to = shared_address(ring) + lane * 16 + stage * args.stage_bytes;
#pragma unroll
    for (int w = 0; w < WEIGHTS; w++) {
      const u32 base = skip[w] + ahead.chunk * T::BYTES + start, past = skip[w] + all;
#pragma unroll
      for (int i = 0; i < COPIES; i++) {
        const u32 offset = (base + i * AT_ONCE * row_bytes) & ~15u;
        // Pieces past the row are of the next one, and only those past the last one are not there.
        cp_async_16_l2_128_if(lane < min(AT_ONCE, TILE - i * AT_ONCE) * T::PIECES && offset < past, to + w * TILE * STRIDE + i * AT_ONCE * STRIDE, from[w] + offset);
      }
    }
    cp_async_mbarrier_arrive_noinc(&full[stage]);
  }

  template <class T>
  DEVICE void multiply_item() {
    constexpr int TOGETHER = T::LIGHT ? WEIGHTS : 1, UNROLLED = T::LIGHT || !PAIR ? T::LOOPS : 1;
    constexpr u32 STRIDE = T::PIECES * 16;
    const u8* x = memory + (walk.chunk - work.chunk) * Halves<ROWS>::BYTES + lane * Halves<ROWS>::LANE;
#pragma unroll
    for (int first = 0; first < WEIGHTS; first += TOGETHER) {
      T weights[TOGETHER];
#pragma unroll
      for (int i = 0; i < TOGETHER; i++) {
        const int w = first + i;
        const u8* rows[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          rows[r] = ring + stage * args.stage_bytes + w * TILE * STRIDE + (lane / 4 + r * 8) * STRIDE;
          if (!T::ALIGNED) rows[r] += (low[w][r] + walk.chunk * T::BYTES) & 15;
        }
        weights[i].open(rows[0], rows[1], args.blocks - walk.chunk * 8, lane & 3);
      }
      multiply<T, ROWS, TOGETHER, UNROLLED>(total + first, weights, x);
    }
  }

  // Before anything of other kernels is read or written: the kernel ahead is done, and x is there or on its way.
  DEVICE void take_x() {
    pdl_wait();
    bar_sync<1>(blockDim.x);
    if (!args.from.words) return;
    mbarrier_wait_parity(&told.looked, 0);
    if (told.fine) return;
    mbarrier_wait_parity(&told.known, 0);
#pragma unroll 1
    for (u32 i = 0; i < work.chunks; i++) mbarrier_wait_parity(&x_there[i], 0);
    make_image<ROWS>(args.from.floats, args.from.squares ? args.from.gain : nullptr, told.factors, memory, work.second ? G::ORDER : F::ORDER,
                     args.chunks * HALVES_CHUNK, work.chunk * HALVES_CHUNK, work.chunks * HALVES_CHUNK);
  }

  // Multiplies the warp's items up to the end of a tile that no one else has a part of: its sums are in the ring then. False after the
  // last item: what is left is among the late sums.
  DEVICE bool next_tile(u32& index) {
#pragma unroll 1
    for (;;) {
      if (step < items) {
        if (boxed)
          fetch_box();
        else
          fetch_pieces<G>();
        if (ahead.next(work)) seek();
      }
      if (++stage == args.depth) stage = 0;
      if (++step < args.depth) continue;
      if (step == args.depth) {
        take_x();
        // Not before: registers are scarce there.
        clear();
      }
      const u32 left = items + args.depth - step;
      bool alone = false;
      const u32 warp = reload_tid_x() / 32;
      float* to = late(warp);
      if (left > 0) {
        mbarrier_wait_parity(&full[stage], parity);
        if (stage + 1 == args.depth) parity ^= 1;
        mbarrier_wait_parity(&x_there[walk.chunk - work.chunk], 0);
        if (MIXED && work.second)
          multiply_item<G>();
        else
          multiply_item<F>();
        index = walk.tile - work.tile;
        const bool ends = walk.next(work);
        alone = ends && began && args.ranks == 1;
        __syncwarp();
        if (!ends || (left == 1 && !alone)) continue;
        // Of a tile that is done, the codes are no longer needed.
        to = alone ? (float*)(ring + stage * args.stage_bytes) : early(warp, index);
        began = true;
        arrive();
      } else {
        // From here on x is not needed: sums take its place.
        bar_sync<1>(args.warps * 32);
      }
#pragma unroll
      for (int w = 0; w < WEIGHTS; w++) total[w].put(to + w * FLOATS);
      clear();
      if (alone || left == 0) return alone;
    }
  }

  // Tiles that a warp has alone are finished as it comes to their ends. Then what warps have of the others is added up, and, where
  // there are several blocks, pushed to the one that finishes the tile: each does every `ranks`th.
  DEVICE void run() {
    enum { ALONE, WARPS, RANKS } of = ALONE;
    u32 next;
#pragma unroll 1
    for (;;) {
      u32 index, at, past, source = 0, sources = 1;
      const float* first;  // sums, but those of warps
      if (of == ALONE) {
        if (!next_tile(index)) {
          bar_sync<1>(args.warps * 32);
          // Sums may be pushed when all blocks of the cluster have begun, or no longer need x.
          if (args.ranks > 1) {
            if (args.sums & INSTEAD_OF_X) cluster_arrive();
            cluster_wait();
          }
          of = WARPS, next = reload_tid_x() * 4;
          continue;
        }
        __syncwarp();
        at = (reload_tid_x() & 31) * 4, past = FLOATS;
        first = (float*)(ring + stage * args.stage_bytes);
      } else {
        index = next / FLOATS, at = next % FLOATS, past = at + 1;
        next += args.warps * 128;
        if (of == RANKS) first = pushed(index * args.ranks), index = work.rank + index * args.ranks, sources = args.ranks;
        if (index >= work.end - work.tile) {
          if (of == RANKS || args.ranks == 1) break;
          of = RANKS, next = reload_tid_x() * 4;
          continue;
        }
        if (of == RANKS) mbarrier_wait_parity_cluster(&told.pushed, 0);
        if (of == WARPS) {
          source = work.items.owner(index * work.chunks), sources = work.items.owner((index + 1) * work.chunks - 1) + 1;
          if (sources == source + 1 && args.ranks == 1) continue;
        }
      }
#pragma unroll 1
      for (; at < past; at += 128) {
        float4 value = {}, other = {};
#pragma unroll 1
        for (u32 i = source; i < sources; i++) {
          const float* sums = of != WARPS ? first + i * SLOT : work.items.begin(i + 1) <= (index + 1) * work.chunks ? late(i) : early(i, index);
          value = plus(value, *(const float4*)(sums + at));
          if (PAIR) other = plus(other, *(const float4*)(sums + FLOATS + at));
        }
        if (of != RANKS) {
          mbarrier_wait_parity(&told.known, 0);
          const float f = told.factors[Sums<ROWS>::column(at)];
          value = scaled(value, f);
          if (PAIR) other = scaled(other, f);
        }
        if (of == WARPS && args.ranks > 1) {
          const u32 slot = quotient(index, args.ranks) * args.ranks;
          float* to = pushed(slot + work.rank) + at;
          st_async_v4(to, &told.pushed, index - slot, value);
          if (PAIR) st_async_v4(to + FLOATS, &told.pushed, index - slot, other);
        } else {
          finish<ROWS, PAIR>(args, Place(args, work, work.tile + index), at, value, other);
        }
      }
      __syncwarp();
      // The ring that the sums were in is filled again.
      if (of == ALONE) fence_proxy_async();
    }
  }
};

// What the last warp does.
template <int ROWS>
DEVICE void bring_x(const Args& args, const Work& work, u8* memory, u64* x_there, Told& told, u32 slot_bytes) {
  const u32 lane = threadIdx.x & 31;
#pragma unroll 1
  for (u32 i = lane; i < work.chunks; i += 32) mbarrier_init(&x_there[i], 32);
  if (lane == 0) {
    mbarrier_init(&told.looked, 1), mbarrier_init(&told.known, 32), mbarrier_init(&told.pushed, 1);
    // From each block of the cluster the sums of every `ranks`th tile.
    const u32 tiles = work.end - work.tile + args.ranks - 1 - work.rank;
    if (args.ranks > 1) mbarrier_arrive_expect_tx(&told.pushed, quotient(tiles, args.ranks) * args.ranks * slot_bytes);
  }
  fence_proxy_async();
  __syncwarp();
  if (args.ranks > 1) (fence_mbarrier_init(), cluster_arrive_relaxed());
  bar_arrive<1>(blockDim.x);
  // The weights of the step have driven the gain out of the cache.
  if (args.to.gain && lane == 0) cp_async_bulk_prefetch_l2_covering(args.to.gain + work.tile * TILE, (work.end - work.tile) * TILE * 4);
  pdl_wait();
  const bool handed = args.from.words;
  const Look<ROWS> look(args.from, work.chunk, handed ? work.past : 0, lane);
  // Not by bulk copies: they would queue behind the boxes.
  const u8* x = (work.second ? args.x[1] : args.x[0]) + (u64)work.chunk * Halves<ROWS>::BYTES + lane * 16;
  SharedAddress to = shared_address(memory) + lane * 16;
#pragma unroll 1
  for (u32 i = 0; i < work.chunks; i++, x += Halves<ROWS>::BYTES, to += Halves<ROWS>::BYTES) {
#pragma unroll
    for (u32 j = 0; j < Halves<ROWS>::BYTES; j += 512) cp_async_16_l2_128(to + j, x + j);
    cp_async_mbarrier_arrive_noinc(&x_there[i]);
  }
  __syncwarp();
  const u32 k = args.chunks * HALVES_CHUNK, row = lane / (32 / ROWS);
  float factor = 1;
  if (!handed) {
    factor = __ldcg(args.factors + row);
  } else {
    const bool fine = look.fine();
    if (lane == 0) {
      told.fine = fine;
      mbarrier_arrive(&told.looked);
    }
    if (args.from.squares) factor = look.factor(k, args.epsilon);
  }
  told.factors[row] = factor;
  mbarrier_arrive(&told.known);
  args.ahead.call(lane);
  // What is added to the sums, and what they are multiplied with, comes nearer meanwhile.
#pragma unroll 1
  for (u32 tile = work.tile + work.rank; tile < work.end; tile += args.ranks) {
    const Place place(args, work, tile);
    const Part& part = args.part[place.part];
    const u32 at = place.row + lane % 2 * 8, column = lane / 2;
    if (at < part.rows) {
      if (part.residual && column < args.columns) told.near[lane] = part.residual[column * part.rows + at];
      if (args.to.gain) told.near[lane] = args.to.gain[at];
    }
  }
  if (handed && args.from.normed) look.write_normed(k, factor);
  __syncwarp();
  if (args.ranks > 1) cluster_wait();
}

template <class F, class G, int ROWS, bool PAIR>
DEVICE void run(const Args& args) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ u64 x_there[MAX_CHUNKS], stages[MAX_WARPS * MAX_DEPTH];
  __shared__ Told told;
  pdl_launch_dependents();
  if (F::ALIGNED && threadIdx.x < args.maps) prefetch_tensormap(&args.map[threadIdx.x]);
  const Work work(args, F::BYTES != G::BYTES);
  typedef Block<F, G, ROWS, PAIR> Of;
  if (threadIdx.x / 32 == args.warps) {
    bring_x<ROWS>(args, work, memory, x_there, told, Of::SLOT * 4);
  } else {
    __syncwarp();
    if (args.ranks > 1 && !(args.sums & INSTEAD_OF_X)) (fence_mbarrier_init(), cluster_arrive_relaxed());
    Of(args, work, memory, x_there, stages, told).run();
  }
}

#define ENTRY(NAME, F, G, ROWS, PAIR) \
  extern "C" __global__ void __launch_bounds__(BOUND, 1) NAME(const __grid_constant__ Args args) { run<F, G, ROWS, PAIR>(args); }
#define FORMAT(NAME, ROWS) ENTRY(gemm_small_m_##NAME##_rows##ROWS, NAME, NAME, ROWS, false) ENTRY(gemm_small_m_pair_##NAME##_rows##ROWS, NAME, NAME, ROWS, true)

#define FORMATS(ROWS)                                                                                              \
  FORMAT(q4_k, ROWS) FORMAT(q5_k, ROWS) FORMAT(q6_k, ROWS) FORMAT(q4_0, ROWS) FORMAT(q4_1, ROWS) FORMAT(q5_0, ROWS) \
  FORMAT(q5_1, ROWS) FORMAT(q8_0, ROWS) ENTRY(gemm_small_m_q4_k_q6_k_rows##ROWS, q4_k, q6_k, ROWS, false)
FORMATS(8)
FORMATS(16)
