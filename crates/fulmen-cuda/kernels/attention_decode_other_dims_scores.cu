// Flash decoding with heads of 80, 96 and 256 dims over an f16 KV cache, and of 96 over Q8_0, with score
// modifiers (attention_scores.cuh): the kernels of attention_decode_other_dims.cu with what
// attention_decode_scores.cu adds. The headers there describe them; tiles, layouts, preconditions and
// numerics are the same. Launched by src/kernels/attention_decode.rs.
// Bound: as there; not measured alone.
#define DECODE_SCORE_MODS true
#include "attention_decode_other_dims_entries.cuh"
