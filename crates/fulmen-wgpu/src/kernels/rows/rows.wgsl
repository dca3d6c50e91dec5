{{enable}}// {{label}}: {{team}} of the {{threads}} threads of a workgroup take a row.
struct Params {
    // Rows; `EwF`s in each; where the first row begins in the input and in the output; elements in a row.
    rows: u32,
    units: u32,
    x_at: u32,
    out_at: u32,
    width: f32,
{{params}}}

{{aliases}}
{{buffers}}
{{functions}}
@compute @workgroup_size({{threads}})
fn main(
{{arguments}}    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
{{begin}}    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let row = number * ({{threads}}u / {{team}}u) + thread / {{team}}u;
    let place = thread % {{team}}u;
    // Threads without a row go through the barriers with the others.
    let units = select(0u, params.units, row < params.rows);
    let at = params.x_at + row * params.units;
    let out_at = params.out_at + row * params.units;
{{keep}}{{body}}}
