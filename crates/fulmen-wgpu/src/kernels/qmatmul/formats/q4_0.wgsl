// Rows of codes (16 bytes an item), then scales (f16).
struct Raw { codes: vec4<u32>, scale: u32 }

fn row_length() -> u32 {
    let items = params.k / 32u;
    return items + (items + 7u) / 8u;
}

fn fetch(base: u32, it: u32) -> Raw {
    return Raw(w[base + it], word((base + params.k / 32u) * 4u + it / 2u));
}

fn decode(raw: Raw, it: u32) -> Item {
    let d = half_of(raw.scale, it);
    return Item(raw.codes & LOW, (raw.codes >> vec4<u32>(4u)) & LOW, vec2<f32>(d), vec2<f32>(-8.0 * d));
}
