// Flash decoding over a Q8_0 KV cache with score modifiers (attention_scores.cuh): the kernels of
// attention_decode_q8_0.cu with what attention_decode_scores.cu adds. The headers there describe them; tiles,
// layouts, preconditions and numerics are the same. Launched by src/kernels/attention_decode.rs.
// Bound: as there; not measured alone.
#define DECODE_SCORE_MODS true
#include "attention_decode_q8_0_entries.cuh"
