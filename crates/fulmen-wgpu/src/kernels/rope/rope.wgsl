// rope: a thread takes a pair, or an element that is only copied.
struct Params {
    count: u32,
}

{{buffers}}
{{turn}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (number >= params.count) { return; }
    let item = number % {{items}}u;
    let head = number / {{items}}u;
    let at = head * {{head_dim}}u;
    if (item >= {{pairs}}u) {
        out[at + item + {{pairs}}u] = x[at + item + {{pairs}}u];
        return;
    }
    let turn = turn_of(positions[head / {{n_heads}}u], item);
    let i = at + {{first}};
    let j = at + {{second}};
    let a = x[i];
    let b = x[j];
    out[i] = a * turn.x - b * turn.y;
    out[j] = a * turn.y + b * turn.x;
}
