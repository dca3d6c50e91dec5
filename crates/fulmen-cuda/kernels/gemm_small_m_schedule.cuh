// What a launch of `gemm_small_m.cu` is given, and how its work is dealt to clusters, blocks and warps.
#pragma once

#include "l2_prefetch.cuh"
#include "forwarding.cuh"

constexpr u32 MAX_WARPS = 12;
constexpr u32 MAX_PARTS = 3;
constexpr u32 MAX_CHUNKS = 52;  // of a block, each with a barrier: more than fit
constexpr u32 MAX_DEPTH = 4;
static_assert(sizeof(Told) + sizeof(u64) * (MAX_CHUNKS + MAX_WARPS * MAX_DEPTH) <= 1024, "static shared memory, as `gemm_small_m/config.rs` has it");
constexpr u32 TILE = RUN;

// Small numbers only: a division of floats is short.
DEVICE u32 quotient(u32 of, u32 by) { return (u32)__fdividef((float)of + 0.5f, (float)by); }

// Things dealt to so many: the first `extra` have one more than `each`.
struct Shares {
  u32 each, extra;

  DEVICE u32 begin(u32 index) const { return index * each + min(index, extra); }
  // Whose a thing is.
  DEVICE u32 owner(u32 thing) const {
    const u32 more = extra * (each + 1);
    return thing < more ? quotient(thing, each + 1) : extra + quotient(thing - more, each);
  }
};

struct Part {
  const u8* weight;
  float* out;
  const float* bias;      // or null
  const float* residual;  // or null
  u32 rows;
  u32 row_bytes;
  u32 tile;  // its first, of those of its format
  u32 wide;  // whether four neighbours of `out`, `bias` and `residual` are 16 bytes at a boundary of 16
};

// Flags: there is a place for the early sums of each tile, not of each warp; pushed sums take the place of x.
constexpr u32 EARLY_EACH = 1, INSTEAD_OF_X = 2;

struct Args {
  TensorMap map[MAX_PARTS];  // of the weights of the first format, where rows are whole pieces
  const u8* x[2];        // for the first format and for the second
  const float* factors;  // of the rows of x, if they are scaled
  Incoming from;
  Outgoing to;         // where all columns and one part, a wide one, are there
  u32 columns;         // rows of x
  u32 blocks;          // of 32 columns
  u32 chunks;          // of 256 columns
  u32 parts;           // with a pair 1
  u32 first_parts;     // of the first format,
  u32 first_clusters;  // and the clusters that work on them
  Shares tiles[2];     // of each format, to its clusters
  Shares ranked;       // chunks, to the blocks of a cluster
  u32 ranks;           // blocks of a cluster; no more than chunks
  u32 warps;           // of a block, but for the one that brings x
  u32 depth;           // stages of a ring: 2 to 4
  u32 stage_bytes;
  u32 x_bytes;     // of shared memory for x, and for sums when x is no longer needed
  u32 sums;        // where the sums that blocks push begin, in bytes; the lowest bits are flags
  float epsilon;   // of the norm
  u32 maps;        // how many there are
  Part part[MAX_PARTS];
  Ahead ahead;
};

// Tiles [tile, end) of a format are the cluster's, chunks [chunk, past) this block's, and its items are dealt to the warps.
struct Work {
  u32 rank, cluster, tile, end, chunk, past, chunks;
  bool second;  // format
  Shares items;

  DEVICE Work(const Args& args, bool mixed) {
    cluster = quotient(blockIdx.x, args.ranks), rank = blockIdx.x - cluster * args.ranks;
    second = mixed && cluster >= args.first_clusters;
    if (second) cluster -= args.first_clusters;
    tile = args.tiles[second].begin(cluster), end = args.tiles[second].begin(cluster + 1);
    chunk = args.ranked.begin(rank), past = args.ranked.begin(rank + 1), chunks = past - chunk;
    const u32 all = (end - tile) * chunks;
    items.each = quotient(all, args.warps), items.extra = all - items.each * args.warps;
  }
};

// Where a tile is.
struct Place {
  u32 part, row, rows;

  DEVICE Place(const Args& args, const Work& work, u32 tile) : part(work.second ? args.first_parts : 0) {
    const u32 past = work.second ? args.parts : args.first_parts;
    while (part + 1 < past && tile >= args.part[part + 1].tile) part++;
    row = (tile - args.part[part].tile) * TILE;
    rows = min(TILE, args.part[part].rows - row);
  }
  // Its rows of a weight.
  DEVICE const u8* at(const Args& args, u32 weight) const { return args.part[part + weight].weight + (u64)row * args.part[part].row_bytes; }
};

// Items in turn.
struct Walk {
  u32 tile, chunk;

  // Whether the next item is of another tile.
  DEVICE bool next(const Work& work) {
    if (++chunk < work.past) return false;
    chunk = work.chunk;
    tile++;
    return true;
  }
};
