//! The sum of the results of a row's experts, and the residual. Element-wise: one thread per element.
//!
//! **Bindings.** `pairs` [m][top][n]; `ids` [m][top], of which `NO_EXPERT` adds nothing; `residual` [m][n],
//! if there is one elsewhere; `out` [m][n], which holds the residual if `in_place`.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    n: u32,
    top: u32,
    elements: u32,
}

const NO_EXPERT = 0xffffffffu;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let at = number * {{threads}}u + thread;
    if (at >= params.elements) { return; }
#if residual == "operand"
    var v = residual[at];
#elif residual == "in_place"
    var v = out[at];
#else
    var v = 0.0;
#endif
    let first = at / params.n * params.top;
    let column = at % params.n;
    for (var pair = first; pair < first + params.top; pair++) {
        if (ids[pair] != NO_EXPERT) { v += pairs[pair * params.n + column]; }
    }
    out[at] = v;
}
