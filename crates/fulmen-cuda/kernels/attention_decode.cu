// Flash decoding for grouped-query attention over an f16 KV cache, fused with the q/k RMS norm, RoPE and the
// KV store of the new rows. Launched by src/kernels/attention_decode.rs for 1 to 16 rows of one sequence, or
// for a decode batch of up to 1024 rows (with the fused store: up to 32, or any number with clusters if the
// call says that its rows decode); one new token per row. Other types of cache and head sizes:
// attention_decode_{q8_0,f32,other_dims}.cu.
//
// Entries: `attention_decode_<head_dim>_single_row` (one row, SPLITS = 8), `..._cluster<SPLITS>` (any number
// of rows; the name is the same where there are no clusters) and `..._mixed` (below). Parts of the kernel, in
// the order of their steps: attention_decode.cuh (the block's course), attention_decode_block.cuh (what a
// block computes, shared memory), _f16.cuh (tiles, ring, loader), _prologue.cuh, _mainloop.cuh,
// _epilogue.cuh; stages of the rings: _f16_entries.cuh.
//
// Grid: x = n_kv_heads * parts * SPLITS, y = rows; 256 threads (8 warps). A block computes up to 8 query
// heads of one KV head for one row, so K and V are read once for all of them; parts = ceil(query heads per KV
// head / 8). SPLITS blocks (1, 2, 4 or 8; fewer with more rows) split the context of a row and part. They are
// a thread block cluster. Before compute capability 9.0, which has none, they leave their partial results in
// global memory, and a second kernel, `attention_decode_combine_<head_dim>`, combines them; a block has 128
// threads and rings of 64 KiB there.
//
// Split-KV: positions are cut into tiles of 16. Tile t belongs to block t % SPLITS and there to warp
// t / SPLITS % 8. Each warp has a private ring of STAGES tiles (K and V) filled by cp.async; no block barrier
// is needed in the mainloop.
//   1. Tile loader: the first STAGES - 1 tiles are requested before griddepcontrol.wait, because all
//      positions but the new ones are in the cache already (PDL; with `fused_store` = 0 the kernel waits
//      first).
//   2. Prologue, one warp per head: q is normalized, rotated, scaled by a power of two and put into shared
//      memory as f16; the new k (normalized, rotated) and v go to the cache and into the tile if it was
//      loaded before.
//   3. Mainloop per warp: S = Q K^T, online softmax, O += P V by mma.m16n8k16 with the query heads as rows 0
//      to 7.
//   4. Combine: the warps' O, max and sum through shared memory; then every block of the cluster sends the
//      slice of O that another block finishes to it (distributed shared memory).
//   5. Epilogue: out = O / sum in f32, and optionally in the form that the next matmul reads: q8 activations
//      (one row; with clusters by single_row entries only), f16 fragments (2 to 32 rows, clusters only) or
//      f16 panels (up to 256 rows, clusters only).
//
// Several rows of one sequence (new tokens of one prompt) must see what the others store: each block then
// computes the new keys and values at positions up to its own whose tile belongs to this block, so a block
// reads only new rows that it stored itself. Blocks of several rows write the same bits to the cache. A block
// reads the cache only afterwards.
//
// `attention_decode_<head_dim>_mixed`: the decode rows of a step that has prefill chunks as well. Their
// number is in device memory (the work list), so the grid has as many rows as fill the device, and its
// clusters take one row after the other. Inactive rows are skipped; their output is 0.
//
// Layouts: q, out [rows, n_heads, head_dim] f32; k, v [rows, n_kv_heads, head_dim] f32; caches in pages of
// f16 (kv.cuh). A tile lies in one page; lane l of a warp looks up the page of the warp's l-th tile, at the
// start and again every 32 tiles, so the mainloop does not wait for the table. Tiles in shared memory:
// attention_decode_f16.cuh. Partial results, f32: per warp O [warp][8][head_dim] over the rings, max and sum
// [warp][8]; per block of a cluster (DSMEM) o [sender][8 * head_dim / SPLITS], max and sum [sender][8];
// without clusters [row][part of a KV head][split][8 * (head_dim + 2)]: O, max and sum, the max in base 2.
// Preconditions: head_dim 64 or 128; caches 16-byte aligned; out overlaps nothing that is read; single_row:
// at most 8 query heads per KV head; with fused_store, all dims of a head are rotated, and no running kernel
// writes this cache (ptx/pdl.cuh). Where out_q8 or out_f16 is set, a block's slice of O is a multiple of 32
// elements, KV heads have one part and the step is not mixed; for out_f16, n_heads * head_dim is a multiple
// of 256.
// Numerics: norm, RoPE, softmax and all accumulators in f32 (angles in f64); q, k, v, P as f16 operands.
// Masked scores are -1e30 instead of -inf, so that a warp without a visible position has weight 0 and no NaN.
// Bound: memory bandwidth for long contexts and many rows. H200, Qwen3-4B: 70 % of it at 16 rows of 1000
// positions, 83 to 99 % from 64 rows on (2026-11-16, before the fused store there); at one row and 1000
// positions latency decides: 4.7 us against 1.0 us for the bytes.

#include "attention_decode_f16_entries.cuh"

#if __CUDA_ARCH__ < 900
COMBINE_KERNEL(64)
COMBINE_KERNEL(128)
#endif
