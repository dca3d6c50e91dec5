// Score modifiers: sliding window, chunked attention, logit soft-capping, attention temperature, attention
// sinks. Shared by all attention kernels; those of plain calls do not read them.
#pragma once
#include "common.cuh"

// Mirrored by `ScoreArgs` in src/kernels/attention_scores.rs.
struct ScoreArgs {
    const float* sinks;  // [n_heads]: logits that take part in the softmax and have no value; or null
    u32 window;          // keys that a row attends to, up to its own; 0: all
    float softcap;       // a score s becomes softcap * tanh(s / softcap); 0: none
    // The scale is multiplied by 1 + beta * ln(1 + floor(position / length)); a length of 0: by 1.
    u32 temperature_length;
    float temperature_beta;
    u32 chunk;  // a row attends to keys from the last multiple of this on; 0: all
    u32 unused;

    // The first position that a row sees.
    DEVICE u32 first_visible(u32 position) const {
        const u32 first = window && position >= window ? position - window + 1 : 0;
        return chunk ? max(first, position - position % chunk) : first;
    }

    DEVICE float temperature(u32 position) const {
        if (!temperature_length) return 1.0f;
        return 1.0f + temperature_beta * logf(1.0f + (float)(position / temperature_length));
    }

    // The scale of scores in base 2, or with soft capping that of the argument of `capped`.
    DEVICE float base2_scale() const { return softcap > 0.0f ? 2.0f * LOG2_E / softcap : LOG2_E; }

    // A score in base 2 from a dot product times `base2_scale`: tanh(x) = 1 - 2 / (1 + e^(2 x)).
    DEVICE float capped(float x) const {
        if (softcap <= 0.0f) return x;
        const float cap = softcap * LOG2_E;
        return cap - __fdividef(2.0f * cap, 1.0f + exp2f(x));
    }

    // The sink of a query head in base 2; -inf without sinks.
    DEVICE float sink_of(u32 head) const { return sinks ? sinks[head] * LOG2_E : -INFINITE; }
};
#include "layout/attention_scores.cuh"

// O / sum with a sink, in base 2 as `max`, which O and the sum are relative to.
DEVICE float normalize_with_sink(float o, float sum, float max, float sink) {
    const float all = fmaxf(max, sink), weight = exp2f(max - all);
    return o * weight / (sum * weight + exp2f(sink - all));
}
