//! Log-probabilities, launch 2 of 2: merges the parts of each row and writes the values and their tokens.
//!
//! **Work partition.** One workgroup per row; threads stride over the pairs of all parts.
//!
//! **Algorithm.** The sum of weights is rescaled to the row's largest logit, by a tree reduction. The most
//! likely tokens are found one by one, each the largest pair below the previous one.
//!
//! **Bindings.** `logits` [m][n] f32; `tokens` [m]; `best` [m][parts][listed] and `sums` [m][parts] of
//! launch 1; `values` and `indices` [m][1 + top].
//!
//! **Preconditions.** None.
//!
//! **Bound** by latency; not measured.
struct Params {
    n: u32,
    parts: u32,
    rows: u32,
    listed: u32,
    top: u32,
}

alias EwF = f32;
alias EwI = i32;
alias EwU = u32;
alias EwB = bool;
#include "elementwise/nan.wgsl"
#include "elementwise/exp.wgsl"
#include "argmax_key.wgsl"
#include "argmax_reduce.wgsl"
#include "argmax_below.wgsl"
const NO_TOKEN = 0xffffffffu;
const NAN_BITS = 0x7fc00000u;
const NEGATIVE_INFINITY_BITS = 0xff800000u;
// The order key of +inf.
const INFINITY_KEY = 0xff800000u;
var<workgroup> partial: array<f32, {{threads}}>;

// The bits of a log-probability: of a pair, or none if its key is 0.
fn log_prob(key: u32, top_key: u32, log_sum: f32) -> u32 {
    if (top_key == 0u || top_key >= INFINITY_KEY) { return NAN_BITS; }
    if (key == 0u) { return NEGATIVE_INFINITY_BITS; }
    return bitcast<u32>(value_of_key(key) - value_of_key(top_key) - log_sum);
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.rows) { return; }
    let pairs = params.parts * params.listed;
    let width = 1u + params.top;
    var largest = vec2<u32>(0u, NO_TOKEN);
    for (var part = thread; part < params.parts; part += {{threads}}u) {
        largest = larger(largest, best[row * pairs + part * params.listed]);
    }
    largest = largest_of_all(thread, largest);
    let top_key = largest.x;
    let top = value_of_key(top_key);
    let finite = top_key > 0u && top_key < INFINITY_KEY;
    var sum = 0.0;
    for (var part = thread; part < params.parts; part += {{threads}}u) {
        let key = best[row * pairs + part * params.listed].x;
        if (finite && key > 0u) { sum += sums[row * params.parts + part] * ew_exp(value_of_key(key) - top); }
    }
    partial[thread] = sum;
    workgroupBarrier();
    for (var half = {{threads}}u / 2u; half > 0u; half /= 2u) {
        if (thread < half) { partial[thread] += partial[thread + half]; }
        workgroupBarrier();
    }
    let log_sum = log(partial[0]);
    if (thread == 0u) {
        let token = tokens[row];
        var bits = NAN_BITS;
        if (token < params.n) {
            let key = key_of(logits[row * params.n + token], token);
            bits = log_prob(key.x, top_key, log_sum);
        }
        values[row * width] = bits;
        indices[row * width] = token;
    }
    var previous = vec2<u32>(0xffffffffu, 0u);
    for (var at = 1u; at < width; at += 1u) {
        var own = vec2<u32>(0u, NO_TOKEN);
        for (var i = thread; i < pairs; i += {{threads}}u) {
            let pair = best[row * pairs + i];
            if (is_below(pair, previous)) { own = larger(own, pair); }
        }
        previous = largest_of_all(thread, own);
        if (thread == 0u) {
            values[row * width + at] = log_prob(previous.x, top_key, log_sum);
            indices[row * width + at] = select(NO_TOKEN, previous.y, finite && previous.x > 0u);
        }
    }
}
