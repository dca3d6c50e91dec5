// A workgroup computes a tile of {{bm}} by {{bn}}, each of its subgroups {{wm}} by {{wn}} of it as squares of 16 by 16 on the matrix
// units. Slabs of {{bk}} along k go through workgroup memory, rows of A and of B (which is [n, k]) with k contiguous; the next
// slab is on its way while one is used.
const BM = {{bm}}u;
const BN = {{bn}}u;
const THREADS = {{threads}}u;
// Vectors between rows: two more than a row has, so that eight rows do not meet in one bank.
const LD = {{ld}}u;
var<workgroup> slab_a: array<vec4<f16>, {{words_a}}>;
var<workgroup> slab_b: array<vec4<f16>, {{words_b}}>;
var<workgroup> square: array<vec4<f32>, {{squares}}>;

{{functions}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
{{builtins}}) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let tiles_m = (params.m + BM - 1u) / BM;
    let tiles_n = (params.n + BN - 1u) / BN;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    // Tiles in bands of {{band}} rows, so that workgroups that run together share what they read.
    let band = tile / ({{band}}u * tiles_n);
    let in_band = tile % ({{band}}u * tiles_n);
    let height = min(tiles_m - band * {{band}}u, {{band}}u);
    let row0 = (band * {{band}}u + in_band % height) * BM;
    let col0 = (in_band / height) * BN;
{{who}}
    let mine_m = (team / {{teams_n}}u) * {{wm}}u;
    let mine_n = (team % {{teams_n}}u) * {{wn}}u;
{{places}}
{{registers}}
{{sums}}
    let slabs = (params.k + {{bk}}u - 1u) / {{bk}}u;
    var slab = slice * params.span;
    let end = min(slab + params.span, slabs);
{{fetch_first}}
    for (; slab < end; slab++) {
{{put}}
        workgroupBarrier();
        if (slab + 1u < end) {
{{fetch_next}}
        }
{{multiply}}
        workgroupBarrier();
    }
    // Each lane has four values of two rows of each square: so many lanes beside each other write whole pieces of memory.
    let at_row = lane / 4u;
    let at_col = (lane % 4u) * 4u;
{{store}}
}
