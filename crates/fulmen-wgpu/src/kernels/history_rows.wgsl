//! Entry of the kernels with one thread per row of a step and the tokens of sequences: parameters, and
//! `main`, which calls `run_row(row, sequence)` of the including file. Rows of unknown sequences are
//! reported.
//!
//! Expects the binding `fault`, and `sequences` where the value `sequences` says so.
//!
//! **Bound** by launch latency; not measured.
struct Params {
    m: u32,
    n_seqs: u32,
    capacity: u32,
}

#include "fault.wgsl"
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (row >= params.m) { return; }
    let sequence = {{sequences ? "sequences[row]" : "0u"}};
    if (sequence >= params.n_seqs) {
        report(FAULT_SEQUENCE, row, sequence, params.n_seqs);
        return;
    }
    run_row(row, sequence);
}
