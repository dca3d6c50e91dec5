// matmul/gemv_nk: matmul gemv_nk threads=128 rows=2 unroll=4 Subgroup m=1
struct Params {
    m: u32, k: u32, n: u32, ldo: u32, col0: u32, count: u32, span: u32, slices: u32,
}

fn finish(v: f32, row: u32, col: u32) -> f32 {
    let e0 = x0[col];
    return v + e0;
}
fn store1(v: f32, slice: u32, row: u32, col: u32) {
    dst[row * params.ldo + params.col0 + col] = finish(v, row, params.col0 + col + 0u);
}
fn store4(v: vec4<f32>, slice: u32, row: u32, col: u32) {
    if (col + 0u < params.n) {
        store1(v.x, slice, row, col + 0u);
    }
    if (col + 1u < params.n) {
        store1(v.y, slice, row, col + 1u);
    }
    if (col + 2u < params.n) {
        store1(v.z, slice, row, col + 2u);
    }
    if (col + 3u < params.n) {
        store1(v.w, slice, row, col + 3u);
    }
}

fn get_b0(i: u32) -> vec4<f32> { return b0[i]; }
@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let lane = lane_in_subgroup;
    let row0 = (group * 4u + subgroup) * 2u;
    // Loads of a row.
    let kv = params.k / 4u;
    let b_row0 = min(row0 + 0u, params.n - 1u) * kv;
    let b_row1 = min(row0 + 1u, params.n - 1u) * kv;
    let a_row0 = min(0u, params.m - 1u) * kv;
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var i = lane;
    for (; i + 96u < kv; i += 128u) {
        let w0_0_0 = get_b0(b_row0 + i + 0u);
        let w0_1_0 = get_b0(b_row1 + i + 0u);
        let w0_0_1 = get_b0(b_row0 + i + 32u);
        let w0_1_1 = get_b0(b_row1 + i + 32u);
        let w0_0_2 = get_b0(b_row0 + i + 64u);
        let w0_1_2 = get_b0(b_row1 + i + 64u);
        let w0_0_3 = get_b0(b_row0 + i + 96u);
        let w0_1_3 = get_b0(b_row1 + i + 96u);
        let a0_0 = a[a_row0 + i + 0u];
        sum0 = fma(w0_0_0, a0_0, sum0);
        sum1 = fma(w0_1_0, a0_0, sum1);
        let a0_1 = a[a_row0 + i + 32u];
        sum0 = fma(w0_0_1, a0_1, sum0);
        sum1 = fma(w0_1_1, a0_1, sum1);
        let a0_2 = a[a_row0 + i + 64u];
        sum0 = fma(w0_0_2, a0_2, sum0);
        sum1 = fma(w0_1_2, a0_2, sum1);
        let a0_3 = a[a_row0 + i + 96u];
        sum0 = fma(w0_0_3, a0_3, sum0);
        sum1 = fma(w0_1_3, a0_3, sum1);
    }
    for (; i < kv; i += 32u) {
        let w0_0_0 = get_b0(b_row0 + i + 0u);
        let w0_1_0 = get_b0(b_row1 + i + 0u);
        let a0_0 = a[a_row0 + i + 0u];
        sum0 = fma(w0_0_0, a0_0, sum0);
        sum1 = fma(w0_1_0, a0_0, sum1);
    }
    let t0 = subgroupAdd(((sum0.x + sum0.y) + (sum0.z + sum0.w)));
    let t1 = subgroupAdd(((sum1.x + sum1.y) + (sum1.z + sum1.w)));
    // Every lane has every total: each stores its own outputs.
    {
        var v0 = t0;
        if (lane == 1u) { v0 = t1; }
        let out_row = (lane + 0u) / 2u;
        let out_col = row0 + (lane + 0u) % 2u;
        if (lane < 2u && out_row < params.m && out_col < params.n) {
            store1(v0, 0u, out_row, out_col);
        }
    }
}

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;
@group(0) @binding(3) var<storage, read> x0: array<f32>;
var<immediate> params: Params;
override fulmen_translate_late: bool = true;
