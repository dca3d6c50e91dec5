//! Attention for prefill: tiled flash attention in f32, with online softmax.
//!
//! **Work partition.** One workgroup of `threads` (128) threads computes one head of a tile of `rows`
//! (64) query rows. It walks over the keys in tiles of `keys` (32):
//! 1. Scores: a 64 x 32 register-tiled matmul of `q_tile` and the key tile in workgroup memory, 4 rows
//!    x 4 keys per thread, `chunk_vecs` vectors of the head at a time.
//! 2. Online softmax: row maxima are reduced through workgroup memory, and the accumulators are rescaled.
//! 3. Values: `value_keys` keys at a time go through workgroup memory; each thread accumulates 4 rows x
//!    `own` vectors of the head in registers.
//!
//! Query tiles are started in reverse order, because the last rows of a causal mask have the most work.
//!
//! **Bindings.** `q`, `out` [m][n_heads][head_dim] f32; `k`, `v` as in `kv_reader.wgsl`, `pages` as in
//! `kv_pages.wgsl`; `positions`, `sequences` [m]; `fault`; `sinks` [n_heads]. A tile of keys lies in one
//! page.
//!
//! **Preconditions.** `head_dim` is a multiple of 32 and at most 256.
//!
//! **Bound** by f32 arithmetic without tensor cores: about 12 TFLOP/s on an H200, 2.8 ms per layer at 2048
//! rows of Qwen3-4B.
struct Params {
    capacity: u32,
    n_seqs: u32,
    n_pages: u32,
    m: u32,
    tiles: u32,
    groups: u32,
    scale: f32,
#include "attention/score_params.wgsl"
}

alias Val = vec4<f32>;
alias EwF = vec4<f32>;
alias EwI = vec4<i32>;
alias EwU = vec4<u32>;
alias EwB = vec4<bool>;
#include "attention/visible_keys.wgsl"
#include "attention/kv_pages.wgsl"
#include "attention/kv_reader.wgsl"
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "attention/scores.wgsl"
// Queries: [element][row / 4], four rows per vector.
var<workgroup> q_tile: array<vec4<f32>, {{q_vectors}}>;
// Keys: [element][key / 4], four keys per vector; or row maxima; or values: [key][vector].
var<workgroup> tile: array<vec4<f32>, {{vectors}}>;
// Softmax weights: [key][row / 4], four rows per vector.
var<workgroup> weights: array<vec4<f32>, {{keys * rows / 4}}>;
#include "attention/tile_rows.wgsl"

// Loads `q_vecs` vectors of every query row of the tile, from vector `first` on, transposed and scaled.
fn load_queries(thread: u32, row0: u32, head: u32, first: u32) {
    for (var i = thread; i < {{rows}}u * {{q_vecs}}u; i += {{threads}}u) {
        let vec = i % {{q_vecs}}u;
        let r = i / {{q_vecs}}u;
        let row = min(row0 + r, params.m - 1u);
        let x = q[(row * {{n_heads}}u + head) * {{vecs}}u + first + vec] * scale_of(row);
        let at = vec * 4u * {{q_stride}}u + r / 4u;
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
    let row0 = first_row(number);
    let kv_head = head / {{group}}u;
    stage_rows(row0, head, thread);
#if q_whole
    load_queries(thread, row0, head, 0u);
#endif
    workgroupBarrier();
    // Each thread has 4 rows (group `mine`) and, for the scores, 4 keys (group `across`).
    let mine = thread / 8u;
    let across = thread % 8u;
    var top = vec4<f32>(-3.4028234e38);
    var sum = vec4<f32>(0.0);
#for r in 0..4
  #for j in 0..own
    var acc{{r}}_{{j}} = vec4<f32>(0.0);
  #endfor
#endfor
#include "attention/tile_sequences.wgsl"
    // How many keys of this sequence each of the thread's rows sees.
    let seen = vec4<u32>(
#for r in 0..4
  #if sequences
        select(0u, row_seen[mine * 4u + {{r}}u], row_sequence[mine * 4u + {{r}}u] == sequence),
  #else
        row_seen[mine * 4u + {{r}}u],
  #endif
#endfor
    );
#if window || chunked
    let first_key = vec4<u32>(
  #for r in 0..4
        first_seen(seen[{{r}}]),
  #endfor
    );
    // The first tile with a key that any of the rows attends to.
    var start = limit;
    for (var r = 0u; r < {{rows}}u; r += 1u) {
        let in_sequence = row_seen[r] > 0u{{sequences ? " && row_sequence[r] == sequence" : ""}};
        if (in_sequence) { start = min(start, first_seen(row_seen[r])); }
    }
    start = start / {{keys}}u * {{keys}}u;
#else
    var start = 0u;
#endif
    for (; start < limit; start += {{keys}}u) {
        let first_row = row_at(sequence, kv_head, start);
        let last_key = limit - 1u - start;
        if (head == 0u && thread == 0u) { report_invalid_pages(row0, sequence, start, start); }
        // 1. Scores.
        var s0 = vec4<f32>(0.0);
        var s1 = vec4<f32>(0.0);
        var s2 = vec4<f32>(0.0);
        var s3 = vec4<f32>(0.0);
        for (var first = 0u; first < {{vecs}}u; first += {{chunk_vecs}}u) {
            for (var i = thread; i < {{keys}}u * {{chunk_vecs}}u; i += {{threads}}u) {
                let vec = i % {{chunk_vecs}}u;
                let key = i / {{chunk_vecs}}u;
                let x = load_k(first_row + min(key, last_key) * {{row_stride}}u, first + vec);
                let at = vec * 4u * {{k_stride}}u + key / 4u;
                tile[at][key % 4u] = x.x;
                tile[at + {{k_stride}}u][key % 4u] = x.y;
                tile[at + 2u * {{k_stride}}u][key % 4u] = x.z;
                tile[at + 3u * {{k_stride}}u][key % 4u] = x.w;
            }
#if !q_whole
            load_queries(thread, row0, head, first);
#endif
            workgroupBarrier();
            for (var d = 0u; d < {{chunk_vecs}}u * 4u; d += 1u) {
                let a = q_tile[({{q_whole ? "first * 4u + " : ""}}d) * {{q_stride}}u + mine];
                let b = tile[d * {{k_stride}}u + across];
                s0 = fma(vec4<f32>(a.x), b, s0);
                s1 = fma(vec4<f32>(a.y), b, s1);
                s2 = fma(vec4<f32>(a.z), b, s2);
                s3 = fma(vec4<f32>(a.w), b, s3);
            }
            workgroupBarrier();
        }
        // 2. Causal mask and online softmax.
        let key = vec4<u32>(0u, 1u, 2u, 3u) + start + across * 4u;
#for r in 0..4
  #if softcap
        s{{r}} = capped(s{{r}});
  #endif
  #define in_window window || chunked ? " & (key >= vec4<u32>(first_key[" + r + "]))" : ""
        let in{{r}} = (key < vec4<u32>(seen[{{r}}])){{in_window}};
#endfor
        let low = vec4<f32>(-3.4028234e38);
        tile[across * {{rows / 4}}u + mine] = vec4<f32>(
            highest(select(low, s0, in0)),
            highest(select(low, s1, in1)),
            highest(select(low, s2, in2)),
            highest(select(low, s3, in3)),
        );
        workgroupBarrier();
        let before = top;
        for (var i = 0u; i < 8u; i += 1u) { top = max(top, tile[i * {{rows / 4}}u + mine]); }
        let shrink = ew_exp(before - top);
        let w0 = select(vec4<f32>(0.0), ew_exp(s0 - top.x), in0);
        let w1 = select(vec4<f32>(0.0), ew_exp(s1 - top.y), in1);
        let w2 = select(vec4<f32>(0.0), ew_exp(s2 - top.z), in2);
        let w3 = select(vec4<f32>(0.0), ew_exp(s3 - top.w), in3);
        let to = across * 4u * {{rows / 4}}u + mine;
        weights[to] = vec4<f32>(w0.x, w1.x, w2.x, w3.x);
        weights[to + {{rows / 4}}u] = vec4<f32>(w0.y, w1.y, w2.y, w3.y);
        weights[to + 2u * {{rows / 4}}u] = vec4<f32>(w0.z, w1.z, w2.z, w3.z);
        weights[to + 3u * {{rows / 4}}u] = vec4<f32>(w0.w, w1.w, w2.w, w3.w);
        sum *= shrink;
#for r in 0..4
  #for j in 0..own
        acc{{r}}_{{j}} *= shrink[{{r}}];
  #endfor
#endfor
        // 3. Weighted values.
        for (var first = 0u; first < {{keys}}u; first += {{value_keys}}u) {
            workgroupBarrier();
            for (var i = thread; i < {{value_keys}}u * {{vecs}}u; i += {{threads}}u) {
                let key_at = min(first + i / {{vecs}}u, last_key);
                tile[i] = load_v(first_row + key_at * {{row_stride}}u, i % {{vecs}}u);
            }
            workgroupBarrier();
            for (var k = 0u; k < {{value_keys}}u; k += 1u) {
                let w = weights[(first + k) * {{rows / 4}}u + mine];
                sum += w;
#for j in 0..own
                let v{{j}} = tile[k * {{vecs}}u + across + {{8 * j}}u];
#endfor
#for r in 0..4
  #for j in 0..own
                acc{{r}}_{{j}} = fma(vec4<f32>(w[{{r}}]), v{{j}}, acc{{r}}_{{j}});
  #endfor
#endfor
            }
        }
        workgroupBarrier();
    }
#if sequences
    }
#endif
#for r in 0..4
    if (row0 + mine * 4u + {{r}}u < params.m) {
  #if sinks
        let rest = with_sink(top[{{r}}], sinks[head]);
        let inverse_sum = rest.x / (sum[{{r}}] * rest.x + rest.y);
  #else
        let inverse_sum = select(1.0 / sum[{{r}}], 0.0, sum[{{r}}] == 0.0);
  #endif
        let at = ((row0 + mine * 4u + {{r}}u) * {{n_heads}}u + head) * {{vecs}}u + across;
  #for j in 0..own
        out[at + {{8 * j}}u] = acc{{r}}_{{j}} * inverse_sum;
  #endfor
    }
#endfor
}

fn highest(x: vec4<f32>) -> f32 { return max(max(x.x, x.y), max(x.z, x.w)); }
