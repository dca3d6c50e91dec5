//! Opens `main` of the GEMV kernels (gemv.wgsl, fused_gemv.wgsl), which the including file closes: the number
//! of the workgroup (`group`), of the thread and of its lane, the blocks of a row, and where each row of A
//! begins. With `shuffle` the lanes of a row are neighbors in a subgroup, whatever the mapping of local
//! indices to subgroups.
//!
//! Bound by memory bandwidth; measured for each including kernel (gemv.wgsl: 72 % of it on an H200).
#if !shuffle
var<workgroup> partial_sums: array<f32, {{threads}}>;
#endif
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
#if shuffle
    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_width: u32,
#endif
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    let thread = {{shuffle ? "subgroup * subgroup_width + lane_in_subgroup" : "local"}};
    let lane = thread % {{lanes}}u;
    let blocks = params.k / 32u;
#for i in 0..m
    let a_row{{i}} = min({{i}}u, params.m - 1u) * params.span;
#endfor
