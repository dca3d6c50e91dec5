// Rows of W as f32: each thread writes 32 values.
struct Params { k: u32, first: u32, count: u32 }
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<f32>>;

{{format}}
fn bytes(codes: u32) -> vec4<f32> { return vec4<f32>({{unpack}}(codes)); }

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let items = params.k / 32u;
    let at = (wid.x + grid.x * (wid.y + grid.y * wid.z)) * {{threads}}u + local;
    if (at >= params.count) { return; }
    let it = at % items;
    let item = decode(fetch((params.first + at / items) * row_length(), it), it);
    for (var i = 0u; i < 4u; i++) {
        dst[at * 8u + i] = bytes(item.lo[i]) * item.s.x + item.o.x;
        dst[at * 8u + 4u + i] = bytes(item.hi[i]) * item.s.y + item.o.y;
    }
}
