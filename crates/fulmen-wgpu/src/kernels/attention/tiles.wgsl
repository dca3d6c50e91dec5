// attention: a workgroup takes a head of {{rows}} rows. Scores of {{keys}} keys at a time are made in registers, each
// thread four rows by four keys, from tiles in workgroup memory; then the values are added up, four rows by {{own}}
// vectors for each thread.
struct Params {
    capacity: u32,
    n_seqs: u32,
    m: u32,
    tiles: u32,
    groups: u32,
    scale: f32,
}

alias Val = vec4<f32>;
alias EwF = vec4<f32>;
alias EwI = vec4<i32>;
alias EwU = vec4<u32>;
alias EwB = vec4<bool>;
{{buffers}}
{{functions}}
// Queries by element, then four rows in a vector.
var<workgroup> q_tile: array<vec4<f32>, {{q_vectors}}>;
// Keys by element, four in a vector; or the highest scores; or values by key.
var<workgroup> tile: array<vec4<f32>, {{vectors}}>;
// Weights by key, four rows in a vector.
var<workgroup> weights: array<vec4<f32>, {{weights}}>;
var<workgroup> row_seen: array<u32, {{rows}}>;
{{sequence_array}}
// Loads the queries of elements from `first` on.
fn load_queries(thread: u32, row0: u32, head: u32, first: u32) {
    for (var i = thread; i < {{rows}}u * {{q_units}}u; i += {{threads}}u) {
        let unit = i % {{q_units}}u;
        let r = i / {{q_units}}u;
        let row = min(row0 + r, params.m - 1u);
        let x = q[(row * {{n_heads}}u + head) * {{units}}u + first + unit] * params.scale;
        let at = unit * 4u * {{q_stride}}u + r / 4u;
        q_tile[at][r % 4u] = x.x;
        q_tile[at + {{q_stride}}u][r % 4u] = x.y;
        q_tile[at + 2u * {{q_stride}}u][r % 4u] = x.z;
        q_tile[at + 3u * {{q_stride}}u][r % 4u] = x.w;
    }
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
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
{{load_all}}
    workgroupBarrier();
    // Four rows and four keys of each thread.
    let mine = thread / 8u;
    let across = thread % 8u;
    var top = vec4<f32>(-3.4028234e38);
    var sum = vec4<f32>(0.0);
{{accumulators}}
{{sequences_begin}}
    let seen = vec4<u32>({{seen}});
    let base = key_row(sequence, kv_head, 0u);
    for (var start = 0u; start < limit; start += {{keys}}u) {
        var s0 = vec4<f32>(0.0);
        var s1 = vec4<f32>(0.0);
        var s2 = vec4<f32>(0.0);
        var s3 = vec4<f32>(0.0);
        for (var first = 0u; first < {{units}}u; first += {{chunk_units}}u) {
            for (var i = thread; i < {{keys}}u * {{chunk_units}}u; i += {{threads}}u) {
                let unit = i % {{chunk_units}}u;
                let key = i / {{chunk_units}}u;
                let x = load_k(base + min(start + key, limit - 1u) * {{stride}}u, first + unit);
                let at = unit * 4u * {{k_stride}}u + key / 4u;
                tile[at][key % 4u] = x.x;
                tile[at + {{k_stride}}u][key % 4u] = x.y;
                tile[at + 2u * {{k_stride}}u][key % 4u] = x.z;
                tile[at + 3u * {{k_stride}}u][key % 4u] = x.w;
            }
            {{load_chunk}}
            workgroupBarrier();
            for (var d = 0u; d < {{chunk_units}}u * 4u; d += 1u) {
                let a = q_tile[({{q_first}}d) * {{q_stride}}u + mine];
                let b = tile[d * {{k_stride}}u + across];
                s0 = fma(vec4<f32>(a.x), b, s0);
                s1 = fma(vec4<f32>(a.y), b, s1);
                s2 = fma(vec4<f32>(a.z), b, s2);
                s3 = fma(vec4<f32>(a.w), b, s3);
            }
            workgroupBarrier();
        }
        let key = vec4<u32>(0u, 1u, 2u, 3u) + start + across * 4u;
        let in0 = key < vec4<u32>(seen.x);
        let in1 = key < vec4<u32>(seen.y);
        let in2 = key < vec4<u32>(seen.z);
        let in3 = key < vec4<u32>(seen.w);
        let low = vec4<f32>(-3.4028234e38);
        tile[across * {{row_groups}}u + mine] = vec4<f32>(
            highest(select(low, s0, in0)),
            highest(select(low, s1, in1)),
            highest(select(low, s2, in2)),
            highest(select(low, s3, in3)),
        );
        workgroupBarrier();
        let before = top;
        for (var i = 0u; i < 8u; i += 1u) { top = max(top, tile[i * {{row_groups}}u + mine]); }
        let shrink = ew_exp(before - top);
        let w0 = select(vec4<f32>(0.0), ew_exp(s0 - top.x), in0);
        let w1 = select(vec4<f32>(0.0), ew_exp(s1 - top.y), in1);
        let w2 = select(vec4<f32>(0.0), ew_exp(s2 - top.z), in2);
        let w3 = select(vec4<f32>(0.0), ew_exp(s3 - top.w), in3);
        let to = across * 4u * {{row_groups}}u + mine;
        weights[to] = vec4<f32>(w0.x, w1.x, w2.x, w3.x);
        weights[to + {{row_groups}}u] = vec4<f32>(w0.y, w1.y, w2.y, w3.y);
        weights[to + 2u * {{row_groups}}u] = vec4<f32>(w0.z, w1.z, w2.z, w3.z);
        weights[to + 3u * {{row_groups}}u] = vec4<f32>(w0.w, w1.w, w2.w, w3.w);
        sum *= shrink;
{{shrinks}}
        for (var first = 0u; first < {{keys}}u; first += {{value_keys}}u) {
            workgroupBarrier();
            for (var i = thread; i < {{value_keys}}u * {{units}}u; i += {{threads}}u) {
                let key_at = min(start + first + i / {{units}}u, limit - 1u);
                tile[i] = load_v(base + key_at * {{stride}}u, i % {{units}}u);
            }
            workgroupBarrier();
            for (var k = 0u; k < {{value_keys}}u; k += 1u) {
                let w = weights[(first + k) * {{row_groups}}u + mine];
                sum += w;
{{adds}}
            }
        }
        workgroupBarrier();
    }
{{sequences_end}}
{{results}}
}

fn highest(x: vec4<f32>) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
