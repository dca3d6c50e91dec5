//! Sampling, launch 1 of 3: the largest logit of each part of a row (a tree reduction), and clears the
//! histogram.
//!
//! **Work partition.** One workgroup per part of a row, one thread per `threads`-th logit.
//!
//! **Bindings.** `logits` [m][n] f32; `keys` [m][parts] of (order key, index); `bins` [m][bins][3].
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    n: u32,
    part: u32,
    parts: u32,
    groups: u32,
}

#include "argmax_key.wgsl"
#include "argmax_reduce.wgsl"
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let row = number / params.parts;
    let part = number % params.parts;
    for (var i = part * {{threads}}u + thread; i < {{bins}}u * 3u; i += params.parts * {{threads}}u) {
        bins[row * ({{bins}}u * 3u) + i] = 0u;
    }
    let begin = part * params.part;
    let end = min(begin + params.part, params.n);
    var own = vec2<u32>(0u, 0xffffffffu);
    for (var i = begin + thread; i < end; i += {{threads}}u) {
        own = larger(own, key_of(logits[row * params.n + i], i));
    }
    let best = largest_of_all(thread, own);
    if (thread == 0u) { keys[number] = best; }
}
