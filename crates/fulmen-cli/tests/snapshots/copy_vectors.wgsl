struct Params { vectors: u32 }


@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + grid.x * (group.y + grid.y * group.z)) * 256u + thread;
    if (i < params.vectors) { dst[i] = src[i]; }
}

@group(0) @binding(0) var<storage, read> src: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> dst: array<vec4<u32>>;
var<immediate> params: Params;
override fulmen_translate_late: bool = true;
