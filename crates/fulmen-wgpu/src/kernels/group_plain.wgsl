var<workgroup> {{name}}_shared: array<{{type}}, {{threads}}>;
fn {{name}}_of(a: {{type}}, b: {{type}}) -> {{type}} { return {{combine}}; }
// A tree in workgroup memory.
fn {{name}}(value: {{type}}) -> {{type}} {
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
}
