//! Helper functions for attention kernels, called by one thread: the rule of the scores.
//!
//! - `first_seen(seen)`: the first key that a row with `seen` keys up to its own attends to: those before are
//!   behind the sliding window or in an earlier chunk.
//! - `scale_of(row)`: the scale of the row's scores, with the attention temperature of its position.
//! - `capped(scores)`: scores after soft capping.
//! - `with_sink(top, sink)`: for a head with the maximum `top` of its scores: the factor of its sums, and the
//!   weight of its sink.
//!
//! Expects `params.scale` (where `scales`), `params.window`, `params.attention_chunk`,
//! `params.softcap`, `params.temperature_length` and `params.temperature_beta` where the values `window`,
//! `chunked`, `softcap` and `temperature` say so, and `visible_keys.wgsl`.
fn first_seen(seen: u32) -> u32 {
    var first = 0u;
#if window
    first = seen - min(seen, params.window);
#endif
#if chunked
    let position = max(seen, 1u) - 1u;
    first = max(first, position - position % params.attention_chunk);
#endif
    return first;
}
#if scales
fn scale_of(row: u32) -> f32 {
  #if temperature
    let steps = (max(seen_by(row), 1u) - 1u) / params.temperature_length;
    return params.scale * (1.0 + params.temperature_beta * log(1.0 + f32(steps)));
  #else
    return params.scale;
  #endif
}
  #if softcap
#include "elementwise/tanh.wgsl"
fn capped(scores: EwF) -> EwF { return params.softcap * ew_tanh(scores / params.softcap); }
  #endif
#endif
#if sinks
fn with_sink(top: f32, sink: f32) -> vec2<f32> {
    let highest = max(top, sink);
    return vec2<f32>(exp(top - highest), exp(sink - highest));
}
#endif
