// The layout of the structs and constants that src/kernels/embed.rs shares with
// embed.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_STRUCT(EmbedArgs, 56);
ASSERT_POINTER(EmbedArgs, table, 0, 8);
ASSERT_POINTER(EmbedArgs, tokens, 8, 8);
ASSERT_POINTER(EmbedArgs, out, 16, 8);
ASSERT_POINTER(EmbedArgs, fault, 24, 8);
ASSERT_FIELD(EmbedArgs, rows, u32, 32, 4);
ASSERT_FIELD(EmbedArgs, first, u32, 36, 4);
ASSERT_FIELD(EmbedArgs, held, u32, 40, 4);
ASSERT_FIELD(EmbedArgs, width, u32, 44, 4);
ASSERT_FIELD(EmbedArgs, blocks_per_row, u32, 48, 4);
ASSERT_FIELD(EmbedArgs, unused, u32, 52, 4);
