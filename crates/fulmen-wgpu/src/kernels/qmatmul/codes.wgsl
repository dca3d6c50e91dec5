fn size4(v: vec4<f32>) -> f32 {
    let s = abs(v);
    return max(max(s.x, s.y), max(s.z, s.w));
}

fn strange(v: vec4<f32>) -> bool {
    return any((bitcast<vec4<u32>>(v) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u));
}

fn sum4(v: vec4<i32>) -> i32 { return (v.x + v.y) + (v.z + v.w); }

fn codes4(v: vec4<f32>, inverse: f32) -> vec4<i32> {
    return vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
}

// 32 values as codes, scale and sums, at vector `to` of `dst`. A value that is not finite makes the scale NaN.
fn put_item(
    to: u32, v0: vec4<f32>, v1: vec4<f32>, v2: vec4<f32>, v3: vec4<f32>,
    v4: vec4<f32>, v5: vec4<f32>, v6: vec4<f32>, v7: vec4<f32>,
) {
    let most = max(max(max(size4(v0), size4(v1)), max(size4(v2), size4(v3))),
        max(max(size4(v4), size4(v5)), max(size4(v6), size4(v7))));
    let bad = strange(v0) || strange(v1) || strange(v2) || strange(v3)
        || strange(v4) || strange(v5) || strange(v6) || strange(v7);
    let zero = bad || most < 1e-35;
    let scale = select(most / 127.0, 0.0, zero);
    let inverse = select(127.0 / most, 0.0, zero);
    let c0 = codes4(select(v0, vec4<f32>(), zero), inverse);
    let c1 = codes4(select(v1, vec4<f32>(), zero), inverse);
    let c2 = codes4(select(v2, vec4<f32>(), zero), inverse);
    let c3 = codes4(select(v3, vec4<f32>(), zero), inverse);
    let c4 = codes4(select(v4, vec4<f32>(), zero), inverse);
    let c5 = codes4(select(v5, vec4<f32>(), zero), inverse);
    let c6 = codes4(select(v6, vec4<f32>(), zero), inverse);
    let c7 = codes4(select(v7, vec4<f32>(), zero), inverse);
    let first = sum4((c0 + c1) + (c2 + c3));
    let second = sum4((c4 + c5) + (c6 + c7));
    dst[to] = vec4<u32>(pack4xI8(c0), pack4xI8(c1), pack4xI8(c2), pack4xI8(c3));
    dst[to + 8u] = vec4<u32>(pack4xI8(c4), pack4xI8(c5), pack4xI8(c6), pack4xI8(c7));
    let both = scale * f32(first + second);
    let more = vec4<u32>(bitcast<u32>(scale), bitcast<u32>(first), bitcast<u32>(second), bitcast<u32>(both));
    dst[to + 16u] = select(more, vec4<u32>(0x7fc00000u, 0u, 0u, 0x7fc00000u), bad);
}
