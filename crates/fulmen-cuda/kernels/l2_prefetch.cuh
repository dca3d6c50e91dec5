// What a kernel calls into the L2 cache for the attention behind it: see `ahead.rs`.
#pragma once

#include "common.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/tma.cuh"

struct Ahead {
  const u8* caches[2];  // keys and values, or null
  const u32* positions;
  const u32* sequences;  // or null
  u32 rows, heads, n_seqs, capacity;
  u32 width;  // bytes of a head at a position
  u32 most;   // positions of a row

  // This block's share, by a warp.
  DEVICE void call(u32 lane) const {
    if (!caches[0] || lane > 1) return;
#pragma unroll 1
    for (u32 i = blockIdx.x; i < rows * heads; i += gridDim.x) {
      const u32 row = i / heads, head = i - row * heads, position = positions[row], sequence = sequences ? sequences[row] : 0;
      const u32 bytes = min(position, most) * width;
      if (position < capacity && sequence < n_seqs && bytes > 0)
        cp_async_bulk_prefetch_l2_covering(caches[lane] + ((u64)sequence * heads + head) * capacity * width, bytes);
    }
  }
};
