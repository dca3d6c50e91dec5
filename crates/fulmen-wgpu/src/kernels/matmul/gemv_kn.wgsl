//! GEMV and small-M GEMM, `out[m, n] = epilogue(A · B)`, for B as `[k, n]` and m up to 16.
//!
//! Tile: a workgroup is `lanes` threads along n by `groups` threads along k. A thread owns one column of
//! the output, or four where `width` is 4, for all m rows, and every `groups`-th row of B; the groups'
//! partial sums are added in workgroup memory. With split-K each slice of k is a workgroup of its own,
//! and a second launch adds the slices (split_k_sum.wgsl).
//!
//! Bindings: `a` [m, k] f32; `b` [k, n]; `dst` [m, n] f32 or slices of it; then the epilogue's inputs.
//! Needs: n a multiple of `width`.
//!
//! Bound by memory bandwidth: B is read once, neighboring lanes read neighboring columns; not measured.
#include "matmul/prelude.wgsl"
#include "matmul/element.wgsl"
#expand getter("b", form, width)
#define type width == 4 ? "vec4<f32>" : "f32"
const LANES = {{lanes}}u;
const GROUPS = {{groups}}u;
var<workgroup> partial_sums: array<{{type}}, {{lanes * groups}}>;

@compute @workgroup_size({{lanes * groups}})
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
#for i in 0..m
    let a_row{{i}} = min({{i}}u, params.m - 1u) * params.k;
#endfor
#for i in 0..m
    var sum{{i}} = {{type}}();
#endfor
//! `count` rows of B, then their use.
#macro multiply(count)
  #for u in 0..count
        let w{{u}} = get_b((k + {{u * groups}}u) * nv + column);
  #endfor
  #for u in 0..count
    #for i in 0..m
        sum{{i}} = fma({{type}}(a[a_row{{i}} + k + {{u * groups}}u]), w{{u}}, sum{{i}});
    #endfor
  #endfor
#endmacro
    var k = slice * params.span + first;
    for (; k + {{(unroll - 1) * groups}}u < end; k += {{unroll * groups}}u) {
#expand multiply(unroll)
    }
    for (; k < end; k += GROUPS) {
#expand multiply(1)
    }
#for i in 0..m
    partial_sums[local] = sum{{i}};
    workgroupBarrier();
    if (first == 0u && place < nv && {{i}}u < params.m) {
        var v = partial_sums[lane];
        for (var g = 1u; g < GROUPS; g++) { v += partial_sums[g * LANES + lane]; }
        store{{width}}(v, slice, {{i}}u, place * {{width}}u);
    }
    workgroupBarrier();
#endfor
}
