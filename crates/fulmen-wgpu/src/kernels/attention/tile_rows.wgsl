//! The rows of a workgroup of the prefill kernels, of which one query head at a time is a tile.
//!
//! - `first_row(number)`: the first row of the workgroup with that number.
//! - `stage_rows(row0, head, thread)`: what each row sees, and its sequence, into workgroup memory; by all
//!   threads.
//!
//! Expects `visible_keys.wgsl`, and `params.tiles` and `params.m`.
var<workgroup> row_seen: array<u32, {{rows}}>;
#if sequences
var<workgroup> row_sequence: array<u32, {{rows}}>;
#endif

fn first_row(number: u32) -> u32 {
    // The last rows have the most work, so they start first.
    return (params.tiles - 1u - number / {{n_heads}}u) * {{rows}}u;
}

fn stage_rows(row0: u32, head: u32, thread: u32) {
    for (var r = thread; r < {{rows}}u; r += {{threads}}u) {
        let row = min(row0 + r, params.m - 1u);
        if (head == 0u) { report_invalid_row(row); }
        row_seen[r] = select(0u, seen_by(row), row0 + r < params.m);
#if sequences
        row_sequence[r] = sequence_of(row);
#endif
    }
}
