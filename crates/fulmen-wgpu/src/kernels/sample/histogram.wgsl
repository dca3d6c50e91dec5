//! Sampling, launch 2 of 3: a histogram of each row's logits over their distance from the largest:
//! count and total weight (softmax numerator) per bin.
//!
//! **Work partition.** One workgroup per part of a row, one thread per `threads`-th logit. Counts are
//! accumulated with atomics in workgroup memory first, then added to the row's histogram. Weights are
//! fixed-point, so the result does not depend on the order.
//!
//! **Bindings.** `logits` [m][n]; `states` [m] of 8 words (`SampleState`); `keys` [m][parts] of launch
//! 1; `bins` [m][bins] of (count, weight low word, weight high word).
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth and workgroup-memory atomics; not measured.
struct Params {
    n: u32,
    part: u32,
    parts: u32,
    groups: u32,
    // Parts of launch 1.
    keys: u32,
}

alias EwF = f32;
alias EwI = i32;
alias EwU = u32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "sample/weigh.wgsl"
#include "argmax_key.wgsl"
#include "argmax_reduce.wgsl"
var<workgroup> counts: array<atomic<u32>, {{bins}}>;
var<workgroup> low: array<atomic<u32>, {{bins}}>;
var<workgroup> high: array<atomic<u32>, {{bins}}>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let row = number / params.parts;
    var own = vec2<u32>(0u, 0xffffffffu);
    for (var i = thread; i < params.keys; i += {{threads}}u) {
        own = larger(own, keys[row * params.keys + i]);
    }
    let best = largest_of_all(thread, own);
    for (var bin = thread; bin < {{bins}}u; bin += {{threads}}u) {
        atomicStore(&counts[bin], 0u);
        atomicStore(&low[bin], 0u);
        atomicStore(&high[bin], 0u);
    }
    workgroupBarrier();
    let temperature = states[row * 8u];
    let inverse = 1.0 / bitcast<f32>(temperature);
    let top = value_of(best.x);
    let begin = number % params.parts * params.part;
    let end = select(begin, min(begin + params.part, params.n), draws(temperature));
    for (var i = begin + thread; i < end; i += {{threads}}u) {
        let value = logits[row * params.n + i];
        let key = key_of(value, i).x;
        if (key > 0u) {
            let distance = distance_of(key, value, best.x, top, inverse);
            let bin = bin_of(distance);
            atomicAdd(&counts[bin], 1u);
            if (bin < {{bins}}u - 1u) {
                let mass = mass_of(distance);
                let before = atomicAdd(&low[bin], mass.x);
                atomicAdd(&high[bin], mass.y + select(0u, 1u, before + mass.x < before));
            }
        }
    }
    workgroupBarrier();
    for (var bin = thread; bin < {{bins}}u; bin += {{threads}}u) {
        let count = atomicLoad(&counts[bin]);
        if (count > 0u) {
            let at = (row * {{bins}}u + bin) * 3u;
            let more = atomicLoad(&low[bin]);
            atomicAdd(&bins[at], count);
            let before = atomicAdd(&bins[at + 1u], more);
            atomicAdd(&bins[at + 2u], atomicLoad(&high[bin]) + select(0u, 1u, before + more < before));
        }
    }
}
