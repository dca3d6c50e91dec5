//! Part of `main` in the prefill kernels: computes `sequence` and `limit`, the most keys that any row
//! of the tile sees in that sequence. With `sequences` it opens a loop over the distinct sequences of
//! the tile's rows, which the including file closes; a sequence is handled at its first row, and
//! `limit` is 0 at its other rows.
//!
//! Expects `row_seen` and, with `sequences`, `row_sequence`, one entry per row of the tile.
#if sequences
    for (var tile_row = 0u; tile_row < {{rows}}u; tile_row += 1u) {
    let sequence = row_sequence[tile_row];
    var limit = 0u;
    for (var r = 0u; r < {{rows}}u; r += 1u) {
        if (row_sequence[r] == sequence) {
            limit = select(max(limit, row_seen[r]), 0u, r < tile_row);
            if (r < tile_row) { break; }
        }
    }
#else
    let sequence = 0u;
    var limit = 0u;
    for (var r = 0u; r < {{rows}}u; r += 1u) { limit = max(limit, row_seen[r]); }
#endif
