// Flash decoding (split-KV) with heads of 80, 96 and 256 dims over an f16 KV cache, and of 96 over Q8_0: the
// kernels of attention_decode.cu and attention_decode_q8_0.cu, whose headers describe them. In a file of
// their own, as few models need them. Launched by src/kernels/attention_decode.rs.
//
// Tiles: 16 positions. Rings of a block: 80 dims 4 stages, 160 KiB; 96 dims 3 stages, 144 KiB; 256 dims 3
// stages with 4 warps, 192 KiB; 96 dims in Q8_0 4 stages, 104 KiB. Before compute capability 9.0 half of
// that. Heads of 80 and 96 dims have no single_row and mixed entries: a single row takes the cluster of 8.
// Layouts and numerics: as there.
// Preconditions: as there; heads of 256 dims only with clusters. A warp keeps one query, and there are 4 of
// them with 256 dims, so the fused store needs 4 query heads per KV head or fewer there.
// Bound: memory bandwidth; not measured alone.
#include "attention_decode_other_dims_entries.cuh"

#if __CUDA_ARCH__ < 900
COMBINE_KERNEL(80)
COMBINE_KERNEL(96)
#endif
