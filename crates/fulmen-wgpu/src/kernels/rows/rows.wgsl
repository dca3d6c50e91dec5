//! Row-wise kernels (softmax, norms, row reductions): the frame around the body of one op.
//!
//! **Work partition.** A team of `team` threads (a power of two, up to the whole workgroup) takes one
//! row; short rows share a workgroup. Each thread strides over the row's vectors. If a row fits in
//! registers (`kept`, at most 8 vectors per thread) it is loaded once. Team-wide sums and maxima are
//! reductions in `workgroup/reduce.wgsl`.
//!
//! **Bindings.** `x`: [rows][width], f32 or f16; inputs of one row that all rows share (`gamma`,
//! `beta`); `out` like `x`, or one f32 per row for reductions. In place, `out` is missing and results
//! are stored to `x`.
//!
//! **Bodies** are `rows/<body>.wgsl`. They use `row`, `place` (the thread's index in its team), `at`
//! and `out_at` (the row's first vector), the loop `#expand for_each_vector()` ... `}` with the vector
//! index `i`, `{{value}}` (vector `i` of the row) and `{{store}}(i, v)`.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth. H200, 65536 x 1024: RMS norm 3.06 TB/s, softmax 1.95 TB/s of 4.35
//! (docs/lab/wgpu-kernels.md).
#if f16
enable f16;
#endif
struct Params {
    // Rows; `EwF` vectors per row; where the first row starts in the input and in the output; elements
    // per row.
    rows: u32,
    vecs: u32,
    x_at: u32,
    out_at: u32,
    width: f32,
#if has_eps
    eps: f32,
#endif
}

#include "storage/lanes.wgsl"
{{accessors}}
#include "workgroup/reduce.wgsl"
#if body == "softmax"
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#elif body == "row_max"
#include "order_key.wgsl"
#endif
#define value kept ? "kept[k]" : "load_x(at + i)"
#define store in_place ? "store_x" : "store_out"
#macro for_each_vector()
  #if kept
    for (var k = 0u; k < {{per_thread}}u; k += 1u) {
        let i = place + k * {{team}}u;
        if (i >= vecs) { break; }
  #else
    for (var i = place; i < vecs; i += {{team}}u) {
  #endif
#endmacro
@compute @workgroup_size({{threads}})
fn main(
#include "workgroup/main_arguments.wgsl"
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
#include "workgroup/main_init.wgsl"
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    let row = number * ({{threads}}u / {{team}}u) + thread / {{team}}u;
    let place = thread % {{team}}u;
    // Threads without a row take part in the barriers.
    let vecs = select(0u, params.vecs, row < params.rows);
    let at = params.x_at + row * params.vecs;
    let out_at = params.out_at + row * params.vecs;
#if kept
    var kept: array<EwF, {{per_thread}}>;
    for (var k = 0u; k < {{per_thread}}u; k += 1u) {
        let i = place + k * {{team}}u;
        if (i < vecs) { kept[k] = load_x(at + i); }
    }
#endif
#include "rows/{{body}}.wgsl"
}
