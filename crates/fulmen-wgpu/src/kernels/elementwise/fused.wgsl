{{enable}}// {{label}}: a thread makes one vector of 4 elements.
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
    let i = number * {{threads}}u + thread;
    if (i < params.whole) {
        let r = {{program}};
{{stores}}    } else if (i < params.vectors) {
        let r = {{program}};
{{part_stores}}    }
}
