// argmax: a workgroup takes a part of a row.
struct Params {
    // Elements of a row, and of a part; parts of a row, and of all rows.
    n: u32,
    part: u32,
    parts: u32,
    groups: u32,
}

{{buffers}}
{{functions}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let row = number / params.parts;
    let begin = number % params.parts * params.part;
    let end = min(begin + params.part, params.n);
    var own = vec2<u32>(0u, 0xffffffffu);
    for (var i = begin + thread; i < end; i += {{threads}}u) {
        own = larger(own, {{element}});
    }
    let best = largest_of_all(thread, own);
    if (thread == 0u) {
        {{store}}
    }
}
