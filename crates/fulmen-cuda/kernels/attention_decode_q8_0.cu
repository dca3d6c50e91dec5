// Flash decoding over a Q8_0 KV cache, fused with the q/k RMS norm, RoPE and the KV store of the new rows:
// the kernel of attention_decode.cu, whose header says what grid, pipeline and preconditions are, with the
// tiles, the layouts and the arithmetic of attention_decode_q8_0.cuh. Launched by
// src/kernels/attention_decode.rs.
//
// Numerics: as there, but elements of a query are signed 15-bit integers (|q| <= 2^14) times a power of two,
// their dot products with keys are exact, and P times the scale of a value is rounded to f16 once more.
// Bound: instruction issue at one row and a long context: 1.4 TB/s, 33 % of the memory bandwidth, at 32,000
// positions on an H200 (a warp takes about 455 instructions for a tile of 4352 bytes, 128 dims); latency at
// 1000 positions (9.7 us a layer). Several rows: not measured alone.
#include "attention_decode_q8_0_entries.cuh"
