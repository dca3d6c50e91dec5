//! Helper functions: reduction (sum, maximum) over the threads of a workgroup, or over each `team` of
//! its `threads`.
//!
//! Defines `group_sum(f32)`, `group_max(f32)` and `group_max_key(u32)`, as `reduce_sum`, `reduce_max`
//! and `reduce_max_key` say. All threads must call them together; each gets the result of its team.
//! With `reduce_subgroups` each subgroup reduces by itself and all threads combine the subgroups'
//! results in the same order; else it is a tree reduction in workgroup memory.
//!
//! `main` takes the arguments of `workgroup/main_arguments.wgsl` and starts with `workgroup/main_init.wgsl`.
#macro reduction(name, type, combine, subgroup_op, identity)
  #if team == 1
fn {{name}}(value: {{type}}) -> {{type}} { return value; }
  #else
var<workgroup> {{name}}_shared: array<{{type}}, {{threads}}>;
fn {{name}}_of(a: {{type}}, b: {{type}}) -> {{type}} { return {{combine}}; }
fn {{name}}(value: {{type}}) -> {{type}} {
    #if reduce_subgroups
    let own = {{subgroup_op}}(value);
    if (group_lane == 0u) {
        {{name}}_shared[group_part] = own;
    }
    workgroupBarrier();
    var result: {{type}} = {{identity}};
    for (var k = 0u; k < group_parts; k += 1u) {
        result = {{name}}_of(result, {{name}}_shared[k]);
    }
    workgroupBarrier();
    return result;
    #else
    {{name}}_shared[group_thread] = value;
    workgroupBarrier();
    let place = group_thread % {{team}}u;
    for (var width = {{team}}u / 2u; width > 0u; width /= 2u) {
        if (place < width) {
            let other = {{name}}_shared[group_thread + width];
            {{name}}_shared[group_thread] = {{name}}_of({{name}}_shared[group_thread], other);
        }
        workgroupBarrier();
    }
    let result = {{name}}_shared[group_thread - place];
    workgroupBarrier();
    return result;
    #endif
}
  #endif
#endmacro
var<private> group_thread: u32;
#if reduce_subgroups
var<private> group_lane: u32;
var<private> group_part: u32;
var<private> group_parts: u32;
#endif
#if reduce_sum
#expand reduction("group_sum", "f32", "a + b", "subgroupAdd", "0.0")
#endif
#if reduce_max
#expand reduction("group_max", "f32", "max(a, b)", "subgroupMax", "-3.4028234e38")
#endif
#if reduce_max_key
#expand reduction("group_max_key", "u32", "max(a, b)", "subgroupMax", "0u")
#endif
