//! Logit biases and token masks: a scatter-add, then a masked fill.
//!
//! **Tile.** One workgroup (256 threads where the device allows) per part (4096 logits) of a row; threads
//! stride over the slot's biases and over the logits of the part.
//!
//! **Algorithm.** A workgroup adds the biases of the tokens in its part, and after a barrier sets the logits
//! that the mask excludes to -inf. A row without a slot, or of a slot without edits, is left after one read.
//!
//! **Bindings.** `edits` [n_slots][2 + 2 capacity] words (`LogitEdits`); `masks` [n_slots][ceil(n / 32)]
//! words, bit t % 32 of word t / 32 allows token t; `slots` [m]; `out` [m][n] bits of logits, in place;
//! `fault`.
//!
//! **Preconditions.** The tokens of a slot's biases are distinct.
//!
//! **Bound** by latency for slots without edits, else by memory bandwidth; not measured.
struct Params {
    n: u32,
    part: u32,
    parts: u32,
    groups: u32,
    n_slots: u32,
    capacity: u32,
    mask_words: u32,
}

#include "fault.wgsl"
const NO_SLOT = 0xffffffffu;
// The bits of -inf.
const EXCLUDED = 0xff800000u;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let row = number / params.parts;
    let slot = {{slots ? "slots[row]" : "row"}};
    let begin = number % params.parts * params.part;
    let end = min(begin + params.part, params.n);
    var masked = 0u;
    var count = 0u;
    let at = slot * (2u + 2u * params.capacity);
    if (slot < params.n_slots) {
        masked = edits[at];
        count = edits[at + 1u];
    } else if (slot != NO_SLOT && thread == 0u) {
        report(FAULT_SLOT, row, slot, params.n_slots);
    }
    if (count > params.capacity) {
        if (thread == 0u) { report(FAULT_BIASES, row, count, params.capacity); }
        count = 0u;
    }
    for (var i = thread; i < count; i += {{threads}}u) {
        let token = edits[at + 2u + 2u * i];
        let bits = edits[at + 3u + 2u * i];
        // NaN and +inf are no biases.
        let is_bias = bits == EXCLUDED || (bits & 0x7fffffffu) < 0x7f800000u;
        if (token >= params.n) {
            report(FAULT_TOKEN, row, token, params.n);
        } else if (!is_bias) {
            report(FAULT_BIAS, row, bits, token);
        } else if (token >= begin && token < end) {
            let logit = bitcast<f32>(out[row * params.n + token]);
            let biased = bitcast<u32>(logit + bitcast<f32>(bits));
            out[row * params.n + token] = select(biased, EXCLUDED, bits == EXCLUDED);
        }
    }
    storageBarrier();
    let stop = select(begin, end, masked != 0u);
    for (var i = begin + thread; i < stop; i += {{threads}}u) {
        let word = masks[slot * params.mask_words + i / 32u];
        if (((word >> (i % 32u)) & 1u) == 0u) { out[row * params.n + i] = EXCLUDED; }
    }
}
