//! The mean of the squares of each row of two inputs, beside each other. One workgroup for each row of an
//! input; tree reduction in workgroup memory.
//!
//! **Bindings.** `a` [rows][width_a]; `b` [rows][width_b]; `means` [rows][2].
//!
//! **Preconditions.** `threads` is a power of two.
//!
//! **Bound** by memory bandwidth; not measured.
struct Params {
    rows: u32,
    width_a: u32,
    width_b: u32,
}

var<workgroup> sums: array<f32, {{threads}}>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= 2u * params.rows) { return; }
    let row = number / 2u;
    let is_b = (number & 1u) == 1u;
    let width = select(params.width_a, params.width_b, is_b);
    var squares = 0.0;
    for (var i = thread; i < width; i += {{threads}}u) {
        var x = 0.0;
        if (is_b) { x = b[row * width + i]; } else { x = a[row * width + i]; }
        squares += x * x;
    }
    sums[thread] = squares;
    workgroupBarrier();
    for (var half = {{threads}}u / 2u; half > 0u; half /= 2u) {
        if (thread < half) { sums[thread] += sums[thread + half]; }
        workgroupBarrier();
    }
    if (thread == 0u) { means[number] = sums[0] / f32(width); }
}
