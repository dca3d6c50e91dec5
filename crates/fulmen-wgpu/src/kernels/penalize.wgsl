//! Repetition, frequency and presence penalties. One workgroup per row; one thread per token of the
//! row's recent history.
//!
//! **Algorithm.** Three passes over the history, separated by barriers: clear the counts of its tokens,
//! count them with atomics, then apply the penalty. The thread whose atomicExchange takes a count
//! applies it, so each token is penalized once.
//!
//! **Bindings.** `penalties` [m] of (repeat, frequency, presence, window length); `history`
//! [n_seqs][capacity]; `positions`, `sequences` [m]; `out` [m][n] logits, in place; `fault`; `counts`
//! [m][n], scratch, of which only the entries of tokens in the history are used.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory latency: a few hundred scattered accesses per row; not measured.
struct Params {
    m: u32,
    n: u32,
    n_seqs: u32,
    capacity: u32,
}

#include "fault.wgsl"
fn is_finite(bits: u32) -> bool { return (bits & 0x7fffffffu) < 0x7f800000u; }

// The fault of a row: code (0 if there is none), value and limit.
fn fault_of(penalty: vec4<u32>, position: u32, sequence: u32) -> vec3<u32> {
    if (sequence >= params.n_seqs) { return vec3<u32>(FAULT_SEQUENCE, sequence, params.n_seqs); }
    if (position >= params.capacity) { return vec3<u32>(FAULT_POSITION, position, params.capacity); }
    let positive = penalty.x > 0u && penalty.x < 0x80000000u;
    if (!positive || !is_finite(penalty.x)) { return vec3<u32>(FAULT_REPEAT, penalty.x, 0u); }
    if (!is_finite(penalty.y)) { return vec3<u32>(FAULT_FREQUENCY, penalty.y, 0u); }
    if (!is_finite(penalty.z)) { return vec3<u32>(FAULT_PRESENCE, penalty.z, 0u); }
    return vec3<u32>(0u, 0u, 0u);
}

var<workgroup> wrong: atomic<u32>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.x + grid.x * (group.y + grid.y * group.z);
    if (row >= params.m) { return; }
    let position = positions[row];
    let sequence = {{sequences ? "sequences[row]" : "0u"}};
    let penalty = penalties[row];
    let invalid_row = fault_of(penalty, position, sequence);
    if (invalid_row.x != 0u && thread == 0u) { report(invalid_row.x, row, invalid_row.y, invalid_row.z); }
    let end = select(position + 1u, 0u, invalid_row.x != 0u);
    let start = end - min(end, penalty.w);
    let past = sequence * params.capacity;
    let at = row * params.n;
    if (thread == 0u) { atomicStore(&wrong, 0u); }
    workgroupBarrier();
    for (var i = start + thread; i < end; i += {{threads}}u) {
        let token = history[past + i];
        if (token < params.n) {
            atomicStore(&counts[at + token], 0u);
        } else {
            atomicStore(&wrong, 1u);
            report(FAULT_TOKEN, row, token, params.n);
        }
    }
    storageBarrier();
    workgroupBarrier();
    let stop = select(end, start, atomicLoad(&wrong) == 1u);
    for (var i = start + thread; i < stop; i += {{threads}}u) {
        atomicAdd(&counts[at + history[past + i]], 1u);
    }
    storageBarrier();
    workgroupBarrier();
    let repeat = bitcast<f32>(penalty.x);
    for (var i = start + thread; i < stop; i += {{threads}}u) {
        let token = history[past + i];
        let count = atomicExchange(&counts[at + token], 0u);
        if (count > 0u) {
            let logit = out[at + token];
            let scaled = select(logit * repeat, logit / repeat, logit > 0.0);
            out[at + token] = scaled - (f32(count) * bitcast<f32>(penalty.y) + bitcast<f32>(penalty.z));
        }
    }
}
