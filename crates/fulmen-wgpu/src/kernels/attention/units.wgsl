{{enable}}// attention: a workgroup takes a head of {{rows}} rows, each of its teams of 32 threads 16 of them. Products go through squares of 16 by
// 16: scores of {{keys}} keys at a time, then what their values add to the sums. Between the two, two threads of a
// team make weights of a row's scores.
struct Params {
    capacity: u32,
    n_seqs: u32,
    m: u32,
    tiles: u32,
    groups: u32,
    scale: f32,
}

alias Val = vec4<f32>;
{{buffers}}
{{functions}}
// Vectors between rows: one or two more than a row has, so that eight rows do not meet in one bank.
const LD = {{ld}}u;
const WLD = {{weights_ld}}u;
const SLD = {{scores_ld}}u;
// The same for the part of the queries that is loaded at once.
const QLD = {{q_ld}}u;
// All of these have a multiple of 16 bytes: squares must begin at such a one, and drivers place one array behind the other.
// Parts of the queries, then keys or values of a block.
var<workgroup> slab: array<vec4<f16>, {{slab}}>;
// Scores, or sums that are multiplied or stored, or what a thread tells the other one of its row.
var<workgroup> scores: array<vec4<f32>, {{scores}}>;
var<workgroup> weights: array<vec4<f16>, {{weights}}>;
// What the sums of a row are to be multiplied by, and whether that is not 1 for any row.
var<workgroup> factors: array<f32, {{rows}}>;
var<workgroup> changed: vec4<u32>;
var<workgroup> row_seen: array<u32, {{rows}}>;
{{sequence_array}}
@compute @workgroup_size({{threads}})
fn main(
{{builtins}}    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
{{who}}
    let head = number % {{n_heads}}u;
    // The last rows see most: they begin first.
    let row0 = (params.tiles - 1u - number / {{n_heads}}u) * {{rows}}u;
    let kv_head = head / {{group}}u;
    for (var r = thread; r < {{rows}}u; r += {{threads}}u) {
        let row = min(row0 + r, params.m - 1u);
        if (head == 0u) { tell(row); }
        row_seen[r] = select(0u, seen_by(row), row0 + r < params.m);
        {{keep_sequence}}
    }
    // A row of a team, and the half of its keys, that a thread has.
    let mine = team * 16u + lane / 2u;
    let side = lane % 2u;
    let own_row = min(row0 + mine, params.m - 1u);
    let query = (own_row * {{n_heads}}u + head) * {{units}}u;
    // Queries in 16 bits: multiplied by the power of two that brings the largest of the row near 2^13.
    var bits = vec4<u32>();
    for (var u = side; u < {{units}}u; u += 2u) {
        bits = max(bits, bitcast<vec4<u32>>(q[query + u]) & vec4<u32>(0x7fffffffu));
    }
    scores[thread].x = bitcast<f32>(max(max(bits.x, bits.y), max(bits.z, bits.w)));
    workgroupBarrier();
    let most = max(bitcast<u32>(scores[thread].x), bitcast<u32>(scores[thread ^ 1u].x));
    let strange = most >= 0x7f800000u;
    let exponent = clamp(127 + 13 - (i32(most >> 23u) - 127), 13, 227);
    let power = bitcast<f32>(u32(exponent) << 23u);
    // Scores times this are exponents of two.
    let scale = bitcast<f32>(u32(254 - exponent) << 23u) * params.scale * 1.44269504;
{{queries}}
    var top = -3.4028234e38;
    var sum = 0.0;
{{sums}}
{{places}}
{{registers}}
{{sequences_begin}}
    let seen = {{seen}};
    let base = key_row(sequence, kv_head, 0u);
    if (limit > 0u) {
        let next = 0u;
{{fetch_keys}}
{{fetch_values}}
    }
    for (var start = 0u; start < limit; start += {{keys}}u) {
{{put_keys}}
        if (thread == 0u) { changed = vec4<u32>(); }
        workgroupBarrier();
        let next = start + {{keys}}u;
        if (next < limit) {
{{fetch_keys}}
        }
        {
{{multiply_keys}}
        }
        workgroupBarrier();
        // Keys of the thread's half that the row sees.
        let first = start + side * {{half}}u;
        let left = max(seen, first) - first;
{{own_scores}}
        var highest = vec4<f32>(-3.4028234e38);
{{highest}}
        let own_top = max(max(highest.x, highest.y), max(highest.z, highest.w));
        let new_top = {{new_top}};
        // Weights of up to 2^8 are as good as those of up to 1, so the sums are seldom multiplied.
        let shrinks = new_top > top + 8.0;
        let factor = select(1.0, exp2(top - new_top), shrinks);
        top = select(top, new_top, shrinks);
        sum *= factor;
        if (shrinks) { changed.x = 1u; }
        if (side == 0u) { factors[mine] = factor; }
{{own_weights}}
{{put_values}}
        if (next < limit) {
{{fetch_values}}
        }
        if (workgroupUniformLoad(&changed).x != 0u) {
{{shrink}}
        }
        {
{{multiply_values}}
        }
        workgroupBarrier();
    }
{{sequences_end}}
    scores[thread].x = sum;
    workgroupBarrier();
    let total = scores[thread].x + scores[thread ^ 1u].x;
    workgroupBarrier();
    let share = select(1.0 / total, 0.0, total == 0.0);
{{results}}
}
