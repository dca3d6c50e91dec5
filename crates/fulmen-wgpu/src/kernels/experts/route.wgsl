//! Routing of a mixture of experts: the `top` experts of each row by its logits, and their weights. One
//! workgroup per row.
//!
//! **Algorithm.** `top` rounds of argmax over the keys. Keys of all experts are held in workgroup memory as
//! ordered integers. In each of `top` rounds every thread finds the largest key of its part, and all threads
//! the largest of those; equal keys by the lower id. One thread then computes the weights.
//!
//! With groups of experts, one thread for each group first adds up its two largest keys; the keys of all
//! groups but the `groups_used` best become 0, which is below those of any number.
//!
//! **Bindings.** `logits` [m][experts]; `bias` [experts], if there is one; `weights` and `ids` [m][top]:
//! those among the `held` experts from `first` on, or `NO_EXPERT`.
//!
//! **Preconditions.** `top` and `groups` are at most `threads`, and `experts` a multiple of `groups`;
//! workgroup memory holds the keys of `experts` experts, padded to a power of two.
//!
//! **Bound** by the latency of its barriers; not measured.
struct Params {
    m: u32,
    experts: u32,
    top: u32,
    // The experts that are here.
    first: u32,
    held: u32,
    // Bits of an f32.
    scale: u32,
    // Groups of experts, and those of a row; 0 without groups.
    groups: u32,
    groups_used: u32,
}

alias EwF = f32;
alias EwU = u32;
alias EwI = i32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "elementwise/sigmoid.wgsl"

var<workgroup> keys: array<u32, {{experts}}>;
var<workgroup> partial_values: array<f32, {{threads}}>;
var<workgroup> best_keys: array<u32, {{threads}}>;
var<workgroup> best_ids: array<u32, {{threads}}>;
var<workgroup> not_finite: atomic<u32>;

const NO_EXPERT = 0xffffffffu;

fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }

// Integers in the order of the numbers, above 0; -0 equals 0.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if ((bits << 1u) == 0u) { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

#if groups
fn number(ordered: u32) -> f32 {
    return bitcast<f32>(select(~ordered, ordered & 0x7fffffffu, (ordered >> 31u) == 1u));
}

// The sum of the two largest keys of a group, ordered.
fn group_key(group: u32, size: u32) -> u32 {
    var first = 0u;
    var second = 0u;
    for (var i = group * size; i < (group + 1u) * size; i++) {
        second = max(second, min(first, keys[i]));
        first = max(first, keys[i]);
    }
    return ordered(number(first) + number(second));
}

fn leave_best_groups(thread: u32) {
    let size = params.experts / params.groups;
    if (thread < params.groups) { best_keys[thread] = group_key(thread, size); }
    workgroupBarrier();
    for (var i = thread; i < params.experts; i += {{threads}}u) {
        let group = i / size;
        let mine = best_keys[group];
        var better = 0u;
        for (var other = 0u; other < params.groups; other++) {
            let key = best_keys[other];
            if (key > mine || (key == mine && other < group)) { better++; }
        }
        if (better >= params.groups_used) { keys[i] = 0u; }
    }
    workgroupBarrier();
}
#endif

fn score(logit: f32, largest: f32, sum: f32) -> f32 {
#if scores == "softmax"
    return ew_exp(logit - largest) / sum;
#elif scores == "sigmoid"
    return ew_sigmoid(logit);
#else
    return logit;
#endif
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.m) { return; }
    if (thread == 0u) { atomicStore(&not_finite, 0u); }
    workgroupBarrier();
    let base = row * params.experts;
    var largest = 0.0;
    var sum = 1.0;
#if scores == "softmax"
    var most = logits[base];
    for (var i = thread; i < params.experts; i += {{threads}}u) { most = max(most, logits[base + i]); }
    partial_values[thread] = most;
    workgroupBarrier();
    largest = partial_values[0];
    for (var i = 1u; i < {{threads}}u; i++) { largest = max(largest, partial_values[i]); }
    workgroupBarrier();
    var part = 0.0;
    for (var i = thread; i < params.experts; i += {{threads}}u) {
        part += ew_exp(logits[base + i] - largest);
    }
    partial_values[thread] = part;
    workgroupBarrier();
    sum = 0.0;
    for (var i = 0u; i < {{threads}}u; i++) { sum += partial_values[i]; }
#endif
    for (var i = thread; i < params.experts; i += {{threads}}u) {
        let logit = logits[base + i];
#if bias
        let key = score(logit, largest, sum) + bias[i];
#elif groups
        let key = score(logit, largest, sum);
#else
        let key = logit;
#endif
        if (!is_finite(logit) || !is_finite(key)) { atomicStore(&not_finite, 1u); }
        keys[i] = ordered(key);
    }
    workgroupBarrier();
    let fails = atomicLoad(&not_finite) != 0u;
#if groups
    leave_best_groups(thread);
#endif
    let to = row * params.top;
    for (var slot = 0u; slot < params.top; slot++) {
        var key = 0u;
        var id = 0u;
        for (var i = thread; i < params.experts; i += {{threads}}u) {
            if (keys[i] > key) {
                key = keys[i];
                id = i;
            }
        }
        best_keys[thread] = key;
        best_ids[thread] = id;
        workgroupBarrier();
        for (var i = 0u; i < {{threads}}u; i++) {
            if (best_keys[i] > key || (best_keys[i] == key && best_ids[i] < id)) {
                key = best_keys[i];
                id = best_ids[i];
            }
        }
        workgroupBarrier();
        if (thread == 0u) {
            keys[id] = 0u;
            // Below `first` the difference wraps around.
            let held = select(id, slot, fails) - params.first;
            ids[to + slot] = select(NO_EXPERT, held, held < params.held);
            partial_values[slot] = score(logits[base + id], largest, sum);
        }
        workgroupBarrier();
    }
    if (thread != 0u) { return; }
    var total = 1.0;
#if scores == "selected"
    // The first one has the largest logit unless there is a bias.
    var first = partial_values[0];
    for (var i = 1u; i < params.top; i++) { first = max(first, partial_values[i]); }
    total = 0.0;
    for (var i = 0u; i < params.top; i++) {
        partial_values[i] = ew_exp(partial_values[i] - first);
        total += partial_values[i];
    }
    for (var i = 0u; i < params.top; i++) { partial_values[i] = partial_values[i] / total; }
    total = 1.0;
#endif
#if renormalize
    total = 0.0;
    for (var i = 0u; i < params.top; i++) { total += partial_values[i]; }
    total = max(total, 6.103515625e-5);
#endif
    for (var i = 0u; i < params.top; i++) {
        let weight = partial_values[i] / total * bitcast<f32>(params.scale);
        weights[to + i] = ew_or_nan(weight, fails);
    }
}
