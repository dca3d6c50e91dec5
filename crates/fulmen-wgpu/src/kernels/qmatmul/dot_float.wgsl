// A as it is.
struct Values { v: array<vec4<f32>, 8> }

fn values(base: u32, it: u32) -> Values {
    let at = base + it * 8u;
    return Values(array<vec4<f32>, 8>(
        a[at], a[at + 1u], a[at + 2u], a[at + 3u], a[at + 4u], a[at + 5u], a[at + 6u], a[at + 7u],
    ));
}

fn bytes(codes: u32) -> vec4<f32> { return vec4<f32>({{unpack}}(codes)); }

fn half_sum(codes: vec4<u32>, s: f32, o: f32, x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, t: vec4<f32>) -> f32 {
    let product = dot(bytes(codes.x), x) + dot(bytes(codes.y), y)
        + dot(bytes(codes.z), z) + dot(bytes(codes.w), t);
    return s * product + o * dot((x + y) + (z + t), vec4<f32>(1.0));
}

fn add(sum: f32, item: Item, v: Values) -> f32 {
    return sum + half_sum(item.lo, item.s.x, item.o.x, v.v[0], v.v[1], v.v[2], v.v[3])
        + half_sum(item.hi, item.s.y, item.o.y, v.v[4], v.v[5], v.v[6], v.v[7]);
}
