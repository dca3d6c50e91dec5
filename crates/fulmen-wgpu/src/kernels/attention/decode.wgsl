//! Attention for decode and small batches: flash decoding (split-KV) with online softmax.
//!
//! **Work partition.** One workgroup (256 threads where the device allows) computes `heads` (1 to 4)
//! query heads of one row that share a KV head (grouped-query attention), over one chunk of the row's
//! context. With several chunks the partial results and their softmax statistics go to `parts`, and
//! `split_kv_reduce.wgsl` combines them.
//!
//! **Tile.** The chunk is processed in tiles of `block` positions:
//! 1. Teams of `lanes` threads compute the scores q·k, 4 positions per team at a time. A team reduces
//!    its dot products with subgroup shuffles, or through workgroup memory where there are no suitable
//!    subgroups.
//! 2. The running maximum is updated and the weights exp(score - maximum) are stored in workgroup memory.
//! 3. Each thread owns one vector of the head (`vec`) and every `splits`-th position, and accumulates
//!    weight · value. The first four values are loaded before step 1, to overlap their latency with the
//!    scores.
//!
//! **Bindings.** `q` [m][n_heads][head_dim] f32; `k`, `v` as in `kv_reader.wgsl`, `pages` as in
//! `kv_pages.wgsl`; `positions`, `sequences` [m]; `fault`; either `out` as `q`, or `parts`
//! [m][n_heads][chunks][head_dim] followed by [m][n_heads][chunks] of (maximum, sum of weights), see
//! `split_kv_stats.wgsl`. With `fused_rope`, see `fused_rope_store.wgsl`.
//!
//! **Preconditions.** `head_dim / width` rounded up to a power of two is at most `threads`; `lanes` is
//! a power of two.
//!
//! **Bound** by memory bandwidth for long contexts: it reads every key and value once per KV head. At 1000
//! positions it is bound by latency: 17 µs per dispatch on an H200 (Qwen3-4B, with fused RoPE and KV store),
//! which is 123 GB/s of 4350.
struct Params {
    capacity: u32,
    n_seqs: u32,
    n_pages: u32,
    chunks: u32,
    groups: u32,
    parts: u32,
    scale: f32,
#if fused_rope
    epsilon: f32,
#endif
#include "attention/score_params.wgsl"
}

// Elements of a head that are loaded at once.
alias Val = {{val}};
// One value per query head of the workgroup.
#define heads_vector heads == 1 ? "" : "vec" + heads
alias EwF = {{heads == 1 ? "f32" : heads_vector + "<f32>"}};
alias EwI = {{heads == 1 ? "i32" : heads_vector + "<i32>"}};
alias EwU = {{heads == 1 ? "u32" : heads_vector + "<u32>"}};
alias EwB = {{heads == 1 ? "bool" : heads_vector + "<bool>"}};
#include "attention/visible_keys.wgsl"
#include "attention/kv_pages.wgsl"
#include "attention/kv_reader.wgsl"
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "attention/scores.wgsl"
#if width == 4
fn product_of(a: Val, b: Val) -> f32 { return dot(a, b); }
#else
fn product_of(a: Val, b: Val) -> f32 { return a * b; }
#endif
#if fused_rope
#include "attention/fused_rope_functions.wgsl"
#endif
#if split_kv
#include "attention/split_kv_stats.wgsl"
fn put_stats(at: u32, stats: vec2<f32>) {
  #if width == 4
    parts[stats_at(at)] = vec4<f32>(stats, 0.0, 0.0);
  #else
    parts[stats_at(at)] = stats.x;
    parts[stats_at(at) + 1u] = stats.y;
  #endif
}
#endif
// Scores, then weights.
var<workgroup> weights: array<EwF, {{block}}>;
var<workgroup> tops: array<EwF, {{teams}}>;
var<workgroup> sums: array<EwF, {{splits}}>;
var<workgroup> values: array<Val, {{threads}}>;
#if !shuffle
var<workgroup> dots: array<EwF, {{threads}}>;
#endif

@compute @workgroup_size({{threads}})
fn main(
#if shuffle
    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_width: u32,
#endif
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
#if shuffle
    // Teams must lie within a subgroup, whatever the mapping of local indices to subgroups.
    let thread = subgroup * subgroup_width + lane_in_subgroup;
#else
    let thread = local;
#endif
    let chunk = number % params.chunks;
    let sets_at = number / params.chunks;
    let row = sets_at / {{sets}}u;
    let of_row = sets_at % {{sets}}u;
    let kv_head = of_row / {{head_blocks}}u;
    let first_head = kv_head * {{group}}u + of_row % {{head_blocks}}u * {{heads}}u;
    let seen = seen_by(row);
    if (chunk == 0u && of_row == 0u && thread == 0u) { report_invalid_row(row); }
    // The positions of this chunk: a multiple of 8 per chunk, and at least {{min_chunk}}.
    let first_key = first_seen(seen);
    let each = max({{min_chunk}}u, ((seen - first_key + params.chunks - 1u) / params.chunks + 7u) & ~7u);
    let begin = min(first_key + chunk * each, seen);
    let end = min(begin + each, seen);
    let sequence = sequence_of(row);

#if fused_rope
#include "attention/fused_rope_store.wgsl"
#endif
    let lane = thread % {{lanes}}u;
    let team = thread / {{lanes}}u;
    let scale = scale_of(row);
    // The lane's part of the queries, scaled. Head blocks may be partly empty: surplus heads repeat the
    // last head.
#for h in 0..heads
    let q{{h}}_at = (row * {{n_heads}}u + min(first_head + {{h}}u, {{n_heads - 1}}u)) * {{vecs}}u;
#endfor
#for k in 0..per_lane
  #define in_range (k + 1) * lanes <= vecs
  #if in_range
    let vec_{{k}} = lane + {{k * lanes}}u;
  #else
    let vec_{{k}} = min(lane + {{k * lanes}}u, {{vecs - 1}}u);
  #endif
  #for h in 0..heads
    #define query fused_rope ? "rotated_query(" + h + "u, vec_" + k + ")" : "q[q" + h + "_at + vec_" + k + "]"
    #if in_range
    let q{{h}}_{{k}} = {{query}} * scale;
    #else
    let q{{h}}_{{k}} = select(Val(0.0), {{query}} * scale, lane + {{k * lanes}}u < {{vecs}}u);
    #endif
  #endfor
#endfor

    let vec = min(thread % {{across}}u, {{vecs}}u - 1u);
    let split = thread / {{across}}u;
    var top = EwF(-3.4028234e38);
    var sum = EwF(0.0);
#for h in 0..heads
    var acc{{h}} = Val(0.0);
#endfor
    for (var start = begin; start < end; start += {{block}}u) {
        let count = min({{block}}u, end - start);
        let block_rows = page_rows(sequence, kv_head, start);
        if (of_row == 0u && thread == 0u) { report_invalid_pages(row, sequence, start, start + count - 1u); }
        // Issue the loads of the first values; the scores hide their latency.
#for u in 0..4
        let early_at{{u}} = start + min(split + {{u * splits}}u, count - 1u);
        let early{{u}} = load_v(row_of(block_rows, start, early_at{{u}}), vec);
#endfor

        // 1. Scores.
        var highest = top;
        for (var first = 0u; first < count; first += {{teams * unroll}}u) {
#for u in 0..unroll
            let p{{u}} = first + team + {{u * teams}}u;
            let r{{u}} = row_of(block_rows, start, start + min(p{{u}}, count - 1u));
#endfor
#for u in 0..unroll
  #for k in 0..per_lane
            let k{{u}}_{{k}} = load_k(r{{u}}, vec_{{k}});
  #endfor
#endfor
#for u in 0..unroll
            var s{{u}} = EwF(
  #for h in 0..heads
    #for k in 0..per_lane
                {{k > 0 ? "+ " : ""}}product_of(q{{h}}_{{k}}, k{{u}}_{{k}})
    #endfor
                {{h + 1 < heads ? "," : ""}}
  #endfor
            );
  #if shuffle
    #for i in 0..lanes_log2
            s{{u}} += subgroupShuffleXor(s{{u}}, {{lanes >> i + 1}}u);
    #endfor
  #else
            dots[thread] = s{{u}};
            workgroupBarrier();
            s{{u}} = EwF(0.0);
            for (var i = 0u; i < {{lanes}}u; i += 1u) { s{{u}} += dots[team * {{lanes}}u + i]; }
            workgroupBarrier();
  #endif
  #if softcap
            s{{u}} = capped(s{{u}});
  #endif
            if (p{{u}} < count) {
                highest = max(highest, s{{u}});
                if (lane == 0u) { weights[p{{u}}] = s{{u}}; }
            }
#endfor
        }

        // 2. Online softmax: the new maximum rescales what was accumulated so far.
        if (lane == 0u) { tops[team] = highest; }
        workgroupBarrier();
        let before = top;
        for (var t = 0u; t < {{teams}}u; t += 1u) { top = max(top, tops[t]); }
        let shrink = ew_exp(before - top);
        sum *= shrink;
#for h in 0..heads
        acc{{h}} *= shrink{{heads == 1 ? "" : "[" + h + "]"}};
#endfor
        for (var i = thread; i < count; i += {{threads}}u) { weights[i] = ew_exp(weights[i] - top); }
        workgroupBarrier();

        // 3. Weighted values: the first four, then four at a time, then the rest.
#for u in 0..4
        if (split + {{u * splits}}u < count) {
            let w = weights[split + {{u * splits}}u];
            sum += w;
  #for h in 0..heads
            acc{{h}} += w{{heads == 1 ? "" : "[" + h + "]"}} * early{{u}};
  #endfor
        }
#endfor
        var p = split + {{4 * splits}}u;
#macro add_values(count)
  #for u in 0..count
            let v{{u}} = load_v(row_of(block_rows, start, start + p + {{u * splits}}u), vec);
  #endfor
  #for u in 0..count
            let w{{u}} = weights[p + {{u * splits}}u];
            sum += w{{u}};
    #for h in 0..heads
            acc{{h}} += w{{u}}{{heads == 1 ? "" : "[" + h + "]"}} * v{{u}};
    #endfor
  #endfor
#endmacro
        for (; p + {{3 * splits}}u < count; p += {{4 * splits}}u) {
#expand add_values(4)
        }
        for (; p < count; p += {{splits}}u) {
#expand add_values(1)
        }
        workgroupBarrier();
    }

    if (thread % {{across}}u == 0u) { sums[split] = sum; }
    workgroupBarrier();
    var total = EwF(0.0);
    for (var s = 0u; s < {{splits}}u; s += 1u) { total += sums[s]; }
    // Sum over the splits, head by head. Chunks without positions are not stored; nothing reads them.
    let mine = split == 0u && thread < {{vecs}}u;
#for h in 0..heads
  #define of heads == 1 ? "" : "[" + h + "]"
    values[thread] = acc{{h}};
    workgroupBarrier();
    if (mine && first_head + {{h}}u < (kv_head + 1u) * {{group}}u{{split_kv ? " && begin < end" : ""}}) {
        var result = acc{{h}};
        for (var s = 1u; s < {{splits}}u; s += 1u) { result += values[s * {{across}}u + thread]; }
  #if split_kv
        let at = (row * {{n_heads}}u + first_head + {{h}}u) * params.chunks + chunk;
        parts[at * {{vecs}}u + thread] = result;
        if (thread == 0u) { put_stats(at, vec2<f32>(top{{of}}, total{{of}})); }
  #else
        out[(row * {{n_heads}}u + first_head + {{h}}u) * {{vecs}}u + thread] =
            select(result / total{{of}}, Val(0.0), total{{of}} == 0.0);
  #endif
    }
    workgroupBarrier();
#endfor
}
