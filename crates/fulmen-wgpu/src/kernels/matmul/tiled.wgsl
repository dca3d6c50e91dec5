// Many rows of A: a workgroup computes a tile of {{bm}} by {{cols}} (of each product), each thread {{tm}} by {{tn}} of it in registers. Slabs
// of {{bk}} along k go through workgroup memory with k outermost; the next slab is on its way while one is used.
const LA = {{lda}}u;
const LB = {{ldb}}u;
const SA = {{sa}}u;
const SB = {{sb}}u;
var<workgroup> slab_a: array<vec4<f32>, {{words_a}}>;
var<workgroup> slab_b: array<vec4<f32>, {{words_b}}>;

{{loads}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }

    // Tiles in bands of {{band}} rows, so that workgroups that run together share what they read.
    let tiles_m = (params.m + {{bm}}u - 1u) / {{bm}}u;
    let tiles_n = (params.n + {{cols}}u - 1u) / {{cols}}u;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    let band = tile / ({{band}}u * tiles_n);
    let in_band = tile % ({{band}}u * tiles_n);
    let height = min(tiles_m - band * {{band}}u, {{band}}u);
    let row0 = (band * {{band}}u + in_band % height) * {{bm}}u;
    let col0 = (in_band / height) * {{cols}}u;

    // A subgroup's 32 threads are 4 by 8; each has groups of four rows, 16 apart, and of four columns, 32 apart.
    let unit = local / 32u;
    let mine_a = (unit / {{units_n}}u) * {{wm4}}u + (local % 32u) / 8u;
    let mine_b = (unit % {{units_n}}u) * {{wn4}}u + local % 8u;
{{places}}
{{registers}}
{{sums}}
    let slabs = (params.k + {{bk}}u - 1u) / {{bk}}u;
    var slab = slice * params.span;
    let end = min(slab + params.span, slabs);
{{walk}}
{{store}}
}
