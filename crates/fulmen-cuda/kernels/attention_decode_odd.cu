// Flash decoding with heads of 80, 96 and 256 dims over an f16 KV cache, and of 96 over Q8_0: the kernels of
// attention_decode.cu and attention_decode_q8_0.cu, whose headers describe them. In a file of their own, as
// few models need them. A single row takes the kernel of a cluster of 8.
//
// Preconditions: as there; heads of 256 dims only with clusters and without the fused store, as a block of
// half as many warps does not keep its queries in registers.
#include "attention_decode.cuh"

#define KERNELS(CLUSTER)                                                                   \
    DECODE_KERNEL_OF(KV_F16, attention_decode, cluster##CLUSTER, 80, CLUSTER, 4, false, 1) \
    DECODE_KERNEL(KV_F16, attention_decode, cluster##CLUSTER, 96, CLUSTER, 3, false)       \
    DECODE_KERNEL_OF(KV_Q8_0, attention_decode_q8_0, cluster##CLUSTER, 96, CLUSTER, 4, false, 1)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
#if __CUDA_ARCH__ >= 900
#define KERNEL_256(CLUSTER) DECODE_KERNEL(KV_F16, attention_decode, cluster##CLUSTER, 256, CLUSTER, 3, false)
KERNEL_256(1)
KERNEL_256(2)
KERNEL_256(4)
KERNEL_256(8)
#else
COMBINE_KERNEL(80)
COMBINE_KERNEL(96)
#endif
