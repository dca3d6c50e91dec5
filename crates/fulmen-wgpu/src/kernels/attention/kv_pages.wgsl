//! Helper functions for attention kernels that read keys and values, called by one thread each: where the
//! row of a position lies.
//!
//! - `row_at(sequence, head, start)`: the row of position `start`; those of the next positions of its page
//!   follow.
//! - `page_rows(sequence, head, first)` and `row_of(page_rows, first, position)`: the same for the 256
//!   positions from `first` on, which lie in up to three pages.
//! - `report_invalid_pages(row, sequence, first, last)`: reports a page of these positions that is not in
//!   the pool. Such a page is read as the last of the pool.
//!
//! Over a cache, [n_pages][n_kv_heads][page] rows of keys and of values; expects the binding `pages`
//! [n_seqs][capacity / page], and `params.capacity` and `params.n_pages`. Otherwise rows [m][n_kv_heads].
#if over_cache
fn page_entry(sequence: u32, index: u32) -> u32 {
    let seq_pages = params.capacity / {{page}}u;
    return pages[sequence * seq_pages + min(index, seq_pages - 1u)];
}
fn page_row(sequence: u32, head: u32, index: u32) -> u32 {
    return (min(page_entry(sequence, index), params.n_pages - 1u) * {{n_kv_heads}}u + head) * {{page}}u;
}
fn row_at(sequence: u32, head: u32, start: u32) -> u32 {
    return page_row(sequence, head, start / {{page}}u) + start % {{page}}u;
}
fn page_rows(sequence: u32, head: u32, first: u32) -> vec3<u32> {
    let index = first / {{page}}u;
    return vec3<u32>(
        page_row(sequence, head, index),
        page_row(sequence, head, index + 1u),
        page_row(sequence, head, index + 2u),
    );
}
fn row_of(rows: vec3<u32>, first: u32, position: u32) -> u32 {
    let at = position / {{page}}u - first / {{page}}u;
    return select(select(rows.x, rows.y, at == 1u), rows.z, at == 2u) + position % {{page}}u;
}
fn report_invalid_pages(row: u32, sequence: u32, first: u32, last: u32) {
    for (var index = first / {{page}}u; index <= last / {{page}}u; index += 1u) {
        let entry = page_entry(sequence, index);
        if (entry >= params.n_pages) { report(FAULT_PAGE, row, entry, params.n_pages); }
    }
}
#else
fn row_at(sequence: u32, head: u32, start: u32) -> u32 { return start * {{n_kv_heads}}u + head; }
fn page_rows(sequence: u32, head: u32, first: u32) -> vec3<u32> { return vec3<u32>(head); }
fn row_of(rows: vec3<u32>, first: u32, position: u32) -> u32 { return position * {{n_kv_heads}}u + rows.x; }
fn report_invalid_pages(row: u32, sequence: u32, first: u32, last: u32) {}
#endif
