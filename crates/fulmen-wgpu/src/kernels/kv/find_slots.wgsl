//! KV store, first launch of large batches: finds the cache slot of every row. One workgroup per row.
//!
//! A slot is (position, page), with page 0xffffffff for a row that is out of range and 0xfffffffe for a row
//! that a later row of the batch overwrites.
//!
//! **Bindings.** `positions`, `sequences` [m]; `pages` [n_seqs][capacity / page]; `fault`; `slots` [m].
//!
//! **Algorithm.** See `kv/slot.wgsl`: each workgroup searches all later rows, one thread per row, with
//! a workgroup-wide "any" reduction.
//!
//! **Preconditions.** None.
//!
//! **Bound** by reading positions and sequences m times; not measured.
struct Params {
    m: u32,
    n_seqs: u32,
    capacity: u32,
    n_pages: u32,
}

#include "fault.wgsl"
#include "kv/sequence_of.wgsl"
var<workgroup> later: atomic<u32>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.m) { return; }
#include "kv/slot.wgsl"
    if (thread == 0u) {
        slots[row] = vec2<u32>(position, select(select(0xfffffffeu, page, stays), 0xffffffffu, !placed));
    }
}
