//! Helper function, called by all threads together: `largest_below(thread, row, part, previous)` returns the
//! largest (order key, index) below `previous` of the values of `x`, of a row that begins at `row`, from
//! `part.x` to `part.y`; its key is 0 if there is none. One pass over the part and one reduction.
#include "argmax_key.wgsl"
#include "argmax_reduce.wgsl"
#include "argmax_below.wgsl"
fn largest_below(thread: u32, row: u32, part: vec2<u32>, previous: vec2<u32>) -> vec2<u32> {
    var own = vec2<u32>(0u, 0xffffffffu);
    for (var i = part.x + thread; i < part.y; i += {{threads}}u) {
        let key = key_of(x[row + i], i);
        if (is_below(key, previous)) { own = larger(own, key); }
    }
    return largest_of_all(thread, own);
}
