// Rows of codes' lower four bits (16 bytes an item), then the upper two bits of the first 16 (4 bytes an
// item: bits `8b + 2w` for byte `b` of word `w`), of the others, then two scales an item (i8), then a unit
// for eight items (f16).
struct Raw { codes: vec4<u32>, high: vec2<u32>, scales: u32, unit: u32 }

fn row_length() -> u32 {
    let blocks = params.k / 256u;
    return 13u * blocks + (blocks + 7u) / 8u;
}

fn fetch(base: u32, it: u32) -> Raw {
    let items = params.k / 32u;
    let first = (base + items) * 4u;
    let scales = first + 2u * items;
    let high = vec2<u32>(word(first + it), word(first + items + it));
    return Raw(w[base + it], high, word(scales + it / 2u), word(scales + items / 2u + it / 16u));
}

fn decode(raw: Raw, it: u32) -> Item {
    let lo = (raw.codes & LOW) | upper(raw.high.x);
    let hi = ((raw.codes >> vec4<u32>(4u)) & LOW) | upper(raw.high.y);
    let pair = bitcast<i32>(raw.scales >> (16u * (it & 1u)));
    let scales = vec2<f32>(f32(extractBits(pair, 0u, 8u)), f32(extractBits(pair, 8u, 8u)));
    let s = half_of(raw.unit, it / 8u) * scales;
    return Item(lo, hi, s, -32.0 * s);
}

fn upper(bits: u32) -> vec4<u32> {
    let moved = vec4<u32>(bits << 4u, bits << 2u, bits, bits >> 2u);
    return moved & vec4<u32>(0x30303030u);
}
