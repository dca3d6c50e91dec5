{{enable}}// {{label}}: each workgroup makes one value of its span of vectors.
struct Params {
    // Whole vectors; elements of the one after them that is cut short; vectors for each workgroup; workgroups; where
    // the first one's value goes.
    whole: u32,
    rest: u32,
    span: u32,
    groups: u32,
    at: u32,
}

{{aliases}}
{{buffers}}
{{functions}}
@compute @workgroup_size({{threads}})
fn main(
{{arguments}}    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
{{begin}}    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let start = min(number, params.groups) * params.span;
    let end = min(start + params.span, params.whole);
    var a = {{acc}}();
    var b = {{acc}}();
    var c = {{acc}}();
    var d = {{acc}}();
    var i = start + thread;
    for (; i + {{threads}}u * 3u < end; i += {{threads}}u * 4u) {
        let w = value(i);
        let x = value(i + {{threads}}u);
        let y = value(i + {{threads}}u * 2u);
        let z = value(i + {{threads}}u * 3u);
        a = join(a, w);
        b = join(b, x);
        c = join(c, y);
        d = join(d, z);
    }
    for (; i < end; i += {{threads}}u) {
        a = join(a, value(i));
    }
    if (params.rest > 0u && number + 1u == params.groups && thread == 0u) {
        b = join(b, select({{acc}}(), value(params.whole), EwU(0u, 1u, 2u, 3u) < EwU(params.rest)));
    }
    let result = {{result}};
    if (thread == 0u && number < params.groups) {
        store_result(params.at + number, result);
    }
}
