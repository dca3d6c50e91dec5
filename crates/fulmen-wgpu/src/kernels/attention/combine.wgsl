// attention: puts the parts of a head's context together. A workgroup takes a head of a row.
struct Params {
    capacity: u32,
    n_seqs: u32,
    chunks: u32,
    groups: u32,
}

alias Val = {{val}};
alias EwF = f32;
alias EwI = i32;
alias EwU = u32;
alias EwB = bool;
{{buffers}}
{{functions}}
var<workgroup> values: array<Val, {{threads}}>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let seen = seen_by(number / {{n_heads}}u);
    let each = max({{least}}u, ((seen + params.chunks - 1u) / params.chunks + 7u) & ~7u);
    let used = (seen + each - 1u) / each;
    let at = number * params.chunks;
    let unit = min(thread % {{across}}u, {{units}}u - 1u);
    let split = thread / {{across}}u;
    var top = -3.4028234e38;
    for (var c = 0u; c < used; c += 1u) { top = max(top, stats[at + c].x); }
    var total = 0.0;
    for (var c = 0u; c < used; c += 1u) {
        let stat = stats[at + c];
        total += ew_exp(stat.x - top) * stat.y;
    }
    var sum = Val(0.0);
    for (var c = split; c < used; c += {{splits}}u) {
        sum += ew_exp(stats[at + c].x - top) * parts[(at + c) * {{units}}u + unit];
    }
    values[thread] = sum;
    workgroupBarrier();
    if (thread < {{units}}u) {
        for (var s = 1u; s < {{splits}}u; s += 1u) { sum += values[s * {{across}}u + thread]; }
        out[number * {{units}}u + thread] = select(sum / total, Val(0.0), total == 0.0);
    }
}
