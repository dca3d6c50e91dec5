// matmul/split_k_sum: matmul split_k_sum width=4
struct Params {
    m: u32, k: u32, n: u32, ldo: u32, col0: u32, count: u32, span: u32, slices: u32,
}

fn finish(v: f32, row: u32, col: u32) -> f32 {
    let e0 = x0[col];
    return v + e0;
}
fn store4(v: vec4<f32>, slice: u32, row: u32, col: u32) {
    if (col < params.n) {
        dst[(row * params.ldo + params.col0 + col) / 4u] = vec4<f32>(
            finish(v.x, row, params.col0 + col + 0u),
            finish(v.y, row, params.col0 + col + 1u),
            finish(v.z, row, params.col0 + col + 2u),
            finish(v.w, row, params.col0 + col + 3u),
        );
    }
}
@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let nv = params.n / 4u;
    let total = params.m * nv;
    let at = group * 128u + local;
    if (at >= total) { return; }
    let from0 = at + 0u * params.slices * total;
    var v0 = slices[from0];
    {
        var s = 1u;
        for (; s + 3u < params.slices; s += 4u) {
            v0 += slices[from0 + (s + 0u) * total] + slices[from0 + (s + 1u) * total]
                + slices[from0 + (s + 2u) * total] + slices[from0 + (s + 3u) * total];
        }
        for (; s < params.slices; s++) { v0 += slices[from0 + s * total]; }
    }
    store4(v0, 0u, at / nv, (at % nv) * 4u);
}

@group(0) @binding(0) var<storage, read> slices: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> x0: array<f32>;
var<immediate> params: Params;
override fulmen_translate_late: bool = true;
