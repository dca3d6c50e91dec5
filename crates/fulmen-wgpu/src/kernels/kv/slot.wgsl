//! Part of `main` in the KV store kernels: the cache slot of `row`, found by all threads of its
//! workgroup (an "any" reduction over the later rows).
//!
//! Defines `position`, `page` (of that position), `placed` (position, sequence and page are in range; else
//! the fault is reported) and `stays` (no later row of the batch has the same slot). Expects `row`, `thread`,
//! `sequence_of`, `report`, the binding `pages` [n_seqs][capacity / page] and the workgroup variable
//! `later`.
    let position = positions[row];
    let sequence = sequence_of(row);
    let known = position < params.capacity && sequence < params.n_seqs;
    var page = 0xffffffffu;
    if (known) { page = pages[sequence * (params.capacity / {{page}}u) + position / {{page}}u]; }
    let placed = page < params.n_pages;
    if (!placed && thread == 0u) {
        if (position >= params.capacity) {
            report(FAULT_POSITION, row, position, params.capacity);
        } else if (sequence >= params.n_seqs) {
            report(FAULT_SEQUENCE, row, sequence, params.n_seqs);
        } else {
            report(FAULT_PAGE, row, page, params.n_pages);
        }
    }
    if (thread == 0u) { atomicStore(&later, 0u); }
    workgroupBarrier();
    for (var r = row + 1u + thread; r < params.m; r += {{threads}}u) {
        if (positions[r] == position && sequence_of(r) == sequence) { atomicStore(&later, 1u); }
    }
    workgroupBarrier();
    let stays = atomicLoad(&later) == 0u;
