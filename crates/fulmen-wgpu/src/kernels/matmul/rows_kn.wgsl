// Few rows of A against B, which is [k, n]. A workgroup is {{lanes}} lanes along n and {{groups}} groups along k; each
// thread sums its own column (or four), and the groups' sums are added up at the end.
const LANES = {{lanes}}u;
const GROUPS = {{groups}}u;
var<workgroup> shared_sums: array<{{type}}, {{threads}}>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let lane = local % LANES;
    let first = local / LANES;
    let nv = params.n / {{width}}u;
    let tiles = (nv + LANES - 1u) / LANES;
    let slice = group / tiles;
    let place = (group % tiles) * LANES + lane;
    let column = min(place, nv - 1u);
    let end = min((slice + 1u) * params.span, params.k);
{{bases}}
{{sums}}
    var k = slice * params.span + first;
    for (; k + {{last}}u < end; k += {{stride}}u) {
{{all}}
    }
    for (; k < end; k += GROUPS) {
{{one}}
    }
{{reduce}}
}
