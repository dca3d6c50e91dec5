// targets: 90
// Products of one row with block-quantised weights, y[n] = x[k] · W[n, k]ᵀ, one after the other in one kernel, bound by the bytes
// of W.
//
// - x is quantised to 8 bits in blocks of 64 by every block of the grid for itself, after an optional RMS norm, so that norm,
//   quantisation and product are one step of the chain.
// - A warp works on 32 / lanes neighbouring rows at a time, `lanes` lanes on one row; a lane decodes units of 64 elements with
//   dp4a. The rows come as one bulk copy into a ring of the warp's own in shared memory, so no warp waits for another, and
//   memory is read in long pieces. Weights lie there as they lie in a GGUF file.
// - Weights depend on nothing, so rings are filled ahead: before the kernel ahead of this one is done, and while blocks wait for
//   each other between two products. Memory is busy all the while.
// - There is one block for each multiprocessor, and all of them run at once: between two products they wait for each other. The
//   host sees to it that no two such kernels compete for multiprocessors.
#include "mmv.cuh"

constexpr u32 MAX_DEPTH = 4;
constexpr u32 MAX_ITEMS = 8;

enum { Q4_K, Q5_K, Q6_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 };

// One x and the weights that it meets.
struct Item {
  const float* x;
  const float* gamma;  // null: no norm
  float* normed;       // where the norm's result goes, or null
  float epsilon;
  u32 k;
  u32 parts;     // of a pair 2: gate and up
  u32 pair;      // whether what comes out is silu(gate) · up
  u32 lanes;     // of a warp that work on a row: 2 to the power of this; 3, 4 or 5
  u32 segments;  // stages that a row takes, of SEGMENT units; 1 where a warp works on several rows
  u32 format[MAX_PARTS];
  u32 chunk;  // bytes of 256 elements, where there are segments
  Part part[MAX_PARTS];
};

struct Args {
  u64* arrived;  // how often blocks have come to the end of an item, in all launches
  u32 items;
  u32 stage_bytes;
  u32 depth;    // stages of a ring
  u32 x_bytes;  // of shared memory for the longest x
  u32 rehearsals;
  u32 unused;
  Item item[MAX_ITEMS];
};

// The rows of one warp: it takes every WARPSth task of an item, a task being neighbouring rows (of both weights of a pair).
struct Walk {
  u32 task, part;
  u32 first, all, tasks;  // rows and tasks of the block in this part

  DEVICE void begin() { task = threadIdx.x / 32, part = 0; }

  // Goes to the part that the task is in; false if the item has no more.
  DEVICE bool seek(const Item& item) {
    const u32 log_rows = 5 - item.lanes - item.pair;
#pragma unroll 1
    for (; part < item.parts; part += 1 + item.pair) {
      const Part& p = item.part[part];
      first = share(p, blockIdx.x), all = share(p, blockIdx.x + 1) - first, tasks = (all + (1 << log_rows) - 1) >> log_rows;
      if (task < tasks) return true;
      task -= tasks;
    }
    return false;
  }
  // The same if the part has it still.
  DEVICE bool next(const Item& item) {
    task += WARPS;
    return task < tasks || (task -= tasks, part += 1 + item.pair, seek(item));
  }
  DEVICE u32 row(u32 log_rows) const { return first + (task << log_rows); }
  DEVICE u32 rows(u32 log_rows) const { return min(1u << log_rows, all - (task << log_rows)); }
};

// What a warp fetches, ahead of what it computes, through all items.
struct Ahead {
  Walk walk;
  u32 item, segment;
  bool more;

  DEVICE void begin(const Args& args) {
    item = segment = 0;
    walk.begin();
    more = walk.seek(args.item[0]);
    skip(args);
  }
  // Goes on to the next item that has rows for this warp, if this one has none left.
  DEVICE void skip(const Args& args) {
#pragma unroll 1
    while (!more && item + 1 < args.items) {
      item++;
      walk.begin();
      more = walk.seek(args.item[item]);
    }
  }
  DEVICE void fetch(const Args& args, u8* to, u64* barrier) {
    if (!more) return;
    const Item& it = args.item[item];
    if ((threadIdx.x & 31) == 0) {
      const Part& part = it.part[walk.part];
      const u32 log_rows = 5 - it.lanes - it.pair;
      const u64 begin = (u64)walk.row(log_rows) * part.row_bytes;
      const u8* from = part.weight + begin;
      u32 bytes = walk.rows(log_rows) * part.row_bytes;
      if (it.pair) {
        const u8* other = it.part[1].weight + begin;
        barrier_expect(barrier, pieces_around(from, bytes) + pieces_around(other, bytes));
        bulk_copy(to, from, bytes, barrier);
        bulk_copy(to + args.stage_bytes / 2, other, bytes, barrier);
      } else {
        if (it.segments > 1) {
          const u32 skip = segment * (SEGMENT / 4 * it.chunk);
          from += skip;
          bytes = min(bytes - skip, SEGMENT / 4 * it.chunk);
        }
        barrier_expect(barrier, pieces_around(from, bytes));
        bulk_copy(to, from, bytes, barrier);
      }
    }
    if (++segment == it.segments) {
      segment = 0;
      more = walk.next(it);
      skip(args);
    }
  }
};

// A warp's ring: stages that are filled in turn and emptied in turn.
struct Ring {
  u8* memory;
  u64* barriers;
  u32 stage, parity;
};

template <class F>
DEVICE float dot_units(const u8* row, const u8* x, u32 unit, u32 past, u32 lanes, u32 inner, u32 blocks, float value) {
#pragma unroll 1
  for (; unit < past; unit += lanes, x += (lanes >> 3) * GROUP) {
    F weights;
    weights.decode(row, unit, unit * 2 + 1 < blocks);
    value += weights.dot(inner, x);
  }
  return value;
}

// The products of one item: the rows of this warp; in a rehearsal a part of the first of them, of what is in shared memory, for nothing.
DEVICE void products(const Args& args, const Item& item, Ring& ring, Ahead& ahead, const u8* x, bool rehearsal) {
  const u32 log_lanes = item.lanes, lanes = 1 << log_lanes, lane = threadIdx.x & 31, inner = lane & (lanes - 1), group = lane >> log_lanes;
  const u32 blocks = (item.k + 31) / 32, units = (blocks + 1) / 2;
  const u32 pair = item.pair, log_rows = 5 - log_lanes - pair, second = pair & group, index = group >> pair;
  const u8* const in_stage = rehearsal ? x : ring.memory + second * (args.stage_bytes / 2);
  Walk walk;
  walk.begin();
#pragma unroll 1
  for (bool more = walk.seek(item); more; more = walk.next(item)) {
    const Part& part = item.part[walk.part + second];
    const u32 first = walk.row(log_rows), count = walk.rows(log_rows), format = item.format[walk.part];
    const u8* row = in_stage + ((u32)((u64)part.weight + (u64)first * part.row_bytes) & 15) + min(index, count - 1) * part.row_bytes;
    float value = 0;
    u32 unit = inner;
#pragma unroll 1
    for (u32 segment = 0; segment < item.segments; segment++) {
      const u32 past = rehearsal ? min(units, 8u) : item.segments > 1 ? min(units, (segment + 1) * SEGMENT) : units;
      if (!rehearsal) barrier_wait(&ring.barriers[ring.stage], ring.parity);
      // Where the row would begin if all of it were here.
      const u8* here = rehearsal ? x : row + ring.stage * args.stage_bytes - segment * (SEGMENT / 4 * item.chunk);
      const u8* at = x + (unit >> 3) * GROUP;
      auto dot = [&](auto f) { value = dot_units<decltype(f)>(here, at, unit, past, lanes, inner, blocks, value); };
      switch (format) {
        case Q4_K: dot(q4_k()); break;
        case Q5_K: dot(q5_k()); break;
        case Q6_K: dot(q6_k()); break;
        case Q4_0: dot(q4_0()); break;
        case Q4_1: dot(q4_1()); break;
        case Q5_0: dot(q5_0()); break;
        case Q5_1: dot(q5_1()); break;
        default: dot(q8_0());
      }
      if (rehearsal) break;
      unit += SEGMENT;
      __syncwarp();
      ahead.fetch(args, ring.memory + ring.stage * args.stage_bytes, &ring.barriers[ring.stage]);
      if (++ring.stage == args.depth) {
        ring.stage = 0;
        ring.parity ^= 1;
      }
    }
#pragma unroll 1
    for (u32 step = lanes >> 1; step > 0; step >>= 1) value += __shfl_xor_sync(FULL_WARP, value, step);
    float other = __shfl_xor_sync(FULL_WARP, value, lanes & 31);
    if (inner == 0 && index < count && !rehearsal) {
      u32 to = first + index;
      if (pair) {
        if (!second) part.out[to] = value / (1.0f + __expf(-value)) * other;
      } else {
        if (part.bias) value += part.bias[to];
        // Another block may have written it in this launch.
        if (part.residual) value += __ldcg(part.residual + to);
        part.out[to] = value;
      }
    }
    if (rehearsal) break;
  }
}

// All blocks have come to the end of an item, and what they wrote is visible. For one thread of a block.
struct GridBarrier {
  u64* arrived;
  u64 target;

  // Before this block arrives for the first time.
  DEVICE void begin(u64* counter) {
    arrived = counter;
    u64 before;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(before) : "l"(arrived) : "memory");
    target = (before / gridDim.x) * gridDim.x;
  }
  // After the block's other threads are done.
  DEVICE void arrive() {
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(arrived) : "memory");
    target += gridDim.x;
  }
  DEVICE void wait() const {
    u64 now;
    do asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(arrived) : "memory");
    while (now < target);
  }
};

// Shared memory: codes of x, then the rings.
extern "C" __global__ void __launch_bounds__(THREADS, 1) mmv(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ float scratch[32];
  __shared__ u64 barriers[WARPS][MAX_DEPTH];
  const u32 warp = threadIdx.x / 32;
  if ((threadIdx.x & 31) == 0) {
    for (u32 i = 0; i < MAX_DEPTH; i++) barrier_init(&barriers[warp][i], 1);
    barriers_ready();
  }
  __syncwarp();
  let_next_start();

  Ring ring = {memory + args.x_bytes + warp * (args.depth * args.stage_bytes), barriers[warp], 0, 0};
  Ahead ahead;
  ahead.begin(args);
#pragma unroll 1
  for (u32 i = 0; i < args.depth; i++) ahead.fetch(args, ring.memory + i * args.stage_bytes, &ring.barriers[i]);

  Gain gain;
  GridBarrier grid;
  gain.load(args.item[0]);
  // The first turns are rehearsals: the code comes into the caches while the kernel ahead still runs. They need the same code, so
  // they are turns of the same loop.
  const u32 rehearsals = args.rehearsals;
#pragma unroll 1
  for (u32 turn = 0;; turn++) {
    const bool rehearsal = turn < rehearsals;
    const u32 i = rehearsal ? turn : turn - rehearsals;
    const Item& item = args.item[i];
    if (turn == rehearsals) {
      wait_for_previous();
      if (threadIdx.x == 0 && args.items > 1) grid.begin(args.arrived);
    }
    quantise(item, rehearsal, gain, memory, scratch);
    __syncthreads();
    products(args, item, ring, ahead, memory, rehearsal);
    if (!rehearsal && i + 1 == args.items) return;
    __syncthreads();
    if (threadIdx.x == 0 && !rehearsal) grid.arrive();
    gain.load(args.item[turn + 1 == rehearsals ? 0 : i + 1]);
    if (threadIdx.x == 0 && !rehearsal) grid.wait();
    __syncthreads();
  }
}
