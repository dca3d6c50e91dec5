var<workgroup> {{name}}_shared: array<{{type}}, {{threads}}>;
fn {{name}}_of(a: {{type}}, b: {{type}}) -> {{type}} { return {{combine}}; }
// Each subgroup by itself, then their results, which every thread takes in the same order.
fn {{name}}(value: {{type}}) -> {{type}} {
    let own = {{subgroup}}(value);
    if (group_lane == 0u) {
        {{name}}_shared[group_part] = own;
    }
    workgroupBarrier();
    var result: {{type}} = {{none}};
    for (var k = 0u; k < group_parts; k += 1u) {
        result = {{name}}_of(result, {{name}}_shared[k]);
    }
    workgroupBarrier();
    return result;
}
