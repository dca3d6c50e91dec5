// Few rows of A against rows of B, which is [n, k]. A team of threads takes {{rows}} rows of B at once: its lanes
// stride over k, and their sums are added up at the end.
{{shared}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
{{builtins}}) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let lane = {{lane}};
    let row0 = (group * {{teams}}u + {{team}}) * {{rows}}u;
{{length}}
{{bases}}
{{sums}}
{{loop}}
{{reduce}}
}
