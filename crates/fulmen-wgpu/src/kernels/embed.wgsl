{{enable}}// embed: each thread takes one value, or four, of a row.
struct Params {
    // Elements of a row; rows of the table; the first that is here, and the first behind; `Values` of a row;
    // workgroups for each row, and all of them.
    k: u32,
    rows: u32,
    first: u32,
    end: u32,
    units: u32,
    across: u32,
    groups: u32,
}

alias Values = {{values}};
{{buffers}}
{{functions}}
{{report}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let row = number / params.across;
    let unit = number % params.across * {{threads}}u + thread;
    let token = tokens[row];
    if (token >= params.rows) {
        if (unit == 0u && params.first == 0u) { report(FAULT_TOKEN, row, token, params.rows); }
        return;
    }
    if (unit >= params.units || token < params.first || token >= params.end) { return; }
    out[row * params.units + unit] = value(token - params.first, unit);
}
