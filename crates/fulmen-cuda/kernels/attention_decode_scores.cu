// Flash decoding with score modifiers (attention_scores.cuh): a sliding window, logit soft-capping, an
// attention temperature or attention sinks. The kernels of attention_decode.cu, whose header describes them,
// with SCORE_MODS. In a file and with entries of their own, so that calls with a plain scale pay nothing for
// it; likewise attention_decode_{q8_0,f32,other_dims}_scores.cu. Launched by src/kernels/attention_decode.rs.
//
// Window: tiles keep their block and warp; each warp starts with its first tile that the row sees some of, so
// the work is min(window, length) positions, and no page behind the window is looked up but for the one of
// the first tile. Scores of positions in that tile that the row does not see are masked, and their values
// are zeroed in shared memory.
// Sinks: one more term of the sum, where O is divided by it. Capping: an exp2 and a division per score. The
// temperature is part of the scale of a query.
//
// Layouts, preconditions and numerics: as there. Capped scores have an absolute error of 1e-6 of the cap.
// Bound: as there, of the positions in the window; not measured alone.
#define DECODE_SCORE_MODS true
#include "attention_decode_f16_entries.cuh"
