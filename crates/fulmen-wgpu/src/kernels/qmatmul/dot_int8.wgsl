// A as int8 codes. Eight items lie together: the first 16 codes of each, the others, then of each the scale,
// the sums of both halves' codes, and the scaled sum of all.
fn place(base: u32, it: u32) -> u32 { return base + (it >> 3u) * 24u + (it & 7u); }

fn dot16(x: vec4<u32>, y: vec4<u32>) -> i32 {
    return dot4I8Packed(x.x, y.x) + dot4I8Packed(x.y, y.y) + dot4I8Packed(x.z, y.z) + dot4I8Packed(x.w, y.w);
}

struct Values { lo: vec4<u32>, hi: vec4<u32>, more: vec4<u32> }

fn values(base: u32, it: u32) -> Values {
    let at = place(base, it);
    return Values(a[at], a[at + 8u], a[at + 16u]);
}

fn add(sum: f32, item: Item, v: Values) -> f32 {
    {{add}}
}
