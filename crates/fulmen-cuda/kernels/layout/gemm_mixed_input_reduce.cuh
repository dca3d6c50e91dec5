// The layout of the structs and constants that src/kernels/gemm_mixed_input/reduce.rs shares with
// gemm_mixed_input_reduce.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(ReduceRowsArgs, 704);
ASSERT_FIELD(ReduceRowsArgs, gemm, GemmMixedInputArgs, 0, 640);
ASSERT_FIELD(ReduceRowsArgs, row, PackRowArgs, 640, 56);
ASSERT_FIELD(ReduceRowsArgs, unused, u32, 696, 8);
