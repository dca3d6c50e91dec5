// Rows of codes (16 bytes an item), then headers (16 bytes for eight items).
struct Raw { codes: vec4<u32>, header: vec4<u32> }

fn row_length() -> u32 {
    let items = params.k / 32u;
    return items + items / 8u;
}

fn fetch(base: u32, it: u32) -> Raw {
    return Raw(w[base + it], w[base + params.k / 32u + it / 8u]);
}

fn decode(raw: Raw, it: u32) -> Item {
    let pair = scale_min(raw.header, it);
    return Item(raw.codes & LOW, (raw.codes >> vec4<u32>(4u)) & LOW, pair.xx, -pair.yy);
}
