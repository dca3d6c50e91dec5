// targets: 90
// Products of 2 to 16 rows with block-quantised weights: y[m, n] = x[m, k] · W[n, k]ᵀ, every byte of W read once.
//
// - x comes in 16 bits, from `halves.cu` or from the kernel that made it, and is copied into shared memory whole. Tensor cores multiply: 16 rows of W, decoded in
//   registers, are the rows of A, the rows of x the columns of B.
// - A tile is 16 rows of W (of both weights where they come in pairs, which then share what is loaded of x). Tiles are dealt to the
//   clusters of the grid; the blocks of a cluster share the columns, so that few rows of W still fill the GPU and no block needs all
//   of x.
// - An item is a tile and a chunk of 256 columns. The items of a block lie in a row, tile after tile, and each warp has the same
//   number of neighbours: so most of its sums stay in registers, and warps share no more than the first and the last of its tiles.
// - Each warp copies its items, as they lie in a GGUF file, into a ring of its own, and waits for no other before the end. Then what
//   several warps have of a tile is added up in their order, and what several blocks have in theirs.
// - Weights are fetched before the kernel ahead is done: they depend on nothing.
#include "handing.cuh"
#include "mmq_formats.cuh"

constexpr u32 MAX_WARPS = 12;
constexpr u32 BOUND = 512;  // threads that there are registers for: so that a block of a small kernel may run beside
constexpr u32 MAX_PARTS = 3;
constexpr u32 MAX_CHUNKS = 64;  // of a block, each with a barrier: more than fit
constexpr u32 TILE = RUN;

struct Part {
  const u8* weight;
  float* out;
  const float* bias;      // or null
  const float* residual;  // or null
  u32 rows;
  u32 row_bytes;
};

struct Args {
  const u8* x[2];        // for the first format and for the second
  const float* factors;  // of the rows of x, if they are scaled
  Incoming from;
  Outgoing to;  // where all columns and one part are there
  u32 columns;           // rows of x
  u32 blocks;            // of 32 columns
  u32 chunks;            // of 256 columns
  u32 parts;             // with a pair 2: gate and up
  u32 first_parts;       // of the first format,
  u32 first_clusters;    // and the clusters that work on them
  u32 clusters;          // in all
  u32 ranks;             // blocks of a cluster; no more than chunks
  u32 warps;             // of a block
  u32 depth;             // stages of a ring: 2 to 4
  u32 stage_bytes;
  u32 x_bytes;     // of shared memory for x, and for sums when x is no longer needed
  u32 early_each;  // whether there is a place for the early sums of each tile, not of each warp
  float epsilon;   // of the norm
  Part part[MAX_PARTS];
};

// ---------------------------------------------------------------- instructions

// c += a · b, 16 x 16 times 16 x 8: row g, columns 2t and 2t + 1 in c[0], c[1], row g + 8 in c[2], c[3].
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

typedef u32 Shared;  // an address in shared memory

DEVICE void copy16(Shared to, const u8* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until no more than N groups of copies are under way.
template <int N>
DEVICE void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

DEVICE void prefetch(const float* from) { asm volatile("prefetch.global.L1 [%0];" ::"l"(from)); }

// What another block of the cluster has at the same place.
DEVICE float4 remote4(const float* pointer, u32 rank) {
  u32 there;
  float4 value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(pointer)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(there));
  return value;
}
DEVICE void add4(float4& to, float4 more) { to.x += more.x, to.y += more.y, to.z += more.z, to.w += more.w; }

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
    for (int n = 0; n < N; n++) mma(v[n], a, b[2 * n], b[2 * n + 1]);
  }
  DEVICE void put(float* to) const {
#pragma unroll
    for (int i = 0; i < N * 4; i++) to[i * 32 + (threadIdx.x & 31)] = v[i / 4][i % 4];
  }
  // Of float `at` of those that `put` has written; it and the next three have columns two apart.
  static DEVICE u32 row(u32 at) { return at % 32 / 4 + at / 64 % 2 * 8; }
  static DEVICE u32 column(u32 at) { return at / 128 * 8 + at % 4 * 2 + at / 32 % 2; }
};

// Adds the products of a chunk. `x` is the lane's place in it.
template <class F, int ROWS, int WEIGHTS>
DEVICE void multiply(Sums<ROWS>* total, F (&weights)[WEIGHTS], const u8* x) {
  constexpr u32 STEP = Halves<ROWS>::STEP;
  Sums<ROWS> sums[WEIGHTS] = {}, least[WEIGHTS] = {};
#pragma unroll 1
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

// ---------------------------------------------------------------- work

// Tiles [tile, end) of the parts from `first` on are the cluster's, chunks [chunk, past) this block's.
struct Work {
  u32 first, tile, end, chunk, past, warps;

  DEVICE Work(const Args& args, u32 first, u32 past_part, u32 cluster, u32 clusters, bool pair) : first(first), warps(args.warps) {
    u32 tiles = 0;
    for (u32 part = first; part < (pair ? first + 1 : past_part); part++) tiles += (args.part[part].rows + TILE - 1) / TILE;
    tile = cluster * tiles / clusters, end = (cluster + 1) * tiles / clusters;
    const u32 rank = blockIdx.x % args.ranks;
    chunk = rank * args.chunks / args.ranks, past = (rank + 1) * args.chunks / args.ranks;
  }
  DEVICE u32 chunks() const { return past - chunk; }
  DEVICE u32 items() const { return (end - tile) * chunks(); }
  // The items of a warp begin here.
  DEVICE u32 begin(u32 warp) const { return warp * items() / warps; }
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
  // Its rows of a weight.
  DEVICE const u8* at(const Args& args, u32 weight) const { return args.part[part + weight].weight + (u64)row * args.part[part].row_bytes; }
};

// Items in turn.
struct Walk {
  u32 tile, chunk;

  DEVICE Walk(const Work& work, u32 item) : tile(work.tile + item / work.chunks()), chunk(work.chunk + item % work.chunks()) {}
  // Whether the next item is of another tile.
  DEVICE bool next(const Work& work) {
    if (++chunk < work.past) return false;
    chunk = work.chunk;
    tile++;
    return true;
  }
};

// What is made of a tile's sums: of row `index` of the tile and rows `column`, `column` + 2, + 4 and + 6 of x. `other` is of the second
// weight. The lanes of a warp have 128 neighbours of those that `put` has written.
template <int ROWS, bool PAIR>
DEVICE void finish(const Args& args, const Place& place, u32 at, float4 value, float4 other) {
  const u32 column = Sums<ROWS>::column(at), index = Sums<ROWS>::row(at);
  if (index < place.rows) {
    const Part& part = args.part[place.part];
    const u32 row = place.row + index;
    float v[4] = {value.x, value.y, value.z, value.w}, gain[4] = {other.x, other.y, other.z, other.w}, more[4] = {};
    const float bias = !PAIR && part.bias ? part.bias[row] : 0, norm = !PAIR && args.to.gain ? args.to.gain[row] : 1;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (!PAIR && part.residual && column + 2 * i < args.columns) more[i] = part.residual[(u64)(column + 2 * i) * part.rows + row];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v[i] = PAIR ? __fdividef(v[i], 1.0f + __expf(-v[i])) * gain[i] : v[i] + bias + more[i];
      if (column + 2 * i < args.columns) part.out[(u64)(column + 2 * i) * part.rows + row] = v[i];
    }
    // All tiles are whole then.
    if (args.to.image[0]) hand_on<ROWS, !PAIR>(args.to, place.row / TILE, part.rows / TILE, at / 128 * 8, v, norm);
  }
}

// ---------------------------------------------------------------- a block

// Shared memory: x, the rings, early sums.
template <class F, int ROWS, bool PAIR>
struct Block {
  static constexpr int WEIGHTS = PAIR ? 2 : 1, TOGETHER = F::LIGHT ? WEIGHTS : 1;
  static constexpr u32 STRIDE = F::PIECES * 16, TILE_BYTES = TILE * STRIDE;
  static constexpr u32 AT_ONCE = 32 / F::PIECES, COPIES = (TILE + AT_ONCE - 1) / AT_ONCE;  // rows that are copied at once
  static constexpr u32 FLOATS = Sums<ROWS>::FLOATS, SLOT = WEIGHTS * FLOATS;

  const Args& args;
  const Work work;
  u8* memory;
  u32* begins;  // where the items of the warps begin, and where they end
  Told<MAX_WARPS>& told;
  const u32 warp, lane;

  // The lane goes through a shuffle, so that what is made of it is not computed again for every item.
  DEVICE Block(const Args& args, const Work& work, u8* memory, u32* begins, Told<MAX_WARPS>& told)
      : args(args), work(work), memory(memory), begins(begins), told(told), warp(threadIdx.x / 32), lane(__shfl_sync(FULL_WARP, threadIdx.x & 31, threadIdx.x & 31)) {}

  // Sums of warps: of the last tile of each, and of tiles before it that several warps or blocks share, each of which one warp ends.
  // The sums of the whole block for each of its tiles.
  DEVICE float* late(u32 of) const { return (float*)memory + of * SLOT; }
  DEVICE float* early(u32 of, u32 tile) const {
    float* all = (float*)(memory + args.x_bytes + args.warps * args.depth * args.stage_bytes);
    return all + (args.early_each ? tile - work.tile : of) * SLOT;
  }
  DEVICE float* whole(u32 index) const { return late(args.warps + index); }

  // All that the warp does alone. Returns whether its last sums are still in `total`.
  DEVICE bool consume(const u8* x_from, u64* x_there, Sums<ROWS> (&total)[WEIGHTS]) const {
    const u32 begin = work.begin(warp), end = work.begin(warp + 1);
    if (lane == 0) begins[warp + 1] = end;
    if (threadIdx.x == 0) begins[0] = 0;
    u8* ring = memory + args.x_bytes + warp * args.depth * args.stage_bytes;
    const Shared pieces = shared_address(ring) + lane * 16;
    const u32 row_bytes = args.part[work.first].row_bytes;  // the same for all of a format

    Walk ahead(work, begin);
    const u32 start = lane / F::PIECES * row_bytes + lane % F::PIECES * 16;  // of the lane's piece
    // A tile in memory, from a 16-byte boundary on.
    const u8* from[WEIGHTS];
    u32 skip[WEIGHTS], all = 0;
    auto seek = [&] {
      const Place place(args, work.first, ahead.tile);
      all = place.rows * row_bytes;
#pragma unroll
      for (int w = 0; w < WEIGHTS; w++) {
        const u8* at = place.at(args, w);
        skip[w] = F::ALIGNED ? 0 : (u32)(u64)at & 15, from[w] = at - skip[w];
      }
    };
    auto fetch = [&](u32 stage, bool more) {
      if (more) {
        const Shared to = pieces + stage * args.stage_bytes;
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++) {
          const u32 base = skip[w] + ahead.chunk * F::BYTES + start, past = skip[w] + all;
#pragma unroll
          for (int i = 0; i < COPIES; i++) {
            const u32 exact = base + i * AT_ONCE * row_bytes, offset = F::ALIGNED ? exact : exact & ~15u;
            // Pieces past the row are of the next one, and only those past the last one are not there.
            if (lane < min(AT_ONCE, TILE - i * AT_ONCE) * F::PIECES && offset < past) copy16(to + w * TILE_BYTES + i * AT_ONCE * STRIDE, from[w] + offset);
          }
        }
        if (ahead.next(work)) seek();
      }
      copies_commit();
    };
    seek();
    // The weights of the step have driven the gain out of the cache.
    if (!PAIR && args.to.gain && threadIdx.x == 0) bulk_prefetch(args.to.gain + work.tile * TILE, (work.end - work.tile) * TILE * 4);
#pragma unroll 1
    for (u32 i = 0; i < args.depth; i++) fetch(i, i < end - begin);

    Look<ROWS, MAX_WARPS> look(args.from, work.chunk, work.past, args.chunks);
    wait_for_previous();
    auto copy_x = [&] {
      if (lane > 0) return;
      for (u32 i = warp; i < work.chunks(); i += args.warps) {
        barrier_expect(&x_there[i], Halves<ROWS>::BYTES);
        bulk_copy(memory + i * Halves<ROWS>::BYTES, x_from + (u64)(work.chunk + i) * Halves<ROWS>::BYTES, Halves<ROWS>::BYTES, &x_there[i]);
      }
    };
    // Where the factors of the lane's columns are; they are needed at the end of a tile.
    const float* factors = (args.from.words ? told.factors : args.factors) + (lane & 3) * 2;
    if (args.from.words) {
      look.ask();
      copy_x();
      if (!look.taken(told, args.epsilon)) {
        for (u32 i = 0; i < work.chunks(); i++) barrier_wait(&x_there[i], 0);
        look.make(told, memory, F::ORDER, work.chunk * HALVES_CHUNK, work.chunks() * HALVES_CHUNK);
      }
    } else {
      copy_x();
      prefetch(factors);
    }

    Walk walk(work, begin);
    u32 left = end - begin;
    bool began = walk.chunk == work.chunk;  // whether the tile did with this warp
    u32 stage = 0;
    // Where the lane's rows begin, but for the place of the chunk among 16 bytes.
    u32 low[WEIGHTS][2] = {};
    auto arrive = [&] {
      if (F::ALIGNED) return;
      const Place place(args, work.first, walk.tile);
#pragma unroll
      for (int w = 0; w < WEIGHTS; w++)
#pragma unroll
        for (int r = 0; r < 2; r++) low[w][r] = (u32)(u64)place.at(args, w) + (lane / 4 + r * 8) * row_bytes;
    };
    if (begin < end) arrive();
#pragma unroll 1
    while (left > 0) {
      if (args.depth == 2)
        copies_wait<1>();
      else if (args.depth == 3)
        copies_wait<2>();
      else
        copies_wait<3>();
      __syncwarp();
      barrier_wait(&x_there[walk.chunk - work.chunk], 0);
      const u8* x = memory + (walk.chunk - work.chunk) * Halves<ROWS>::BYTES + lane * Halves<ROWS>::LANE;
#pragma unroll
      for (int first = 0; first < WEIGHTS; first += TOGETHER) {
        F weights[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
          const int w = first + i;
          const u8* rows[2];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            rows[r] = ring + stage * args.stage_bytes + w * TILE_BYTES + (lane / 4 + r * 8) * STRIDE;
            if (!F::ALIGNED) rows[r] += (low[w][r] + walk.chunk * F::BYTES) & 15;
          }
          weights[i].open(rows[0], rows[1], args.blocks - walk.chunk * 8, lane & 3);
        }
        multiply<F, ROWS, TOGETHER>(total + first, weights, x);
      }
      const u32 tile = walk.tile;
      left--;
      const bool ends = walk.next(work), alone = ends && began && args.ranks == 1;
      __syncwarp();
      if (ends || left == 0) {
#pragma unroll
        for (int n = 0; n < Sums<ROWS>::N; n++) {
          const float2 factor = *(const float2*)(factors + n * 8);
#pragma unroll
          for (int i = 0; i < 4 * WEIGHTS; i++) total[i / 4].v[n][i % 4] *= i % 2 ? factor.y : factor.x;
        }
      }
      // A tile that no one else has a part of; the codes are no longer needed.
      if (alone) {
        float* sums = (float*)(ring + stage * args.stage_bytes);
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++) total[w].put(sums + w * FLOATS);
        __syncwarp();
        const Place place(args, work.first, tile);
#pragma unroll 1
        for (u32 at = lane * 4; at < FLOATS; at += 128)
          finish<ROWS, PAIR>(args, place, at, *(const float4*)(sums + at), *(const float4*)(sums + (WEIGHTS - 1) * FLOATS + at));
        __syncwarp();
      }
      fetch(stage, left >= args.depth);
      if (++stage == args.depth) stage = 0;
      if (left == 0) return !alone;
      if (!ends) continue;
      if (!alone) {
#pragma unroll
        for (int w = 0; w < WEIGHTS; w++) total[w].put(early(warp, tile) + w * FLOATS);
      }
#pragma unroll
      for (int w = 0; w < WEIGHTS; w++) total[w] = {};
      began = true;
      arrive();
    }
    return false;
  }

  // Adds up what the warps have of the tiles that are not done.
  DEVICE void reduce() const {
    const u32 chunks = work.chunks();
    for (u32 i = threadIdx.x * 4; i < (work.end - work.tile) * FLOATS; i += blockDim.x * 4) {
      const u32 index = i / FLOATS, at = i % FLOATS, tile = work.tile + index, begin = index * chunks, end = begin + chunks;
      u32 w = 0;
      while (begins[w + 1] <= begin) w++;
      if (begins[w + 1] >= end && args.ranks == 1) continue;
      float4 value = {}, other = {};
      for (; w < args.warps && begins[w] < end; w++) {
        if (begins[w] == begins[w + 1]) continue;
        const float* sums = (begins[w + 1] <= end ? late(w) : early(w, tile)) + at;
        add4(value, *(const float4*)sums);
        if (PAIR) add4(other, *(const float4*)(sums + FLOATS));
      }
      if (args.ranks == 1) {
        finish<ROWS, PAIR>(args, Place(args, work.first, tile), at, value, other);
      } else {
        *(float4*)(whole(index) + at) = value;
        if (PAIR) *(float4*)(whole(index) + FLOATS + at) = other;
      }
    }
  }

  // The tiles of a cluster of several blocks: each finishes every `ranks`th.
  DEVICE void combine() const {
    const u32 rank = blockIdx.x % args.ranks, mine = (work.end - work.tile + args.ranks - 1 - rank) / args.ranks;
    for (u32 i = threadIdx.x * 4; i < mine * FLOATS; i += blockDim.x * 4) {
      const u32 index = rank + i / FLOATS * args.ranks, at = i % FLOATS;
      float4 value = {}, other = {};
      for (u32 from = 0; from < args.ranks; from++) {
        add4(value, remote4(whole(index) + at, from));
        if (PAIR) add4(other, remote4(whole(index) + FLOATS + at, from));
      }
      finish<ROWS, PAIR>(args, Place(args, work.first, work.tile + index), at, value, other);
    }
  }

  DEVICE void run(const u8* x, u64* x_there) const {
    Sums<ROWS> total[WEIGHTS] = {};
    const bool kept = consume(x, x_there, total);
    // From here on x is not needed: sums take its place.
    __syncthreads();
    if (kept) {
#pragma unroll
      for (int w = 0; w < WEIGHTS; w++) total[w].put(late(warp) + w * FLOATS);
    }
    __syncthreads();
    reduce();
    if (args.ranks > 1) {
      __syncthreads();
      cluster_arrive();
      cluster_wait();
      combine();
      // No block may end while others read from it.
      cluster_arrive();
      cluster_wait();
    }
  }
};

template <class F, class G, bool MIXED, int ROWS, bool PAIR>
DEVICE void run(const Args& args) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ u64 x_there[MAX_CHUNKS];
  __shared__ u32 begins[MAX_WARPS + 1];
  __shared__ Told<MAX_WARPS> told;
  for (u32 i = threadIdx.x; i < MAX_CHUNKS; i += blockDim.x) barrier_init(&x_there[i], 1);
  barriers_ready();
  __syncthreads();
  let_next_start();
  const u32 cluster = blockIdx.x / args.ranks;
  if (!MIXED || cluster < args.first_clusters) {
    const Work work(args, 0, MIXED ? args.first_parts : args.parts, cluster, MIXED ? args.first_clusters : args.clusters, PAIR);
    Block<F, ROWS, PAIR>(args, work, memory, begins, told).run(args.x[0], x_there);
  } else {
    const Work work(args, args.first_parts, args.parts, cluster - args.first_clusters, args.clusters - args.first_clusters, PAIR);
    Block<G, ROWS, PAIR>(args, work, memory, begins, told).run(args.x[1], x_there);
  }
}

#define ENTRY(NAME, F, G, MIXED, ROWS, PAIR)                                                                          \
  extern "C" __global__ void __launch_bounds__(BOUND, 1) NAME(const __grid_constant__ Args args) {                           \
    run<F, G, MIXED, ROWS, PAIR>(args);                                                                               \
  }
#define FORMAT(NAME, ROWS)                                             \
  ENTRY(mmq_##NAME##_rows##ROWS, NAME, NAME, false, ROWS, false)       \
  ENTRY(mmq_pair_##NAME##_rows##ROWS, NAME, NAME, false, ROWS, true)

#define FORMATS(ROWS)                                                                                                       \
  FORMAT(q4_k, ROWS) FORMAT(q5_k, ROWS) FORMAT(q6_k, ROWS) FORMAT(q4_0, ROWS) FORMAT(q4_1, ROWS) FORMAT(q5_0, ROWS)           \
  FORMAT(q5_1, ROWS) FORMAT(q8_0, ROWS) ENTRY(mmq_q4_k_q6_k_rows##ROWS, q4_k, q6_k, true, ROWS, false)
FORMATS(8)
FORMATS(16)
