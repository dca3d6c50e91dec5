// Rows of codes (16 bytes an item), then pairs of scale and minimum (f16).
struct Raw { codes: vec4<u32>, scale: u32 }

fn row_length() -> u32 {
    let items = params.k / 32u;
    return items + (items + 3u) / 4u;
}

fn fetch(base: u32, it: u32) -> Raw {
    return Raw(w[base + it], word((base + params.k / 32u) * 4u + it));
}

fn decode(raw: Raw, it: u32) -> Item {
    let pair = unpack2x16float(raw.scale);
    return Item(raw.codes & LOW, (raw.codes >> vec4<u32>(4u)) & LOW, pair.xx, pair.yy);
}
