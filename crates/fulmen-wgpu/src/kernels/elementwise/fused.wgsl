{{enable}}// {{label}}: one thread makes {{per_thread}} vectors of 4 elements.
struct Params {
    // Whole vectors; vectors with the one that is cut short; elements of that one.
    whole: u32,
    vectors: u32,
    rest: u32,
{{params}}}

{{aliases}}
{{buffers}}
{{functions}}
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let start = number * {{span}}u;
{{fast}}    for (var k = 0u; k < {{per_thread}}u; k += 1u) {
        let i = start + thread + k * {{threads}}u;
        if (i < params.whole) {
            let r = {{program}};
{{stores}}        } else if (i < params.vectors) {
            let r = {{program}};
{{part_stores}}        }
    }
}
