//! Helper functions: `larger(a, b)` of two (order key, index) pairs, and `largest_of_all(thread, own)`,
//! a tree reduction over the workgroup's `threads`, which all threads call together.
// Of equal keys the one with the lower index.
fn larger(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

var<workgroup> largest_keys: array<vec2<u32>, {{threads}}>;

fn largest_of_all(thread: u32, own: vec2<u32>) -> vec2<u32> {
    largest_keys[thread] = own;
    workgroupBarrier();
    for (var width = {{threads}}u / 2u; width > 0u; width /= 2u) {
        if (thread < width) {
            largest_keys[thread] = larger(largest_keys[thread], largest_keys[thread + width]);
        }
        workgroupBarrier();
    }
    let result = largest_keys[0];
    workgroupBarrier();
    return result;
}
