//! Advance to the next decode step: element-wise, one thread per row.
//!
//! The sampled token becomes the next input token, the position goes up by one (but stays below the
//! capacity), and the token is appended to the history.
//!
//! **Bindings.** `drawn`, `tokens`, `positions`, `sequences` [m]; `history` [n_seqs][capacity]; `fault`.
//!
//! **Preconditions.** None.
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
    let token = drawn[row];
    let position = positions[row];
    let last = params.capacity - 1u;
    // Saturates at the last position, without overflow.
    let next = select(last, position + 1u, position < last);
    tokens[row] = token;
    positions[row] = next;
    history[sequence * params.capacity + next] = token;
}
