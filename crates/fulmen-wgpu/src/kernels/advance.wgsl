//! Advance to the next decode step: element-wise, one thread per row.
//!
//! The sampled token becomes the next input token, the position goes up by one (but stays below the
//! capacity), and the token is appended to the history.
//!
//! **Bindings.** `drawn`, `tokens`, `positions`, `sequences` [m]; `history` [n_seqs][capacity]; `fault`.
//!
//! **Preconditions.** None.
//!
//! **Bound** by launch latency; not measured.
#include "history_rows.wgsl"

fn run_row(row: u32, sequence: u32) {
    let token = drawn[row];
    let position = positions[row];
    let last = params.capacity - 1u;
    // Saturates at the last position, without overflow.
    let next = select(last, position + 1u, position < last);
    tokens[row] = token;
    positions[row] = next;
    history[sequence * params.capacity + next] = token;
}
