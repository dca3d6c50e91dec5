// The layout of the structs and constants that src/kernels/even_split.rs shares with
// even_split.cuh.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(EvenSplit, 8);
ASSERT_FIELD(EvenSplit, each, u32, 0, 4);
ASSERT_FIELD(EvenSplit, extra, u32, 4, 4);
