// A weight matrix of a GEMM of few rows (gemm_small_m.cu, gemm_mixed_input.cu) and its output.
#pragma once

#include "types.cuh"

constexpr u32 MAX_WEIGHTS = 3;  // weight matrices of a launch

// One weight matrix [rows, k] with its output y [m, rows].
struct GemmWeight {
    const u8* data;
    float* out;
    const float* bias;      // [rows] or null
    const float* residual;  // [m, rows] or null; may be `out`
    u32 rows;
    u32 row_bytes;
    u32 first_tile;  // small-M GEMM: among the tiles of its format
    u32 vectorized;  // rows is a multiple of 4, and `out`, `bias` and `residual` are 16-byte aligned
};
#include "layout/gemm_weight.cuh"
