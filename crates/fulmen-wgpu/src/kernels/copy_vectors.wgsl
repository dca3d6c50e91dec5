//! Copy of 16-byte vectors. Element-wise: one thread copies one vector.
//!
//! **Bindings.** `src`, `dst`: vec4<u32>.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params { vectors: u32 }


@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (i < params.vectors) { dst[i] = src[i]; }
}
