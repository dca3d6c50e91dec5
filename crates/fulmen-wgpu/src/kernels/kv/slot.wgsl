//! Part of `main` in the KV store kernels: the cache slot of `row`, found by all threads of its
//! workgroup (an "any" reduction over the later rows).
//!
//! Defines `position`, `sequence`, `placed` (both are in range; else the fault is reported) and `stays`
//! (no later row of the batch has the same slot). Expects `row`, `thread`, `sequence_of`, `report` and
//! the workgroup variable `later`.
    let position = positions[row];
    let sequence = sequence_of(row);
    let placed = position < params.capacity && sequence < params.n_seqs;
    if (!placed && thread == 0u) {
        if (position >= params.capacity) {
            report(FAULT_POSITION, row, position, params.capacity);
        } else {
            report(FAULT_SEQUENCE, row, sequence, params.n_seqs);
        }
    }
    if (thread == 0u) { atomicStore(&later, 0u); }
    workgroupBarrier();
    for (var r = row + 1u + thread; r < params.m; r += {{threads}}u) {
        if (positions[r] == position && sequence_of(r) == sequence) { atomicStore(&later, 1u); }
    }
    workgroupBarrier();
    let stays = atomicLoad(&later) == 0u;
