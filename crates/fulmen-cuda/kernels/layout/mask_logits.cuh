// The layout of the structs and constants that src/kernels/mask_logits.rs shares with
// mask_logits.cu.
// Written by FULMEN_UPDATE=1 cargo test -p fulmen-cuda --lib kernel_layout
#pragma once
#include "layout/assert.cuh"

ASSERT_CONSTANT(PART, 4096);

ASSERT_STRUCT(MaskLogitsArgs, 56);
ASSERT_POINTER(MaskLogitsArgs, logits, 0, 8);
ASSERT_POINTER(MaskLogitsArgs, edits, 8, 8);
ASSERT_POINTER(MaskLogitsArgs, masks, 16, 8);
ASSERT_POINTER(MaskLogitsArgs, slots, 24, 8);
ASSERT_POINTER(MaskLogitsArgs, fault, 32, 8);
ASSERT_FIELD(MaskLogitsArgs, width, u32, 40, 4);
ASSERT_FIELD(MaskLogitsArgs, n_slots, u32, 44, 4);
ASSERT_FIELD(MaskLogitsArgs, capacity, u32, 48, 4);
ASSERT_FIELD(MaskLogitsArgs, mask_words, u32, 52, 4);
