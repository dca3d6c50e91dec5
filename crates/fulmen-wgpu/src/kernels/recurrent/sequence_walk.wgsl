//! Helper functions that walk over the rows of one sequence, called by one thread: `first_row(row)`,
//! `next_row(row)`. They read up to m sequence numbers for each row.
//!
//! Expects `params.m`, `params.n_seqs`, the bindings `positions` and, with `sequences`, `sequences` [m], and
//! `fault.wgsl`. Without `sequences` all rows are of one sequence, and the first row is row 0: only one
//! thread or workgroup starts a walk (`StateRows::starts`). No walk begins at an inactive row.
const NO_ROW = 0xffffffffu;
// The sequence number of an inactive row, whose output is 0.
const NO_STATE = 0xffffffffu;

#if sequences
fn sequence_of(row: u32) -> u32 { return sequences[row]; }

// `row`, if no earlier row is of the same sequence. Rows of a sequence mostly follow each other, so the
// search goes backward.
fn first_row(row: u32) -> u32 {
    let sequence = sequences[row];
    if (sequence == NO_STATE) { return NO_ROW; }
    if (sequence >= params.n_seqs) {
        report(FAULT_SEQUENCE, row, sequence, params.n_seqs);
        return NO_ROW;
    }
    for (var earlier = row; earlier > 0u; earlier--) {
        if (sequences[earlier - 1u] == sequence) { return NO_ROW; }
    }
    return row;
}

// The next row of the same sequence.
fn next_row(row: u32) -> u32 {
    let sequence = sequences[row];
    for (var later = row + 1u; later < params.m; later++) {
        if (sequences[later] == sequence) { return later; }
    }
    return NO_ROW;
}
#else
fn sequence_of(row: u32) -> u32 { return 0u; }

fn first_row(row: u32) -> u32 { return row; }

fn next_row(row: u32) -> u32 { return select(NO_ROW, row + 1u, row + 1u < params.m); }
#endif
