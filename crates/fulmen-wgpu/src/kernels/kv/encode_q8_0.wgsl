var<workgroup> scale_bits: array<u32, {{blocks}}>;
var<workgroup> inverses: array<f32, {{blocks}}>;

fn limited(i: u32) -> f32 { return clamp(head_values[i], -1e9, 1e9); }

// The scale of each block spans its values, and is the next one up where the nearest would not reach the largest.
fn prepare(thread: u32) {
    for (var block = thread; block < {{blocks}}u; block += {{threads}}u) {
        var largest = 0.0;
        for (var i = 0u; i < 32u; i += 1u) { largest = max(largest, abs(limited(block * 32u + i))); }
        var bits = half_bits(min(largest / 127.0, 65504.0));
        if (largest > unpack2x16float(bits).x * 127.5 && bits < 0x7bffu) { bits += 1u; }
        let scale = unpack2x16float(bits).x;
        scale_bits[block] = bits;
        inverses[block] = select(1.0 / scale, 0.0, scale == 0.0);
    }
    workgroupBarrier();
}

fn code_of(i: u32, inverse: f32) -> u32 {
    return bitcast<u32>(i32(round(clamp(limited(i) * inverse, -127.0, 127.0)))) & 255u;
}

// The i-th 16 bits of the head as the cache has it: of each block the scale, then the codes.
fn half_of(i: u32) -> u32 {
    let block = i / 17u;
    let at = i % 17u;
    if (at == 0u) { return scale_bits[block]; }
    let first = block * 32u + 2u * (at - 1u);
    let inverse = inverses[block];
    return code_of(first, inverse) | (code_of(first + 1u, inverse) << 8u);
}
