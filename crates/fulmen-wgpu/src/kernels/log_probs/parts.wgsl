//! Log-probabilities, launch 1 of 2: of each part of a row the sum of the weights relative to the part's
//! largest logit, and its most likely tokens in order.
//!
//! **Work partition.** One workgroup per part (1024 logits) of a row, one thread per `threads`-th logit.
//!
//! **Algorithm.** A tree reduction gives the largest (order key, index); another one the sum of
//! exp(logit - largest). The next token is the largest pair below the previous one, so each further token
//! takes one reduction.
//!
//! **Bindings.** `x` [m][n] f32, the logits; `best` [m][parts][listed] of (order key, index), key 0 for none;
//! `sums` [m][parts] f32.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth, and by the latency of the reductions; not measured.
struct Params {
    n: u32,
    part: u32,
    parts: u32,
    groups: u32,
    listed: u32,
}

alias EwF = f32;
alias EwI = i32;
alias EwU = u32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "argmax_next.wgsl"
var<workgroup> partial: array<f32, {{threads}}>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let row = number / params.parts * params.n;
    let begin = number % params.parts * params.part;
    let end = min(begin + params.part, params.n);
    var previous = vec2<u32>(0xffffffffu, 0u);
    var top = 0.0;
    for (var at = 0u; at < params.listed; at += 1u) {
        previous = largest_below(thread, row, vec2<u32>(begin, end), previous);
        if (at == 0u) { top = value_of_key(previous.x); }
        if (thread == 0u) { best[number * params.listed + at] = previous; }
    }
    var sum = 0.0;
    for (var i = begin + thread; i < end; i += {{threads}}u) {
        let value = x[row + i];
        // NaN and -inf have the key 0 and no weight.
        if (key_of(value, i).x > 0u) { sum += ew_exp(value - top); }
    }
    partial[thread] = sum;
    workgroupBarrier();
    for (var width = {{threads}}u / 2u; width > 0u; width /= 2u) {
        if (thread < width) { partial[thread] += partial[thread + width]; }
        workgroupBarrier();
    }
    if (thread == 0u) { sums[number] = partial[0]; }
}
