//! Helper functions of `kv/store.wgsl` for a Q8_0 cache (ggml blocks: f16 scale, then 32 int8 quants):
//! `prepare(thread)` computes the scales, one thread per block, and is called by all threads;
//! `cache_bits(i)` is the i-th 16 bits of the encoded head, 17 per block. Expects `f16_bits` and
//! `head_values`.
var<workgroup> scale_bits: array<u32, {{head_dim / 32}}>;
var<workgroup> inverses: array<f32, {{head_dim / 32}}>;

fn limited(i: u32) -> f32 { return clamp(head_values[i], -1e9, 1e9); }

// The scale of each block covers its values: it is rounded up where rounding to nearest would clip the
// largest.
fn prepare(thread: u32) {
    for (var block = thread; block < {{head_dim / 32}}u; block += {{threads}}u) {
        var largest = 0.0;
        for (var i = 0u; i < 32u; i += 1u) { largest = max(largest, abs(limited(block * 32u + i))); }
        var bits = f16_bits(min(largest / 127.0, 65504.0));
        if (largest > unpack2x16float(bits).x * 127.5 && bits < 0x7bffu) { bits += 1u; }
        let scale = unpack2x16float(bits).x;
        scale_bits[block] = bits;
        inverses[block] = select(1.0 / scale, 0.0, scale == 0.0);
    }
    workgroupBarrier();
}

fn quant_of(i: u32, inverse: f32) -> u32 {
    return bitcast<u32>(i32(round(clamp(limited(i) * inverse, -127.0, 127.0)))) & 255u;
}

fn cache_bits(i: u32) -> u32 {
    let block = i / 17u;
    let at = i % 17u;
    if (at == 0u) { return scale_bits[block]; }
    let first = block * 32u + 2u * (at - 1u);
    let inverse = inverses[block];
    return quant_of(first, inverse) | (quant_of(first + 1u, inverse) << 8u);
}
