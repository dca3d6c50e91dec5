// State of a ring of shared-memory stages between a producer and its consumers, each stage with a full and an
// empty mbarrier.
#pragma once
#include "types.cuh"

// A stage, and the mbarrier parity of its current use: consumers wait for `parity` on full, the producer for
// `parity ^ 1` on empty (which a fresh mbarrier has passed).
struct PipelineState {
    u32 stage = 0, parity = 0;
    template <u32 STAGES>
    DEVICE void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
