//! Argmax of each row: a tree reduction of (order key, index) pairs, in two launches for long rows.
//!
//! **Work partition.** One workgroup per part of a row; each thread scans every `threads`-th element,
//! then the workgroup reduces its threads (`argmax_reduce.wgsl`). The second launch (`of_keys`) reduces
//! the keys of the parts.
//!
//! **Bindings.** `x`: [m][n] f32, or with `of_keys` the keys [m][parts] of the first launch; `out`:
//! keys [m][parts] if `to_keys`, else indices [m]. Rows of NaN and -inf only give index 0.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    // Elements per row and per part; parts per row and of all rows.
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
    let begin = number % params.parts * params.part;
    let end = min(begin + params.part, params.n);
    var own = vec2<u32>(0u, 0xffffffffu);
    for (var i = begin + thread; i < end; i += {{threads}}u) {
#if of_keys
        own = larger(own, x[row * params.n + i]);
#else
        own = larger(own, key_of(x[row * params.n + i], i));
#endif
    }
    let best = largest_of_all(thread, own);
    if (thread == 0u) {
#if to_keys
        out[number] = best;
#else
        out[number] = select(best.y, 0u, best.x == 0u);
#endif
    }
}
