// Flash decoding over an f32 KV cache with score modifiers (attention_scores.cuh): the kernels of
// attention_decode_f32.cu with what attention_decode_scores.cu adds. The headers there describe them; tiles,
// layouts, preconditions and numerics are the same. Launched by src/kernels/attention_decode.rs.
// Bound: as there; not measured alone.
#define DECODE_SCORE_MODS true
#include "attention_decode.cuh"

#define KERNEL(NAME, HEAD_DIM, SPLITS) \
    DECODE_KERNEL_OF(KV_F32, attention_decode_f32, NAME, HEAD_DIM, SPLITS, HAS_CLUSTERS ? 3 : 2, false, 1)
#define KERNELS(SPLITS)                 \
    KERNEL(cluster##SPLITS, 64, SPLITS) \
    KERNEL(cluster##SPLITS, 128, SPLITS)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
