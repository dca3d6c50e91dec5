// The norm of a row, and its codes: a workgroup takes a row, and then a thread 32 values of it.
struct Params { m: u32, k: u32, stride: u32, epsilon: f32 }
@group(0) @binding(0) var<storage, read> src: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gamma: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> norm: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> dst: array<vec4<u32>>;

{{codes}}
{{group}}
@compute @workgroup_size({{threads}})
fn main(
{{arguments}}    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
{{begin}}    let row = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (row >= params.m) { return; }
    let units = params.k / 4u;
    let begin = row * units;
    var squares = vec4<f32>();
    for (var i = thread; i < units; i += {{threads}}u) {
        let x = src[begin + i];
        squares += x * x;
    }
    let sum = group_sum((squares.x + squares.y) + (squares.z + squares.w));
    let factor = 1.0 / sqrt(sum / f32(params.k) + params.epsilon);
    for (var it = thread; it < params.k / 32u; it += {{threads}}u) {
        let g = it * 8u;
        let at = begin + g;
        let v0 = src[at] * factor * gamma[g];
        let v1 = src[at + 1u] * factor * gamma[g + 1u];
        let v2 = src[at + 2u] * factor * gamma[g + 2u];
        let v3 = src[at + 3u] * factor * gamma[g + 3u];
        let v4 = src[at + 4u] * factor * gamma[g + 4u];
        let v5 = src[at + 5u] * factor * gamma[g + 5u];
        let v6 = src[at + 6u] * factor * gamma[g + 6u];
        let v7 = src[at + 7u] * factor * gamma[g + 7u];
        norm[at] = v0;
        norm[at + 1u] = v1;
        norm[at + 2u] = v2;
        norm[at + 3u] = v3;
        norm[at + 4u] = v4;
        norm[at + 5u] = v5;
        norm[at + 6u] = v6;
        norm[at + 7u] = v7;
        put_item(row * params.stride + (it >> 3u) * 24u + (it & 7u), v0, v1, v2, v3, v4, v5, v6, v7);
    }
}
