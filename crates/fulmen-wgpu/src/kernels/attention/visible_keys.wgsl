//! Helper functions for all attention kernels, called by one thread: which keys a row attends to.
//!
//! - `sequence_of(row)`: the sequence of a row.
//! - `seen_by(row)`: how many keys the row attends to (its causal context); 0 for an invalid row.
//! - `report_invalid_row(row)`: reports a position or sequence that is out of range.
//!
//! Expects `params.capacity` and `params.n_seqs`, and the bindings `positions`, `sequences` and `fault`
//! where the values `over_cache`, `sequences` and `faults` say so.
#if over_cache
  #if faults
#include "fault.wgsl"
  #endif
fn sequence_of(row: u32) -> u32 { return {{sequences ? "sequences[row]" : "0u"}}; }
  #if faults
fn report_invalid_row(row: u32) {
    if (positions[row] >= params.capacity) {
        report(FAULT_POSITION, row, positions[row], params.capacity);
    } else if (sequence_of(row) >= params.n_seqs) {
        report(FAULT_SEQUENCE, row, sequence_of(row), params.n_seqs);
    }
}
  #endif
fn seen_by(row: u32) -> u32 {
    let position = positions[row];
    return select(0u, position + 1u, position < params.capacity && sequence_of(row) < params.n_seqs);
}
#else
fn seen_by(row: u32) -> u32 { return row + 1u; }
fn sequence_of(row: u32) -> u32 { return 0u; }
fn report_invalid_row(row: u32) {}
#endif
