// Flash decoding over an f32 KV cache: the kernel of attention_decode.cu, whose header describes it, with the
// tiles and the arithmetic of attention_decode_f32.cuh. Launched by src/kernels/attention_decode.rs.
//
// Tiles: 16 positions x (K, V) in f32, 8 KiB a stage with heads of 64 dims, 16 KiB with 128; rings of 3
// stages (2 before compute capability 9.0). 8 warps with heads of 64 dims, 4 with 128 (half as many before
// 9.0): rings of 192 KiB (64 KiB).
// Layouts: as there, pages of f32.
// Preconditions: as there; no fused store, as a block with heads of 128 dims has half as many warps and does
// not keep its queries in registers. There are no single_row and mixed entries: a single row takes the
// cluster of 8.
// Numerics: as there; keys and values are rounded to f16, so magnitudes above 65504 become infinite.
// Bound: memory bandwidth; not measured alone. A decode step of Qwen3-4B at one row and 1000 positions makes
// 610 tok/s, with an f16 cache 823 (H200).
#include "attention_decode.cuh"

#define KERNELS(SPLITS)                                                                                   \
    DECODE_KERNEL(KV_F32, attention_decode_f32, cluster##SPLITS, 64, SPLITS, HAS_CLUSTERS ? 3 : 2, false) \
    DECODE_KERNEL(KV_F32, attention_decode_f32, cluster##SPLITS, 128, SPLITS, HAS_CLUSTERS ? 3 : 2, false)
KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
