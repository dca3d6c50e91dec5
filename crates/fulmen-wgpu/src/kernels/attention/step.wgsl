// attention: a workgroup takes {{heads}} query heads of a row that share keys, over a part of what the row sees. Teams of
// {{lanes}} threads make the scores of a block of positions; then each thread adds up some values of them.
struct Params {
    capacity: u32,
    n_seqs: u32,
    chunks: u32,
    groups: u32,
    scale: f32,
{{more_params}}}

alias Val = {{val}};
// One of each head.
alias EwF = {{float}};
alias EwI = {{int}};
alias EwU = {{uint}};
alias EwB = {{bool}};
{{buffers}}
{{functions}}
// Scores, then weights.
var<workgroup> weights: array<EwF, {{block}}>;
var<workgroup> tops: array<EwF, {{teams}}>;
var<workgroup> sums: array<EwF, {{splits}}>;
var<workgroup> values: array<Val, {{threads}}>;
{{shared}}
@compute @workgroup_size({{threads}})
fn main(
{{arguments}}    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let thread = {{thread}};
    let chunk = number % params.chunks;
    let sets_at = number / params.chunks;
    let row = sets_at / {{sets}}u;
    let of_row = sets_at % {{sets}}u;
    let kv_head = of_row / {{head_blocks}}u;
    let first_head = kv_head * {{group}}u + of_row % {{head_blocks}}u * {{heads}}u;
    let seen = seen_by(row);
    if (chunk == 0u && of_row == 0u && thread == 0u) { tell(row); }
    let each = max({{least}}u, ((seen + params.chunks - 1u) / params.chunks + 7u) & ~7u);
    let begin = min(chunk * each, seen);
    let end = min(begin + each, seen);
    let base = key_row(sequence_of(row), kv_head, 0u);

{{before}}
    let lane = thread % {{lanes}}u;
    let team = thread / {{lanes}}u;
{{queries}}
    let unit = min(thread % {{across}}u, {{units}}u - 1u);
    let split = thread / {{across}}u;
    var top = EwF(-3.4028234e38);
    var sum = EwF(0.0);
{{accumulators}}
    for (var start = begin; start < end; start += {{block}}u) {
        let count = min({{block}}u, end - start);
        let block_row = base + start * {{stride}}u;
        // The first values are on their way while the scores are made.
{{early}}
        var highest = top;
        for (var first = 0u; first < count; first += {{step}}u) {
{{scores}}
        }
        if (lane == 0u) { tops[team] = highest; }
        workgroupBarrier();
        let before = top;
        for (var t = 0u; t < {{teams}}u; t += 1u) { top = max(top, tops[t]); }
        let shrink = ew_exp(before - top);
        sum *= shrink;
{{shrinks}}
        for (var i = thread; i < count; i += {{threads}}u) { weights[i] = ew_exp(weights[i] - top); }
        workgroupBarrier();
{{first_four}}
        var p = split + {{stride4}}u;
        for (; p + {{last}}u < count; p += {{stride4}}u) {
{{four}}
        }
        for (; p < count; p += {{splits}}u) {
{{one}}
        }
        workgroupBarrier();
    }

    if (thread % {{across}}u == 0u) { sums[split] = sum; }
    workgroupBarrier();
    var total = EwF(0.0);
    for (var s = 0u; s < {{splits}}u; s += 1u) { total += sums[s]; }
    let mine = split == 0u && thread < {{units}}u;
{{results}}
}
