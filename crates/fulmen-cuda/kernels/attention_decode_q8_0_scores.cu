// Flash decoding over a Q8_0 KV cache with score modifiers (attention_scores.cuh): the kernels of
// attention_decode_q8_0.cu with what attention_decode_scores.cu adds. The headers there describe them; tiles,
// layouts, preconditions and numerics are the same. Launched by src/kernels/attention_decode.rs.
// Bound: as there; not measured alone.
#define DECODE_SCORE_MODS true
#include "attention_decode.cuh"

#define KERNEL(NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW) \
    DECODE_KERNEL(KV_Q8_0, attention_decode_q8_0_scores, NAME, HEAD_DIM, SPLITS, STAGES, SINGLE_ROW)
KERNEL(single_row, 64, 8, 6, true)
KERNEL(single_row, 128, 8, 4, true)
#define KERNELS(SPLITS)                           \
    KERNEL(cluster##SPLITS, 64, SPLITS, 6, false) \
    KERNEL(cluster##SPLITS, 128, SPLITS, 4, false)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
DECODE_MIXED_KERNEL(KV_Q8_0, attention_decode_q8_0_scores, 64, 6)
DECODE_MIXED_KERNEL(KV_Q8_0, attention_decode_q8_0_scores, 128, 4)
