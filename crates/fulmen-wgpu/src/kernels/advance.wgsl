// advance: a thread takes a row.
struct Params {
    m: u32,
    n_seqs: u32,
    capacity: u32,
}

{{buffers}}
{{report}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (row >= params.m) { return; }
    let sequence = {{sequence}};
    if (sequence >= params.n_seqs) {
        report(FAULT_SEQUENCE, row, sequence, params.n_seqs);
        return;
    }
    let token = drawn[row];
    let position = positions[row];
    let last = params.capacity - 1u;
    // Never past the last position, and never past the last number.
    let next = select(last, position + 1u, position < last);
    tokens[row] = token;
    positions[row] = next;
    history[sequence * params.capacity + next] = token;
}
