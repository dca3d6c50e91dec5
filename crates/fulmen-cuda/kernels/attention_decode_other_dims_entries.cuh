// The entries of decode attention with heads of 80, 96 and 256 dims: of attention_decode_other_dims.cu, and
// with score modifiers of attention_decode_other_dims_scores.cu.
#pragma once

#include "attention_decode.cuh"

#define KERNELS(SPLITS)                                                                  \
    DECODE_KERNEL_OF(KV_F16, attention_decode, cluster##SPLITS, 80, SPLITS, 4, false, 1) \
    DECODE_KERNEL(KV_F16, attention_decode, cluster##SPLITS, 96, SPLITS, 3, false)       \
    DECODE_KERNEL_OF(KV_Q8_0, attention_decode_q8_0, cluster##SPLITS, 96, SPLITS, 4, false, 1)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
#if __CUDA_ARCH__ >= 900
#define KERNEL_256(NAME, SPLITS, SINGLE_ROW) \
    DECODE_KERNEL(KV_F16, attention_decode, NAME, 256, SPLITS, 3, SINGLE_ROW)
KERNEL_256(single_row, 8, true)
KERNEL_256(cluster1, 1, false)
KERNEL_256(cluster2, 2, false)
KERNEL_256(cluster4, 4, false)
KERNEL_256(cluster8, 8, false)
DECODE_MIXED_KERNEL(KV_F16, attention_decode, 256, 3)
#endif
