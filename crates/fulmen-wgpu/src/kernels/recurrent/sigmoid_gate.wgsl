//! Sigmoid gates: `x · sigmoid(gate)`, where a gate covers `span` neighboring elements. One thread per
//! element.
//!
//! **Bindings.** `x` (unless in place) and `y` [n]; `gate` [n / span].
//!
//! **Preconditions.** n is a multiple of `span`.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    n: u32,
    span: u32,
}

alias EwF = f32;
alias EwU = u32;
alias EwI = i32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "elementwise/sigmoid.wgsl"

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (at >= params.n) { return; }
    let g = gate[at / params.span];
    let value = {{in_place ? "y[at]" : "x[at]"}};
    y[at] = ew_keep_nan(value, value * ew_keep_nan(g, ew_sigmoid(g)));
}
