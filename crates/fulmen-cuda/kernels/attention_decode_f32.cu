// Flash decoding over an f32 KV cache: the kernel of attention_decode.cu, whose header describes it, with the
// tiles and the arithmetic of attention_decode_f32.cuh. Launched by src/kernels/attention_decode.rs.
//
// Preconditions: as there, without the fused store: a block with heads of 128 dims has half as many warps and
// does not keep its queries in registers. A single row takes the kernel of a cluster of 8.
// Numerics: as there; keys and values are rounded to f16, so they are below 65504.
// Bound: memory bandwidth.
#include "attention_decode.cuh"

#define KERNELS(CLUSTER)                                                                                    \
    DECODE_KERNEL(KV_F32, attention_decode_f32, cluster##CLUSTER, 64, CLUSTER, HAS_CLUSTERS ? 3 : 2, false) \
    DECODE_KERNEL(KV_F32, attention_decode_f32, cluster##CLUSTER, 128, CLUSTER, HAS_CLUSTERS ? 3 : 2, false)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
