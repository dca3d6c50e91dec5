// Scale and minimum of item `it` from the 16 bytes of its block: units (f16), lower four bits of eight
// scales, of eight minima, upper two bits of both.
fn scale_min(header: vec4<u32>, it: u32) -> vec2<f32> {
    let at = it & 7u;
    let low = (header.yz >> vec2<u32>(4u * at)) & vec2<u32>(15u);
    let high = (header.ww >> vec2<u32>(2u * at, 16u + 2u * at)) & vec2<u32>(3u);
    return unpack2x16float(header.x) * vec2<f32>(low | (high << vec2<u32>(4u)));
}
