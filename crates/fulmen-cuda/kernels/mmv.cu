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
  u32 lanes;     // of a warp that work on a row: 8, 16, 32
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
  Item item[MAX_ITEMS];
};

// The rows of one warp: it takes every WARPSth task of an item, a task being neighbouring rows (of both weights of a pair).
struct Walk {
  u32 task, part, row, rows;

  DEVICE void begin() { task = threadIdx.x / 32, part = 0; }

  // Goes to the task; false if the item has no more.
  DEVICE bool seek(const Item& item) {
    const u32 most = (item.pair ? 16 : 32) / item.lanes;
#pragma unroll 1
    for (; part < item.parts; part += item.pair ? 2 : 1) {
      const Part& p = item.part[part];
      u32 first = share(p, blockIdx.x), all = share(p, blockIdx.x + 1) - first, tasks = (all + most - 1) / most;
      if (task < tasks) {
        row = first + task * most;
        rows = min(most, all - task * most);
        return true;
      }
      task -= tasks;
    }
    return false;
  }

  DEVICE const u8* weight(const Item& item, u32 which) const { return item.part[which].weight + (u64)row * item.part[which].row_bytes; }
};

// What a warp fetches, ahead of what it computes, through all items.
struct Ahead {
  Walk walk;
  u32 item, segment;
  bool more;

  DEVICE void begin(const Args& args) {
    item = segment = 0;
    walk.begin();
    seek(args);
  }
  DEVICE void seek(const Args& args) {
#pragma unroll 1
    while (!(more = walk.seek(args.item[item])) && item + 1 < args.items) {
      item++;
      walk.begin();
    }
  }
  DEVICE void fetch(const Args& args, u8* to, u64* barrier) {
    if (!more) return;
    const Item& it = args.item[item];
    if ((threadIdx.x & 31) == 0) {
      const u32 which = walk.part;
      const u8* from = walk.weight(it, which);
      u32 bytes = walk.rows * it.part[which].row_bytes;
      if (it.pair) {
        const u8* other = walk.weight(it, which + 1);
        barrier_expect(barrier, pieces_around(from, bytes) + pieces_around(other, bytes));
        bulk_copy(to, from, bytes, barrier);
        bulk_copy(to + args.stage_bytes / 2, other, bytes, barrier);
      } else {
        if (it.segments > 1) {
          u32 begin = segment * (SEGMENT / 4 * it.chunk);
          from += begin;
          bytes = min(bytes - begin, SEGMENT / 4 * it.chunk);
        }
        barrier_expect(barrier, pieces_around(from, bytes));
        bulk_copy(to, from, bytes, barrier);
      }
    }
    if (++segment == it.segments) {
      segment = 0;
      walk.task += WARPS;
      seek(args);
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
  for (; unit < past; unit += lanes, x += lanes / 8 * GROUP) {
    F weights;
    weights.decode(row, unit, unit * 2 + 1 < blocks);
    value += weights.dot(inner, x);
  }
  return value;
}

// The products of one item: the rows of this warp.
DEVICE void products(const Args& args, const Item& item, Ring& ring, Ahead& ahead, const u8* x) {
  const u32 lanes = item.lanes, lane = threadIdx.x & 31, inner = lane & (lanes - 1), group = lane / lanes;
  const u32 blocks = (item.k + 31) / 32, units = (blocks + 1) / 2;
  Walk walk;
  walk.begin();
#pragma unroll 1
  while (walk.seek(item)) {
    const u32 which = walk.part + (item.pair ? group & 1 : 0), index = item.pair ? group >> 1 : group;
    const Part& part = item.part[which];
    const u8* row = ring.memory + (item.pair ? (group & 1) * (args.stage_bytes / 2) : 0) + ((u32)(u64)walk.weight(item, which) & 15) +
                    min(index, walk.rows - 1) * part.row_bytes;
    const u32 format = item.format[walk.part];
    float value = 0;
    u32 unit = inner;
#pragma unroll 1
    for (u32 segment = 0; segment < item.segments; segment++) {
      const u32 past = item.segments > 1 ? min(units, (segment + 1) * SEGMENT) : units;
      barrier_wait(&ring.barriers[ring.stage], ring.parity);
      // Where the row would begin if all of it were here.
      const u8* here = row + ring.stage * args.stage_bytes - segment * (SEGMENT / 4 * item.chunk);
      const u8* at = x + unit / 8 * GROUP;
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
      unit += SEGMENT;
      __syncwarp();
      ahead.fetch(args, ring.memory + ring.stage * args.stage_bytes, &ring.barriers[ring.stage]);
      if (++ring.stage == args.depth) {
        ring.stage = 0;
        ring.parity ^= 1;
      }
    }
#pragma unroll 1
    for (u32 step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(FULL_WARP, value, step);
    float other = item.pair ? __shfl_xor_sync(FULL_WARP, value, lanes) : 0;
    if (inner == 0 && index < walk.rows) {
      u32 to = walk.row + index;
      if (item.pair) {
        if (!(group & 1)) part.out[to] = value / (1.0f + __expf(-value)) * other;
      } else {
        if (part.bias) value += part.bias[to];
        // Another block may have written it in this launch.
        if (part.residual) value += __ldcg(part.residual + to);
        part.out[to] = value;
      }
    }
    walk.task += WARPS;
  }
}

// All blocks have come here, and what they wrote is visible.
struct GridBarrier {
  u64* arrived;
  u64 target;

  // By one thread, after the block's other threads are done.
  DEVICE void arrive() {
    u64 before;
    asm volatile("atom.add.release.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(arrived) : "memory");
    target = target ? target + gridDim.x : (before / gridDim.x + 1) * gridDim.x;
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
  gain.load(args.item[0]);
  wait_for_previous();
  GridBarrier grid = {args.arrived, 0};
#pragma unroll 1
  for (u32 i = 0;; i++) {
    quantise(args.item[i], gain, memory, scratch);
    __syncthreads();
    products(args, args.item[i], ring, ahead, memory);
    if (i + 1 == args.items) return;
    __syncthreads();
    if (threadIdx.x == 0) grid.arrive();
    gain.load(args.item[i + 1]);
    if (threadIdx.x == 0) grid.wait();
    __syncthreads();
  }
}
