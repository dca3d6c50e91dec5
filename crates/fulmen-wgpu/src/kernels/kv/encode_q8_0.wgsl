//! Helper functions of `kv/store.wgsl` for a Q8_0 cache: `prepare(thread)` computes the scales of the blocks
//! of 32 values, `scale_bits` in f16, one thread per block, and is called by all threads; `quants_of(word)`
//! is four int8 quants. Expects `f16_bits` and `head_values`.
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

fn quants_of(word: u32) -> u32 {
    let first = 4u * word;
    let inverse = inverses[word / 8u];
    return quant_of(first, inverse) | (quant_of(first + 1u, inverse) << 8u)
        | (quant_of(first + 2u, inverse) << 16u) | (quant_of(first + 3u, inverse) << 24u);
}
