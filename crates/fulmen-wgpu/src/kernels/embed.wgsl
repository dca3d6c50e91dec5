//! Token embedding: copies row `tokens[i]` of the table to row `i` of the output, dequantized.
//! Element-wise: one thread computes one `Values` (4 elements, or 1 where rows are not a multiple of
//! 4).
//!
//! **Bindings.** `w`: rows `params.first` to `params.end` of the table, plain or repacked blocks as in
//! `qmatmul`; `tokens` [m]; `out` [m][k] f32; `fault`.
//!
//! `reader` is the WGSL that reads the weight type: `get_w(i)`, or `fetch` and `decode` of the block format.
//!
//! **Preconditions.** Rows of block formats are whole blocks.
//!
//! **Bound** by memory latency: it reads one table row per token; not measured.
#if f16
enable f16;
#endif
struct Params {
    // Elements per row; rows of the table; first and end row of the part that is here, and of this slice
    // of it; `Values` per row; workgroups per row and in total.
    k: u32,
    rows: u32,
    part_first: u32,
    part_end: u32,
    first: u32,
    end: u32,
    vecs: u32,
    across: u32,
    groups: u32,
}

alias Values = {{values}};
{{reader}}
#if blocks
#include "embed_blocks.wgsl"
#else
fn value(row: u32, vec: u32) -> Values { return get_w(row * (params.k / {{lanes}}u) + vec); }
#endif
#include "fault.wgsl"
@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.groups) { return; }
    let row = number / params.across;
    let vec = number % params.across * {{threads}}u + thread;
    let token = tokens[row];
    if (token >= params.rows) {
        if (vec == 0u && params.first == params.part_first) { report(FAULT_TOKEN, row, token, params.rows); }
        return;
    }
    if (vec >= params.vecs) { return; }
    if (token < params.part_first || token >= params.part_end) {
        if (params.first == params.part_first) { out[row * params.vecs + vec] = Values(); }
        return;
    }
    if (token < params.first || token >= params.end) { return; }
    out[row * params.vecs + vec] = value(token - params.first, vec);
}
