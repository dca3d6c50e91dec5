//! The largest values of rows, launch 2 of 2: merges the sorted lists of the parts of each row.
//!
//! **Work partition.** One workgroup per row, one thread per list.
//!
//! **Algorithm.** Each thread offers the head of its list. A tree reduction gives the largest of them, and
//! the thread that has offered it goes on to its next.
//!
//! **Bindings.** `best` [m][parts][k] of launch 1; `values` (the bits of f32) and `indices` [m][k].
//!
//! **Preconditions.** Parts are at most `threads`.
//!
//! **Bound** by the latency of k reductions; not measured.
struct Params {
    parts: u32,
    rows: u32,
    k: u32,
    first: u32,
}

#include "argmax_reduce.wgsl"
#include "argmax_below.wgsl"
const NO_TOKEN = 0xffffffffu;
const NEGATIVE_INFINITY_BITS = 0xff800000u;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.rows) { return; }
    let list = (row * params.parts + thread) * params.k;
    var next = 0u;
    for (var at = 0u; at < params.k; at += 1u) {
        var own = vec2<u32>(0u, NO_TOKEN);
        if (thread < params.parts && next < params.k) { own = best[list + next]; }
        let largest = largest_of_all(thread, own);
        // Indices differ, so that only one thread has offered it.
        if (largest.x > 0u && all(own == largest)) { next += 1u; }
        if (thread == 0u) {
            let found = largest.x > 0u;
            let bits = bitcast<u32>(value_of_key(largest.x));
            values[row * params.k + at] = select(NEGATIVE_INFINITY_BITS, bits, found);
            indices[row * params.k + at] = select(NO_TOKEN, largest.y + params.first, found);
        }
    }
}
