// Rows of codes (16 bytes an item), then headers (16 bytes for eight items), then fifth bits (4 bytes an
// item: bit `8b + w` for byte `b` of word `w`).
struct Raw { codes: vec4<u32>, header: vec4<u32>, high: u32 }

fn row_length() -> u32 {
    let items = params.k / 32u;
    return items + items / 8u + items / 4u;
}

fn fetch(base: u32, it: u32) -> Raw {
    let items = params.k / 32u;
    let headers = base + items;
    return Raw(w[base + it], w[headers + it / 8u], word((headers + items / 8u) * 4u + it));
}

fn decode(raw: Raw, it: u32) -> Item {
    let pair = scale_min(raw.header, it);
    let high = vec4<u32>(raw.high);
    let lo = (raw.codes & LOW) | ((high << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(0x10101010u));
    let hi = ((raw.codes >> vec4<u32>(4u)) & LOW)
        | ((high >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x10101010u));
    return Item(lo, hi, pair.xx, -pair.yy);
}
