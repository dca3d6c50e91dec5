//! Gather of tokens: element-wise, one thread per row.
//!
//! The token of a row is that of its sequence in the history, at its position. `NO_TOKEN` (all bits set),
//! left by a row whose logits had no finite maximum, becomes token 0, in the history as well.
//!
//! **Bindings.** `positions`, `sequences`, `tokens` [m]; `history` [n_seqs][capacity]; `fault`.
//!
//! **Preconditions.** None.
//!
//! **Bound** by launch latency; not measured.
#include "history_rows.wgsl"

fn run_row(row: u32, sequence: u32) {
    let position = positions[row];
    if (position >= params.capacity) {
        report(FAULT_POSITION, row, position, params.capacity);
        return;
    }
    let at = sequence * params.capacity + position;
    var token = history[at];
    if (token == 0xffffffffu) {
        token = 0u;
        history[at] = 0u;
    }
    tokens[row] = token;
}
