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
// The highest score of each part; what its values are multiplied by; what its weights add up to.
var<workgroup> tops: array<vec4<f32>, {{quads}}>;
var<workgroup> factors: array<f32, {{most}}>;
var<workgroup> totals: array<vec4<f32>, {{quads}}>;
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
    let last = max(used, 1u) - 1u;
    let at = number * params.chunks;
    let unit = min(thread % {{across}}u, {{units}}u - 1u);
    let split = thread / {{across}}u;
    // The first parts are on their way while their factors are made. What no chunk wrote is not used.
{{early}}
    for (var c = thread; c < {{most}}u; c += {{threads}}u) {
        let stat = stats[at + min(c, last)];
        tops[c / 4u][c % 4u] = select(-3.4028234e38, stat.x, c < used);
    }
    workgroupBarrier();
    var highest = vec4<f32>(-3.4028234e38);
    for (var i = 0u; i < {{quads}}u; i += 1u) { highest = max(highest, tops[i]); }
    let top = max(max(highest.x, highest.y), max(highest.z, highest.w));
    for (var c = thread; c < {{most}}u; c += {{threads}}u) {
        let stat = stats[at + min(c, last)];
        let factor = ew_exp(stat.x - top);
        factors[c] = factor;
        totals[c / 4u][c % 4u] = select(0.0, factor * stat.y, c < used);
    }
    workgroupBarrier();
    var four = vec4<f32>(0.0);
    for (var i = 0u; i < {{quads}}u; i += 1u) { four += totals[i]; }
    let total = (four.x + four.y) + (four.z + four.w);
    var sum = Val(0.0);
{{add_early}}
    for (var c = split + {{early_parts}}u; c < used; c += {{splits}}u) {
        sum += factors[c] * parts[(at + c) * {{units}}u + unit];
    }
    values[thread] = sum;
    workgroupBarrier();
    if (thread < {{units}}u) {
        for (var s = 1u; s < {{splits}}u; s += 1u) { sum += values[s * {{across}}u + thread]; }
        let result = select(sum / total, Val(0.0), total == 0.0);
        out[number * {{units}}u + thread] = result;
{{keep}}    }
{{make_codes}}}
