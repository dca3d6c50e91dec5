//! Split-K reduction: adds the slices of k that a GEMV or GEMM kernel left in scratch and applies the
//! epilogue.
//!
//! One thread owns one value of the output, or four neighboring columns where `width` is 4.
//! `matmuls` is their number, 2 for gate and up; `nv` is the number of output vectors per row.
//! Bindings: `slices` [matmuls, slices, m, n] f32; `dst` [m, n] f32; then the epilogue's inputs.
//! Needs: n a multiple of `width`.
//! Bound by memory bandwidth: every slice is read once, four loads at a time; not measured.
#include "matmul/prelude.wgsl"
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
#for p in 0..matmuls
    let from{{p}} = at + {{p}}u * params.slices * total;
    var v{{p}} = slices[from{{p}}];
    {
        var s = 1u;
        for (; s + 3u < params.slices; s += 4u) {
            v{{p}} += slices[from{{p}} + (s + 0u) * total] + slices[from{{p}} + (s + 1u) * total]
                + slices[from{{p}} + (s + 2u) * total] + slices[from{{p}} + (s + 3u) * total];
        }
        for (; s < params.slices; s++) { v{{p}} += slices[from{{p}} + s * total]; }
    }
#endfor
    store{{width}}({{matmuls == 2 ? "v0, v1" : "v0"}}, 0u, at / nv, (at % nv) * {{width}}u);
}
