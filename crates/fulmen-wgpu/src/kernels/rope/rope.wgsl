//! Rotary position embedding (RoPE): element-wise, one thread per pair of elements, or per element that
//! is only copied.
//!
//! **Work partition.** Threads are numbered over [m][n_heads][items]; the first `pairs` items of a head
//! are rotated pairs, the rest are copied elements.
//!
//! **Bindings.** `x`, `out` [m][n_heads][head_dim] f32, possibly the same memory; `positions` [m];
//! `factors` [pairs], optional.
//!
//! **Pairing.** `neox`: elements i and i + pairs; else elements 2i and 2i + 1.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    count: u32,
}

#include "rope/sin_cos.wgsl"
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (number >= params.count) { return; }
    let item = number % {{items}}u;
    let head = number / {{items}}u;
    let at = head * {{head_dim}}u;
    if (item >= {{pairs}}u) {
        out[at + item + {{pairs}}u] = x[at + item + {{pairs}}u];
        return;
    }
    let rotation = cos_sin(positions[head / {{n_heads}}u], item);
#if neox
    let i = at + item;
    let j = at + item + {{pairs}}u;
#else
    let i = at + 2u * item;
    let j = at + 2u * item + 1u;
#endif
    let a = x[i];
    let b = x[j];
    out[i] = a * rotation.x - b * rotation.y;
    out[j] = a * rotation.y + b * rotation.x;
}
