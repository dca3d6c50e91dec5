fn bytes(codes: u32) -> vec4<f32> { return vec4<f32>({{unpack}}(codes)); }

// Four elements of a row of W, zero past k.
fn load_b(base: u32, k: u32) -> vec4<f32> {
    let at = min(k, params.k - 4u);
    let it = at / 32u;
    let item = decode(fetch(base, it), it);
    let second = (at & 16u) != 0u;
    let codes = select(item.lo, item.hi, second);
    let values = bytes(codes[(at / 4u) & 3u]) * select(item.s.x, item.s.y, second)
        + select(item.o.x, item.o.y, second);
    return select(vec4<f32>(), values, k < params.k);
}
