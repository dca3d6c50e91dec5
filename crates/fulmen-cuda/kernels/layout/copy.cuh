// The layout of the structs and constants that src/kernels/copy.rs shares with
// copy.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(CopyArgs, 24);
ASSERT_POINTER(CopyArgs, from, 0, 8);
ASSERT_POINTER(CopyArgs, to, 8, 8);
ASSERT_FIELD(CopyArgs, bytes, u64, 16, 8);
