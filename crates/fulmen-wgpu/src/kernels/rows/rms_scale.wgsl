//! RMS norm of rows whose mean squares are given, as sums over ranks. One thread per element.
//!
//! **Bindings.** `x` (unless in place) and `y` [rows][width]; `means` [rows][columns]; `gamma` [width].
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    n: u32,
    width: u32,
    columns: u32,
    column: u32,
    ranks: u32,
    // Bits of an f32.
    epsilon: u32,
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = (group.x + grid.x * (group.y + grid.y * group.z)) * {{threads}}u + thread;
    if (at >= params.n) { return; }
    let mean = means[at / params.width * params.columns + params.column] / f32(params.ranks);
    let factor = 1.0 / sqrt(mean + bitcast<f32>(params.epsilon));
    y[at] = {{in_place ? "y[at]" : "x[at]"}} * factor * gamma[at % params.width];
}
