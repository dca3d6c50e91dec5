//! The largest values of rows, launch 1 of 2: those of each part of a row in descending order.
//!
//! **Work partition.** One workgroup per part (at least 1024 values) of a row, one thread per `threads`-th
//! value.
//!
//! **Algorithm.** A tree reduction gives the largest (order key, index); the next one is the largest pair
//! below it, so each value takes one pass over the part and one reduction.
//!
//! **Bindings.** `x` [m][n] f32; `best` [m][parts][k] of (order key, index), key 0 for none.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth for one value, by the latency of the reductions for many; not measured.
struct Params {
    n: u32,
    part: u32,
    parts: u32,
    groups: u32,
    k: u32,
}

#include "argmax_next.wgsl"

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
    for (var at = 0u; at < params.k; at += 1u) {
        previous = largest_below(thread, row, vec2<u32>(begin, end), previous);
        if (thread == 0u) { best[number * params.k + at] = previous; }
    }
}
