// Rows of A as int8: each thread takes 32 values. A value that is not finite makes its item's scale NaN.
struct Params { m: u32, k: u32, stride: u32, count: u32 }
@group(0) @binding(0) var<storage, read> src: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<u32>>;

{{codes}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let items = params.k / 32u;
    let at = (wid.x + grid.x * (wid.y + grid.y * wid.z)) * {{threads}}u + local;
    if (at >= params.count) { return; }
    let row = at / items;
    let it = at % items;
    let begin = at * 8u;
    let v0 = src[begin];
    let v1 = src[begin + 1u];
    let v2 = src[begin + 2u];
    let v3 = src[begin + 3u];
    let v4 = src[begin + 4u];
    let v5 = src[begin + 5u];
    let v6 = src[begin + 6u];
    let v7 = src[begin + 7u];
    put_item(row * params.stride + (it >> 3u) * 24u + (it & 7u), v0, v1, v2, v3, v4, v5, v6, v7);
}
