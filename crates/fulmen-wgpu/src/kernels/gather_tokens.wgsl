//! Gather of tokens: element-wise, one thread per row.
//!
//! The token of a row is that of its sequence in the history, at its position. `NO_TOKEN` (all bits set),
//! left by a row whose logits had no finite maximum, becomes token 0, in the history as well.
//!
//! **Bindings.** `positions`, `sequences`, `tokens` [m]; `history` [n_seqs][capacity]; `fault`.
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
    let position = positions[row];
    if (sequence >= params.n_seqs) {
        report(FAULT_SEQUENCE, row, sequence, params.n_seqs);
        return;
    }
    if (position >= params.capacity) {
        report(FAULT_POSITION, row, position, params.capacity);
        return;
    }
    let at = sequence * params.capacity + position;
    var token = history[at];
    if (token == 0xffffffffu) {
        token = 0u;
        history[at] = 0u;
    }
    tokens[row] = token;
}
