// Rows of the first 16 codes of every item, then of the others, then scales (f16).
struct Raw { lo: vec4<u32>, hi: vec4<u32>, scale: u32 }

fn row_length() -> u32 {
    let items = params.k / 32u;
    return 2u * items + (items + 7u) / 8u;
}

fn fetch(base: u32, it: u32) -> Raw {
    let items = params.k / 32u;
    return Raw(w[base + it], w[base + items + it], word((base + 2u * items) * 4u + it / 2u));
}

fn decode(raw: Raw, it: u32) -> Item {
    return Item(raw.lo, raw.hi, vec2<f32>(half_of(raw.scale, it)), vec2<f32>());
}
