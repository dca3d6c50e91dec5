//! Argmax of each row: a tree reduction of (order key, index) pairs, in two launches for long rows.
//!
//! **Work partition.** One workgroup per part of a row; each thread scans every `threads`-th element,
//! then the workgroup reduces its threads (`argmax_reduce.wgsl`). The second launch (`of_keys`) reduces
//! the keys of the parts.
//!
//! **Bindings.** `x`: [m][n] f32, or with `of_keys` the keys [m][parts] of the first launch; `out`:
//! keys [m][parts] if `to_keys`, else indices [m]. Rows of NaN and -inf only give index 0.
//!
//! **Preconditions.** None.
//!
//! **Bound** by memory bandwidth; not measured.
#include "argmax_parts.wgsl"

fn begin_part(row: u32, part: u32, thread: u32) {}

fn key_at(at: u32, i: u32) -> vec2<u32> { return {{of_keys ? "x[at]" : "key_of(x[at], i)"}}; }

fn put(number: u32, best: vec2<u32>) {
#if to_keys
    out[number] = best;
#else
    out[number] = select(best.y, 0u, best.x == 0u);
#endif
}
