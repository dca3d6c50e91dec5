//! Entry of the reductions that look for the largest element of each part of a row, one workgroup per part:
//! each thread scans every `threads`-th element, then the workgroup reduces its threads.
//!
//! The including file says what an element is, `key_at(at, i)` of element `i` of its row, and where the
//! result goes, `put(number, best)`; `begin_part(row, part, thread)` runs before.
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
    let part = number % params.parts;
    begin_part(row, part, thread);
    let begin = part * params.part;
    let end = min(begin + params.part, params.n);
    var own = vec2<u32>(0u, 0xffffffffu);
    for (var i = begin + thread; i < end; i += {{threads}}u) {
        own = larger(own, key_at(row * params.n + i, i));
    }
    let best = largest_of_all(thread, own);
    if (thread == 0u) { put(number, best); }
}
