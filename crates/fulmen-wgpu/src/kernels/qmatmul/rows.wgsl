// Few rows of A against rows of W. A team of {{team}} threads takes {{rows}} rows of W at once: its lanes
// stride over the items, and their sums are added up at the end.
{{shared}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
{{builtins}}) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let thread = {{thread}};
    let lane = thread % {{team}}u;
    let row0 = (group * {{teams}}u + thread / {{team}}u) * {{rows}}u;
    let items = params.k / 32u;
    let row_of_w = row_length();
{{bases}}
{{sums}}
    var it = lane;
    for (; it + {{last}}u < items; it += {{stride}}u) {
{{all}}
    }
{{rest}}
{{reduce}}
}
