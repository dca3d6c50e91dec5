//! Reduction of a whole array (sum, dot product, maximum, minimum): one stage of a tree reduction.
//!
//! **Work partition.** Each workgroup reduces a span of `params.span` vectors of 4 elements to one
//! value: a thread accumulates every `threads`-th vector in four independent accumulators, then the
//! workgroup reduces its threads (`workgroup/reduce.wgsl`). The next stage reduces the results of this
//! one.
//!
//! **Bindings.** `x` (and `y` for dot products), f32 or f16; `result`: one f32 per workgroup.
//!
//! Maxima and minima reduce order-preserving integer keys (`order_key.wgsl`), so that NaN wins.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
#if f16
enable f16;
#endif
#define keys op == "max" || op == "min"
#define acc keys ? "EwU" : "EwF"
#define sign op == "min" ? "-" : ""
struct Params {
    // Whole vectors; elements of a partial vector after them; vectors per workgroup; workgroups; index
    // of the first result.
    whole: u32,
    rest: u32,
    span: u32,
    groups: u32,
    at: u32,
}

#include "storage/lanes.wgsl"
{{accessors}}
#include "workgroup/reduce.wgsl"
#if keys
#include "order_key.wgsl"
fn join(a: EwU, b: EwU) -> EwU { return max(a, b); }
fn value(i: u32) -> EwU { return order_key({{sign}}load_x(i)); }
#else
fn join(a: EwF, b: EwF) -> EwF { return a + b; }
fn value(i: u32) -> EwF { return load_x(i){{op == "dot" ? " * load_y(i)" : ""}}; }
#endif
@compute @workgroup_size({{threads}})
fn main(
#include "workgroup/main_arguments.wgsl"
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
#include "workgroup/main_init.wgsl"
    let number = group.x + grid.x * (group.y + grid.y * group.z);
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
#if keys
    let result = {{sign}}of_order_key(group_max_key(lanes_max_key(join(join(a, b), join(c, d)))));
#else
    let result = group_sum(lanes_sum(join(join(a, b), join(c, d))));
#endif
    if (thread == 0u && number < params.groups) {
        store_result(params.at + number, result);
    }
}
