// {{label}}: a workgroup takes a head of a row.
struct Params {
    m: u32,
    n_seqs: u32,
    capacity: u32,
    tasks: u32,
    epsilon: f32,
}

{{buffers}}
{{report}}
{{functions}}
var<workgroup> head_values: array<f32, {{head_dim}}>;
var<workgroup> later: atomic<u32>;
{{encode}}
@compute @workgroup_size({{threads}})
fn main(
{{arguments}}    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
{{begin}}    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.tasks) { return; }
    let row = number / {{per_row}}u;
    let task = number % {{per_row}}u;
{{place}}
{{parts}}}
