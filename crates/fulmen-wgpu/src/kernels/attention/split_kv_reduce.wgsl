//! The split-KV reduction of flash decoding: combines the partial results of `decode.wgsl`.
//!
//! **Work partition.** One workgroup (128 threads where the device allows) per query head of a row. The
//! chunk maxima and weights are reduced by all threads; then each thread sums one vector of the head
//! over every `splits`-th chunk, and the splits are summed through workgroup memory. The first `early`
//! chunks are loaded before the factors are known.
//!
//! **Bindings.** `positions`, `sequences` [m]; `parts` [m][n_heads][chunks][head_dim], then
//! [m][n_heads][chunks] of (maximum, sum of weights); `out` [m][n_heads][head_dim]; with `sinks`, `sinks`
//! [n_heads], logits that take part in the softmax and have no value; with `q8`, `dst`:
//! the result as q8 activations for a quantized matmul, where one thread quantizes 32 values; with
//! `keep_queries`, `rotated` and `q_out`, as `out`.
//!
//! **Preconditions.** At most `max_chunks` chunks; with `q8`, `head_dim` is a multiple of 32.
//!
//! **Bound** by launch latency: it reads `chunks` partial results of a few hundred bytes per head. 17 µs
//! per dispatch at 1000 positions on an H200 (Qwen3-4B, docs/lab/wgpu-models.md).
struct Params {
    capacity: u32,
    n_seqs: u32,
    n_pages: u32,
    chunks: u32,
    groups: u32,
    parts: u32,
#if window
    window: u32,
#endif
#if chunked
    attention_chunk: u32,
#endif
}

alias Val = {{val}};
alias EwF = f32;
alias EwI = i32;
alias EwU = u32;
alias EwB = bool;
#include "attention/visible_keys.wgsl"
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "attention/scores.wgsl"
#include "attention/split_kv_stats.wgsl"
fn stats_of(at: u32) -> vec2<f32> {
#if width == 4
    return parts[stats_at(at)].xy;
#else
    return vec2<f32>(parts[stats_at(at)], parts[stats_at(at) + 1u]);
#endif
}
#if q8
#include "qmatmul/q8_block.wgsl"
#endif
// For each chunk: its maximum score, the factor that rescales its values to the common maximum, and its
// rescaled sum of weights.
var<workgroup> tops: array<vec4<f32>, {{max_chunks / 4}}>;
var<workgroup> factors: array<f32, {{max_chunks}}>;
var<workgroup> totals: array<vec4<f32>, {{max_chunks / 4}}>;
var<workgroup> values: array<Val, {{threads}}>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    // The chunks that decode.wgsl used.
    let seen = seen_by(number / {{n_heads}}u);
    let keys = seen - first_seen(seen);
    let each = max({{min_chunk}}u, ((keys + params.chunks - 1u) / params.chunks + 7u) & ~7u);
    let used = (keys + each - 1u) / each;
    let last = max(used, 1u) - 1u;
    let at = number * params.chunks;
    let vec = min(thread % {{across}}u, {{vecs}}u - 1u);
    let split = thread / {{across}}u;
    // Issue the loads of the first chunks early. Chunks that were not written are loaded but not used.
#for i in 0..early
    let early{{i}} = parts[(at + min(split + {{i * splits}}u, last)) * {{vecs}}u + vec];
#endfor
    for (var c = thread; c < {{max_chunks}}u; c += {{threads}}u) {
        let stat = stats_of(at + min(c, last));
        tops[c / 4u][c % 4u] = select(-3.4028234e38, stat.x, c < used);
    }
    workgroupBarrier();
    var highest = vec4<f32>(-3.4028234e38);
    for (var i = 0u; i < {{max_chunks / 4}}u; i += 1u) { highest = max(highest, tops[i]); }
#if sinks
    let sink = sinks[number % {{n_heads}}u];
    let top = max(sink, max(max(highest.x, highest.y), max(highest.z, highest.w)));
#else
    let top = max(max(highest.x, highest.y), max(highest.z, highest.w));
#endif
    for (var c = thread; c < {{max_chunks}}u; c += {{threads}}u) {
        let stat = stats_of(at + min(c, last));
        let factor = ew_exp(stat.x - top);
        factors[c] = factor;
        totals[c / 4u][c % 4u] = select(0.0, factor * stat.y, c < used);
    }
    workgroupBarrier();
    var four = vec4<f32>(0.0);
    for (var i = 0u; i < {{max_chunks / 4}}u; i += 1u) { four += totals[i]; }
    let total = (four.x + four.y) + (four.z + four.w){{sinks ? " + ew_exp(sink - top)" : ""}};
    var sum = Val(0.0);
#for i in 0..early
    if (split + {{i * splits}}u < used) { sum += factors[split + {{i * splits}}u] * early{{i}}; }
#endfor
    for (var c = split + {{early * splits}}u; c < used; c += {{splits}}u) {
        sum += factors[c] * parts[(at + c) * {{vecs}}u + vec];
    }
    values[thread] = sum;
    workgroupBarrier();
    if (thread < {{vecs}}u) {
        for (var s = 1u; s < {{splits}}u; s += 1u) { sum += values[s * {{across}}u + thread]; }
        let result = select(sum / total, Val(0.0), total == 0.0);
        out[number * {{vecs}}u + thread] = result;
#if q8
        values[thread] = result;
#endif
#if keep_queries
        // An invalid row keeps its queries.
        if (seen > 0u) { q_out[number * {{vecs}}u + thread] = rotated[number * {{vecs}}u + thread]; }
#endif
    }
#if q8
    workgroupBarrier();
    if (thread < {{vecs / 8}}u) {
        let block = number % {{n_heads}}u * {{vecs / 8}}u + thread;
        put_q8_block(
            {{q8_at}},
  #for i in 0..8
            values[thread * 8u + {{i}}u],
  #endfor
        );
    }
#endif
}
