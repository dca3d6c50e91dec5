// The entries of decode attention over an f16 cache with heads of 64 and 128 dims: of attention_decode.cu,
// and with score modifiers of attention_decode_scores.cu.
#pragma once

#include "attention_decode.cuh"

#define KERNEL(NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW) \
    DECODE_KERNEL(KV_F16, attention_decode, NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW)
#if DECODE_SCORE_MODS
// Two blocks an SM, so that ptxas does not spill to fit more.
#define KERNEL_64(NAME, SPLITS) DECODE_KERNEL_OF(KV_F16, attention_decode, NAME, 64, SPLITS, 4, false, 2)
#else
#define KERNEL_64(NAME, SPLITS) KERNEL(NAME, 64, SPLITS, 4, false)
#endif
KERNEL(single_row, 64, 8, 2, true)
KERNEL(single_row, 128, 8, 2, true)
// Rings of 192 KiB with heads of 128 dims, of 128 KiB with heads of 64 (single_row: 128 and 64 KiB); without
// clusters of 64 KiB (single_row: 64 and 32 KiB).
#define KERNELS(SPLITS)                \
    KERNEL_64(cluster##SPLITS, SPLITS) \
    KERNEL(cluster##SPLITS, 128, SPLITS, HAS_CLUSTERS ? 3 : 2, false)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
DECODE_MIXED_KERNEL(KV_F16, attention_decode, 64, 4)
DECODE_MIXED_KERNEL(KV_F16, attention_decode, 128, HAS_CLUSTERS ? 3 : 2)
