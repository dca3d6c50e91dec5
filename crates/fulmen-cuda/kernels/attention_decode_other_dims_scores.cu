// Flash decoding with heads of 80, 96 and 256 dims over an f16 KV cache, and of 96 over Q8_0, with score
// modifiers (attention_scores.cuh): the kernels of attention_decode_other_dims.cu with what
// attention_decode_scores.cu adds. The headers there describe them; tiles, layouts, preconditions and
// numerics are the same. Launched by src/kernels/attention_decode.rs.
// Bound: as there; not measured alone.
#define DECODE_SCORE_MODS true
#include "attention_decode.cuh"

#define KERNELS(SPLITS)                                                                         \
    DECODE_KERNEL_OF(KV_F16, attention_decode_scores, cluster##SPLITS, 80, SPLITS, 4, false, 1) \
    DECODE_KERNEL(KV_F16, attention_decode_scores, cluster##SPLITS, 96, SPLITS, 3, false)       \
    DECODE_KERNEL_OF(KV_Q8_0, attention_decode_q8_0_scores, cluster##SPLITS, 96, SPLITS, 4, false, 1)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
#if __CUDA_ARCH__ >= 900
#define KERNEL_256(NAME, SPLITS, SINGLE_ROW) \
    DECODE_KERNEL(KV_F16, attention_decode_scores, NAME, 256, SPLITS, 3, SINGLE_ROW)
KERNEL_256(single_row, 8, true)
KERNEL_256(cluster1, 1, false)
KERNEL_256(cluster2, 2, false)
KERNEL_256(cluster4, 4, false)
KERNEL_256(cluster8, 8, false)
DECODE_MIXED_KERNEL(KV_F16, attention_decode_scores, 256, 3)
#endif
