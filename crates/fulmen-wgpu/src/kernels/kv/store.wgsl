//! KV store, alone or with per-head RMS norm and RoPE: writes the keys and values of new rows into the
//! cache, rounded to its type, and rotates the queries.
//!
//! **Work partition.** One workgroup per head of a row (a task); tasks of a row are numbered through
//! the inputs (queries, keys, values), each with its number of heads. The head is staged in workgroup
//! memory; elements are strided over the threads, and the norm is a workgroup reduction.
//!
//! **Bindings.** Each input [m][heads][head_dim] f32, its `gamma` [head_dim] (optional), and its
//! output: `out` rows of the same layout, or a cache [n_pages][n_kv_heads][page][head_dim], in Q8_0 with
//! the scales of a page and head behind its values; `factors` [pairs], optional; either `slots` [m] (see
//! `kv/find_slots.wgsl`), or `positions`, `sequences` [m], `pages` and `fault`. Caches are arrays of words;
//! where a word may belong to two positions (an odd number of 16-bit units each) it is updated atomically.
//!
//! **Rows of one slot.** The last row of the batch with a slot wins. Small batches find that out here;
//! large ones in a separate launch.
//!
//! **Preconditions.** With Q8_0, `head_dim` is a multiple of 32.
//!
//! **Bound** by launch latency in decode, by memory bandwidth in prefill; not measured.
struct Params {
    m: u32,
    n_seqs: u32,
    capacity: u32,
    n_pages: u32,
    tasks: u32,
    epsilon: f32,
}

#if !has_slots
#include "fault.wgsl"
#endif
#include "workgroup/reduce.wgsl"
#if !has_slots
#include "kv/sequence_of.wgsl"
#endif
#if rotates
#include "rope/sin_cos.wgsl"
#endif
var<workgroup> head_values: array<f32, {{head_dim}}>;
var<workgroup> later: atomic<u32>;
#if stores && kv_type != "f32"
#include "kv/f16_bits.wgsl"
#include "kv/encode_{{kv_type}}.wgsl"
#endif

@compute @workgroup_size({{threads}})
fn main(
#include "workgroup/main_arguments.wgsl"
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
#include "workgroup/main_init.wgsl"
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.tasks) { return; }
    let row = number / {{tasks_per_row}}u;
    let task = number % {{tasks_per_row}}u;
#if has_slots
    let slot = slots[row];
    let position = slot.x;
    let page = slot.y;
    let placed = slot.y != 0xffffffffu;
    let stays = slot.y != 0xfffffffeu;
#else
#include "kv/slot.wgsl"
#endif
#for p in 0..len(inputs)
  #define input inputs[p]
  #define heads input_heads[p]
  #define gamma gammas[p]
  #define output outputs[p]
    if (task >= {{first_tasks[p]}}u && task < {{first_tasks[p] + heads}}u) {
        let head = task - {{first_tasks[p]}}u;
        let at = (row * {{heads}}u + head) * {{head_dim}}u;
  #if gamma == ""
        for (var d = thread; d < {{head_dim}}u; d += {{threads}}u) { head_values[d] = {{input}}[at + d]; }
  #else
        var sum_of_squares = 0.0;
        for (var d = thread; d < {{head_dim}}u; d += {{threads}}u) {
            let x = {{input}}[at + d];
            head_values[d] = x;
            sum_of_squares += x * x;
        }
        let factor = 1.0 / sqrt(group_sum(sum_of_squares) / {{head_dim}}.0 + params.epsilon);
        for (var d = thread; d < {{head_dim}}u; d += {{threads}}u) {
            head_values[d] = head_values[d] * factor * {{gamma}}[d];
        }
  #endif
        workgroupBarrier();
  #if rotated[p]
    #define first neox ? "i" : "2u * i"
    #define second neox ? "i + " + pairs + "u" : "2u * i + 1u"
        for (var i = thread; i < {{pairs}}u; i += {{threads}}u) {
            let rotation = cos_sin(position, i);
            let a = head_values[{{first}}];
            let b = head_values[{{second}}];
            head_values[{{first}}] = a * rotation.x - b * rotation.y;
            head_values[{{second}}] = a * rotation.y + b * rotation.x;
        }
        workgroupBarrier();
  #endif
  #if !to_cache[p]
        if (placed) {
            for (var d = thread; d < {{head_dim}}u; d += {{threads}}u) {
                {{output}}[at + d] = head_values[d];
            }
        }
  #elif kv_type == "f32"
        if (placed && stays) {
            let to = ((page * {{heads}}u + head) * {{page}}u + position % {{page}}u) * {{head_dim}}u;
            for (var d = thread; d < {{head_dim}}u; d += {{threads}}u) {
                {{output}}[to + d] = bitcast<u32>(head_values[d]);
            }
        }
  #elif kv_type == "q8_0"
        prepare(thread);
        if (placed && stays) {
            let head_words = (page * {{heads}}u + head) * {{page * head_dim / 32 * 34 / 4}}u;
            let values_at = head_words + position % {{page}}u * {{head_dim / 4}}u;
            for (var w = thread; w < {{head_dim / 4}}u; w += {{threads}}u) {
    #if whole_words
                {{output}}[values_at + w] = quants_of(w);
    #else
                atomicStore(&{{output}}[values_at + w], quants_of(w));
    #endif
            }
            // Scales, in 16-bit units.
            let scales_at = head_words + {{page * head_dim / 4}}u;
            let first = position % {{page}}u * {{head_dim / 32}}u;
    #if whole_words
            for (var w = thread; w < {{head_dim / 64}}u; w += {{threads}}u) {
                {{output}}[scales_at + first / 2u + w] =
                    scale_bits[2u * w] | (scale_bits[2u * w + 1u] << 16u);
            }
    #else
            // Two workgroups may write the two scales of one word.
            for (var i = thread; i < {{head_dim / 32}}u; i += {{threads}}u) {
                let shift = ((first + i) & 1u) * 16u;
                let word = scales_at + (first + i) / 2u;
                atomicAnd(&{{output}}[word], 0xffff0000u >> shift);
                atomicOr(&{{output}}[word], scale_bits[i] << shift);
            }
    #endif
        }
  #elif whole_words
        prepare(thread);
        if (placed && stays) {
            let to = ((page * {{heads}}u + head) * {{page}}u + position % {{page}}u) * {{head_dim / 2}}u;
            for (var w = thread; w < {{head_dim / 2}}u; w += {{threads}}u) {
                {{output}}[to + w] = cache_bits(2u * w) | (cache_bits(2u * w + 1u) << 16u);
            }
        }
  #else
        prepare(thread);
        if (placed && stays) {
            // Two workgroups may write the two 16-bit units of one word.
            let to = ((page * {{heads}}u + head) * {{page}}u + position % {{page}}u) * {{head_dim}}u;
            for (var i = thread; i < {{head_dim}}u; i += {{threads}}u) {
                let shift = ((to + i) & 1u) * 16u;
                atomicAnd(&{{output}}[(to + i) >> 1u], 0xffff0000u >> shift);
                atomicOr(&{{output}}[(to + i) >> 1u], cache_bits(i) << shift);
            }
        }
  #endif
    }
#endfor
}
