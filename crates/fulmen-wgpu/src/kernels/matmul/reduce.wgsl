// Adds up the slices of k and finishes the values.
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let nv = params.n / {{width}}u;
    let total = params.m * nv;
    let at = group * {{threads}}u + local;
    if (at >= total) { return; }
{{sums}}
    {{put}}({{values}}, 0u, at / nv, (at % nv) * {{width}}u);
}
