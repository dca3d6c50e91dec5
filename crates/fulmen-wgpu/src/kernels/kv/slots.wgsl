// The place of each row in the cache: its position and its sequence. Of rows that name one place the last stays.
struct Params {
    m: u32,
    n_seqs: u32,
    capacity: u32,
}

{{buffers}}
{{report}}
{{functions}}
var<workgroup> later: atomic<u32>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.m) { return; }
{{place}}
    if (thread == 0u) {
        slots[row] = vec2<u32>(position, select(select(0xfffffffeu, sequence, stays), 0xffffffffu, !placed));
    }
}
