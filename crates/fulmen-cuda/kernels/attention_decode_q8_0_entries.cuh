// The entries of decode attention over a Q8_0 cache: of attention_decode_q8_0.cu, and with score modifiers of
// attention_decode_q8_0_scores.cu.
#pragma once

#include "attention_decode.cuh"

#define KERNEL(NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW) \
    DECODE_KERNEL(KV_Q8_0, attention_decode_q8_0, NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW)
// Rings of 136 KiB with heads of 128 dims, of 102 KiB with heads of 64; without clusters of half of that.
KERNEL(single_row, 64, 8, 6, true)
KERNEL(single_row, 128, 8, 4, true)
#define KERNELS(SPLITS)                           \
    KERNEL(cluster##SPLITS, 64, SPLITS, 6, false) \
    KERNEL(cluster##SPLITS, 128, SPLITS, 4, false)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
DECODE_MIXED_KERNEL(KV_Q8_0, attention_decode_q8_0, 64, 6)
DECODE_MIXED_KERNEL(KV_Q8_0, attention_decode_q8_0, 128, 4)
